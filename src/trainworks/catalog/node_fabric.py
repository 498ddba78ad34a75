"""The NICs of one node, by which a description of a cluster replaces those of the catalogue."""

from __future__ import annotations

from trainworks.catalog.facts import Link
from trainworks.config.spec import Frozen


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

    @classmethod
    def of_links(cls, nics: int, port: str, found: Link) -> NodeFabric:
        """NICs of a link of the catalogue, under the name that a description gives it."""
        return cls(nics=nics, port=port, bytes_per_s=found.bytes_per_s, network=found.network)
