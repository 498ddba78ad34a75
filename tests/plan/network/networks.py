"""Clusters and networks for tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from trainworks.catalog.cluster import ClusterDescription, parse_cluster
from trainworks.catalog.facts import Switch
from trainworks.plan.network.design import NetworkDesign, design_network, topologies_compared

A100S = "16 nodes of DGX A100"
SWITCHED = ("star", "spine-leaf", "3-tier", "rail-optimised", "rail-only", "multi-plane", "dragonfly", "dragonfly+")


def cluster(nodes: int, nics: int = 8) -> ClusterDescription:
    """Nodes of eight accelerators with some 400 Gb/s NICs."""
    return parse_cluster(f"{nodes} nodes of 8x H100-SXM-80GB over {nics}x NDR")


def a_switch(ports: int) -> Switch:
    """A switch with ports of 400 Gb/s, of a fabric that splits them."""
    return Switch(name=f"{ports} ports", network="InfiniBand", ports=ports, port_bytes_per_s=50e9)


def network(topology: str = "auto", on: str = A100S, **options: Any) -> NetworkDesign:
    """One topology on a cluster in words."""
    return design_network(parse_cluster(on), topology=topology, **options)


NODES = st.integers(2, 120)
NICS = st.sampled_from((1, 2, 4, 8))
PORTS = st.sampled_from((16, 24, 36, 40, 64, 144))
TAPERS = st.sampled_from((1.0, 1.5, 2.0, 3.0))


@st.composite
def networks(draw: st.DrawFn) -> NetworkDesign:
    """Any topology that holds some cluster."""
    wanted = cluster(draw(NODES), draw(NICS))
    fitting = topologies_compared(
        wanted,
        oversubscription=draw(TAPERS),
        switch=a_switch(draw(PORTS)),
        spare_slots=draw(st.sampled_from((0, 0, 1))),
    )
    return draw(st.sampled_from(fitting))
