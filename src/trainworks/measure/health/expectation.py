"""What a node should have, from the description of its cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainworks.catalog.cluster import ClusterDescription, parse_cluster
from trainworks.catalog.facts import Accelerator

_LIST = re.compile(r"\s*,\s*")
_WITH_RATE = ("InfiniBand", "RoCE")
_COUNTED = ("EFA", "Omni-Path")
"""Networks whose NICs are RDMA devices of Linux: those whose ports report their rate, and the others. TCP has none."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Hardware that a node should have; None for what the description leaves open."""

    text: str = ""
    accelerators: int | None = None
    accelerator: Accelerator | None = None
    nics: int | None = None
    nic_bytes_per_s: float | None = None
    host_memory_bytes: int | None = None


def expected_cluster(text: str) -> ClusterDescription:
    """The cluster of a description of its nodes, in which a comma may stand for `over`.

    `8x H100, 8x NDR` is `8x H100 over 8x NDR`.

    Raises:
        UsageError: the text does not describe a cluster.

    >>> expected_cluster("8x H100-SXM-80GB, 8x NDR").nics
    8
    """
    return parse_cluster(_LIST.sub(" over ", text.strip(), count=1))


def expectation_of(cluster: ClusterDescription) -> Expectation:
    """The hardware of one node of a cluster.

    NICs and host memory are expected only if the description names them, or names a node of the catalogue.

    >>> expected = expectation_of(expected_cluster("8x H100-SXM-80GB, 8x NDR"))
    >>> expected.accelerators, expected.nics, expected.host_memory_bytes
    (8, 8, None)
    """
    node, fabric = cluster.node, cluster.fabric
    named = node if node is not None and node.name == cluster.node_name and node.kind != "reference" else None
    nics = fabric.nics if fabric else named.nics if named else None
    rate = fabric.bytes_per_s if fabric else named.nic_bytes_per_s if named else None
    return Expectation(
        text=cluster.name,
        accelerators=cluster.accelerators_per_node,
        accelerator=cluster.accelerator,
        nics=nics if cluster.network in (*_WITH_RATE, *_COUNTED) else None,
        nic_bytes_per_s=rate if cluster.network in _WITH_RATE else None,
        host_memory_bytes=named.host_memory_bytes if named else None,
    )
