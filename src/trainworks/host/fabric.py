"""Ports of RDMA devices and of Ethernet cards with their counters, from sysfs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainworks.files import readable_text

_RATE = re.compile(r"([\d.]+)\s*Gb/sec")


@dataclass(frozen=True, slots=True)
class NicPort:
    """A port of an RDMA device."""

    device: str
    port: str
    state: str
    """`ACTIVE`, `DOWN`, `INIT` ..."""
    gbit_per_s: float
    board: str
    firmware: str
    counters: Mapping[str, int]
    """Counters of the port, and those of the device where the driver has some (`hw_counters`)."""
    pci: Path
    """Folder of the PCI device."""

    def __str__(self) -> str:
        return f"{self.device}/{self.port}"


@dataclass(frozen=True, slots=True)
class EthernetPort:
    """A network card; bridges, tunnels and other interfaces without hardware are none."""

    name: str
    is_up: bool
    bytes_per_s: float | None
    """Rate of the link; None while it is down."""
    counters: Mapping[str, int]
    """`rx_bytes`, `tx_errors` ... and `carrier_changes`."""


def rdma_ports(root: Path = Path("/")) -> list[NicPort]:
    """Ports of InfiniBand and RoCE devices, in the order of their names.

    Source: https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband
    """
    return [_rdma_port(folder) for folder in sorted(root.glob("sys/class/infiniband/*/ports/*"))]


def ethernet_ports(root: Path = Path("/")) -> list[EthernetPort]:
    """Network cards, in the order of their names.

    Source: https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-net
    """
    return [_ethernet_port(device.parent) for device in sorted(root.glob("sys/class/net/*/device"))]


def _rdma_port(folder: Path) -> NicPort:
    device = folder.parents[1]
    rate = _RATE.match(readable_text(folder / "rate"))
    return NicPort(
        device=device.name,
        port=folder.name,
        state=readable_text(folder / "state").partition(":")[2].strip(),
        gbit_per_s=float(rate[1]) if rate else 0.0,
        board=readable_text(device / "board_id"),
        firmware=readable_text(device / "fw_ver"),
        counters=_numbers(sorted([*folder.glob("counters/*"), *folder.glob("hw_counters/*")])),
        pci=device / "device",
    )


def _ethernet_port(folder: Path) -> EthernetPort:
    megabits = _numbers([folder / "speed"]).get("speed", -1)
    return EthernetPort(
        name=folder.name,
        is_up=readable_text(folder / "operstate") == "up",
        bytes_per_s=megabits * 1e6 / 8 if megabits > 0 else None,
        counters=_numbers([*folder.glob("statistics/*"), folder / "carrier_changes"]),
    )


def _numbers(files: list[Path]) -> dict[str, int]:
    texts = {file.name: readable_text(file) for file in files}
    return {name: int(text) for name, text in texts.items() if text.lstrip("-").isdigit()}
