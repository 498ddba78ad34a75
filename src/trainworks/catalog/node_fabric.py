"""The NICs of one node, by which a description of a cluster replaces those of the catalogue."""

from __future__ import annotations

from trainworks.catalog.facts import Accelerator, Node
from trainworks.config.spec import Frozen
from trainworks.errors import UsageError
from trainworks.units import format_bytes

NIC_NOTE = "a NIC of "
"""Begins a note on the bandwidth of a NIC."""


class NodeFabric(Frozen):
    """The NICs of one node."""

    nics: int
    port: str
    """One NIC in a description: `HDR`, `RoCE 400`, `200 Gb/s`."""
    bytes_per_s: float
    """Bandwidth of one NIC, one direction."""
    network: str

    def __str__(self) -> str:
        return f"{self.nics}x {self.port}"

    def is_of(self, node: Node) -> bool:
        """True if the catalogue's node has these NICs itself; a reference node stands for many, whose NICs differ."""
        own = (node.nics, node.nic_bytes_per_s, node.network)
        return node.kind != "reference" and own == (self.nics, self.bytes_per_s, self.network)


def check_network(name: str, num_nodes: int, base: Node) -> None:
    """Refuse several nodes without a known bandwidth between them.

    Raises:
        UsageError: names the cluster.
    """
    if num_nodes > 1 and not base.nics:
        raise UsageError(
            f"`{name}` has {num_nodes} nodes, and no bandwidth between nodes of {base.name} is published",
            hint=f"add it: `{num_nodes} nodes of {base.accelerators}x {base.accelerator} over 8x 200 Gb/s`",
        )


def nic_bytes_per_s(base: Node, part: Accelerator) -> tuple[float, list[str]]:
    """Bandwidth of one NIC, at most that of its slot."""
    slot = base.nic_slot_bytes_per_s or part.host_bytes_per_s
    if base.nic_bytes_per_s <= slot:
        return base.nic_bytes_per_s, []
    rates = f"{format_bytes(base.nic_bytes_per_s)}/s counts with the {format_bytes(slot)}/s of its PCIe slot"
    return slot, [f"{NIC_NOTE}{rates}"]
