"""The switch of a network, and how many links of a NIC's speed its ports make.

A port that is faster than the NIC is split where the fabric allows it: InfiniBand in two, Ethernet in two or four,
others never, so that R = ports * split. A NIC that its PCIe slot slows down needs the port of its real rate or more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.catalog import switch as catalogue_switch
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Switch
from trainworks.errors import QuantityError, UsageError
from trainworks.units import parse_bandwidth

_SPLITS = {"InfiniBand": (2, 1), "RoCE": (4, 2, 1), "unnamed": (4, 2, 1)}
_ETHERNET = ("RoCE", "TCP")
_COUNTED = re.compile(r"(?P<ports>\d{1,9})\s*[x\u00d7]\s*(?P<port>.+)")
_TOLERANCE = 1.001


@dataclass(frozen=True, slots=True)
class Ports:
    """A switch's ports as links to NICs."""

    switch: Switch
    split: int
    """Links that one port makes."""

    @property
    def count(self) -> int:
        """R, links of a switch."""
        return self.switch.ports * self.split


def nic_bytes_per_s(cluster: ClusterDescription) -> float:
    """Bandwidth of one NIC, limited by its slot.

    Raises:
        UsageError: the nodes have no NICs, or there is only one node.
    """
    if cluster.num_nodes < 2:
        raise UsageError(f"`{cluster.name}` is a single node: a network joins several", hint="try `4 nodes of ...`")
    if not cluster.nics:
        raise UsageError(f"the nodes of `{cluster.name}` have no NICs", hint="name them: `... over 8x NDR`")
    return cluster.node_bytes_per_s / cluster.nics


def find_switch(text: str) -> Switch:
    """A switch of the catalogue, or one that is written as its ports: `64x 400 Gb/s`.

    Raises:
        UsageError: the catalogue has none of that name, or the ports cannot be read.

    >>> find_switch("QM9700").ports, find_switch("32x 100 Gb/s").port_bytes_per_s
    (64, 12500000000.0)
    """
    written = _COUNTED.fullmatch(text.strip())
    if written is None:
        return catalogue_switch(text)
    try:
        port = parse_bandwidth(written["port"])
    except QuantityError as error:
        raise UsageError(f"invalid switch `{text}`: {error.message}", hint="write it like `64x 400 Gb/s`") from None
    if not (1 < int(written["ports"]) <= 4096 and port > 0):
        raise UsageError(f"invalid switch `{text}`: it needs 2 to 4096 ports", hint="write it like `64x 400 Gb/s`")
    return Switch(name=text.strip(), network="unnamed", ports=int(written["ports"]), port_bytes_per_s=port)


def ports_for(cluster: ClusterDescription, switch: Switch | None = None, *, planes: int = 1) -> Ports:
    """The given switch, or the catalogue's whose ports are the closest above the NIC, and its split.

    Args:
        cluster: whose NICs are joined.
        switch: instead of the catalogue's.
        planes: parts of each NIC that go to networks of their own.

    Raises:
        UsageError: the ports are slower than the NIC, no switch fits, or its ports cannot be split that often.
    """
    speed = nic_bytes_per_s(cluster) / planes
    chosen = switch or next(iter(fitting_switches(cluster)), None)
    if chosen is None:
        raise UsageError(
            f"no switch for {cluster.network} NICs of {_rate(speed * planes)} is in the catalogue",
            hint="a provider's own network is built already; describe a switch to compare: `64x 400 Gb/s`",
        )
    splits = _SPLITS.get(chosen.network, (1,))
    split = next((split for split in splits if chosen.port_bytes_per_s / split * _TOLERANCE >= speed), None)
    if split is None:
        raise UsageError(
            f"ports of {chosen.name} bring {_rate(chosen.port_bytes_per_s)}, and a NIC takes {_rate(speed)}",
            hint="name a faster switch; `trainworks catalog list switches` has all",
        )
    if split < planes and planes > 1:
        raise UsageError(
            f"{planes} planes need ports that make {planes} links, and {chosen.name} makes {split} at this speed",
            hint="take `rail-optimised`, or a switch with faster ports",
        )
    return Ports(chosen, split)


def fitting_switches(cluster: ClusterDescription) -> list[Switch]:
    """The catalogue's switches for the NICs of a cluster, those with the closest ports first, then with the fewest.

    Switches that are only announced come last.
    """
    speed = nic_bytes_per_s(cluster)
    fabric = "RoCE" if cluster.network in _ETHERNET else cluster.network
    fitting = [
        each
        for each in load_catalog().switches.values()
        if (each.network == fabric or cluster.network == "unnamed") and each.port_bytes_per_s * _TOLERANCE >= speed
    ]
    return sorted(fitting, key=lambda each: (each.announced, each.port_bytes_per_s, each.ports))


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8 / 1e9:g} Gb/s"
