"""How NCCL connects the ranks, from the lines that it prints with NCCL_DEBUG=INFO.

    NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>      adapters that it found
    NET/IB : No device found.
    Using network Socket                                                       transport that it chose
    Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/1/GDRDMA                     adapter of a channel

Source: NVIDIA/nccl, src/init.cc, src/transport/net.cc and net_ib.cc, releases 2.18 to 2.27.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_LINE = re.compile(r"NCCL (?:INFO|WARN) (.*)")
_CHOSEN = re.compile(r"Using network (.+?)\s*$")
_ADAPTERS = re.compile(r"NET/IB : Using (.*)")
_ADAPTER = re.compile(r"\[(\d+)\]([^\s:]+):\d+/\S+")
_CHANNEL = re.compile(r"via NET/([^/\s]+(?: [^/\s]+)*)/(\d+)(\S*)")
_DISABLED = re.compile(r"(NCCL_(?:IB|P2P|SHM)_DISABLE) set by environment to (?!0)(\d+)")


@dataclass(frozen=True, slots=True)
class NcclTransport:
    """What NCCL said of the network between the nodes."""

    network: str | None = None
    """Transport that it chose: `IB`, `Socket`, or that of a plugin; None without such a line."""
    adapters: tuple[str, ...] = ()
    """InfiniBand and RoCE adapters that it found."""
    unused: tuple[str, ...] = ()
    """Adapters that no channel uses; empty where no channel to another node was logged."""
    found_no_adapter: bool = False
    without_gpu_direct: bool = False
    """Channels go through an adapter, and none has GPUDirect RDMA (`GDRDMA`)."""
    disabled: tuple[str, ...] = ()
    """Variables that switch off InfiniBand or a path within the node: `NCCL_IB_DISABLE=1`."""

    @property
    def is_on_sockets(self) -> bool:
        """True if traffic between nodes goes through kernel TCP."""
        return (self.network or "").startswith("Socket")


def read_transport(lines: Iterable[str]) -> NcclTransport:
    """What the lines of the ranks of whole nodes say; lines that are not NCCL's are skipped."""
    network: str | None = None
    adapters: dict[str, str] = {}
    used: set[str] = set()
    direct: list[bool] = []
    disabled: dict[str, None] = {}
    found_none = False
    for said in (match[1] for line in lines if (match := _LINE.search(line))):
        if chosen := _CHOSEN.search(said):
            network = chosen[1]
        elif found := _ADAPTERS.search(said):
            adapters.update(_ADAPTER.findall(found[1]))
        elif channel := _CHANNEL.search(said):
            used |= {channel[2]} if channel[1] == "IB" else set()
            direct += ["GDR" in channel[3]] if channel[1] == "IB" else []
        elif off := _DISABLED.search(said):
            disabled[f"{off[1]}={off[2]}"] = None
        found_none = found_none or "NET/IB : No device found" in said
    return NcclTransport(
        network=network,
        adapters=tuple(adapters.values()),
        unused=tuple(name for number, name in adapters.items() if used and number not in used),
        found_no_adapter=found_none,
        without_gpu_direct=bool(direct) and not any(direct),
        disabled=tuple(disabled),
    )
