"""Physical bounds of measured rates: what the data sheets allow and no software can exceed.

Symbols: n ranks in k domains of g = n / k ranks each; V bytes per second that a rank takes from its scale-up links, I
that a domain takes from its network interfaces, W = I / g of them per rank; one direction, full duplex. A domain is a
node, or several nodes of an NVL72.

The bus bandwidth of nccl-tests is `factor * S / t`. Two limits bound it, and the lower one counts:

    every rank receives                (n-1)/n S, twice that in an all-reduce, S in a broadcast
        busbw <= V                     one domain
        busbw <= V + W                 several: the interfaces carry a part
        twice that                     an all-reduce whose scale-up switches add up (NVLS): every byte arrives once
    every domain receives              (n-g)/n S, twice that in an all-reduce
        busbw <= I (n-1) / (n-g)       all_reduce, all_gather, reduce_scatter, gather, scatter
        busbw <= I / g (n-1) / (n-g)   all_to_all: each rank has its own bytes for each other one
        busbw <= I                     broadcast, reduce, send_recv
        busbw <= 2 I (n-1) / n         an all-reduce whose switches between domains add up (SHARP): every byte once

Nothing is taken off for protocols, so that a true measurement never exceeds a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainworks.catalog.cluster import ClusterDescription

Operation = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send_recv",
]
NCCL_TESTS = "https://github.com/NVIDIA/nccl-tests (doc/PERFORMANCE.md)"
_WHOLE = ("broadcast", "reduce", "send_recv")
"""Operations whose bus bandwidth is their algorithm bandwidth."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit in base units, and how it follows from data sheets."""

    value: float
    formula: str
    source: str


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks of a collective on their links; one direction."""

    ranks: int
    domains: int
    rank_bytes_per_s: float
    """V."""
    domain_bytes_per_s: float = 0.0
    """I; without a meaning in one domain."""
    adds_inside: bool = False
    """The scale-up switches can add up (NVLS)."""
    adds_between: bool = False
    """The switches of the network can add up (SHARP)."""


def bus_factor(operation: Operation, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it.

    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    if operation in _WHOLE:
        return 1.0
    return (2 if operation == "all_reduce" else 1) * (ranks - 1) / ranks


def group_of(cluster: ClusterDescription, ranks: int, nodes: int) -> RankGroup:
    """Ranks, at least 2, that are divided equally over nodes of a cluster, one to an accelerator."""
    part, per_node = cluster.accelerator, ranks // nodes
    nodes_joined = max(1, cluster.scale_up_domain // cluster.accelerators_per_node)
    inside = min(ranks, per_node * nodes_joined)
    rate = max(cluster.scale_up_bytes_per_s, part.host_bytes_per_s)
    if part.pair_bytes_per_s and not part.scale_up.startswith("ICI"):  # a torus passes bytes on
        rate = min(rate, max(part.pair_bytes_per_s * (inside - 1), part.host_bytes_per_s))
    return RankGroup(
        ranks=ranks,
        domains=-(-ranks // inside),
        rank_bytes_per_s=rate,
        domain_bytes_per_s=cluster.node_bytes_per_s * inside / per_node,
        adds_inside=cluster.scale_up_reduction,
        adds_between=cluster.network == "InfiniBand",
    )


def busbw_bound(operation: Operation, group: RankGroup) -> Bound:
    """Largest bus bandwidth of a collective.

    >>> eight_a100 = RankGroup(ranks=8, domains=1, rank_bytes_per_s=300e9)
    >>> busbw_bound("all_reduce", eight_a100).value
    300000000000.0
    """
    n, each = group.ranks, group.ranks / group.domains
    several = group.domains > 1
    adds_inside = operation == "all_reduce" and group.adds_inside and each > 1
    inside = group.rank_bytes_per_s + (group.domain_bytes_per_s / each if several else 0.0)
    limits = [(inside * (2 if adds_inside else 1), f"{'2 ' if adds_inside else ''}{'(V + W)' if several else 'V'}")]
    if several:
        limits.append(_inter_domain_bound(operation, group, n, each))
    value, formula = min(limits)
    return Bound(value, f"busbw <= {formula}", NCCL_TESTS)


def _inter_domain_bound(operation: Operation, group: RankGroup, n: int, each: float) -> tuple[float, str]:
    rate = group.domain_bytes_per_s
    crossing = (n - 1) / (n - each)
    if operation in _WHOLE:
        return rate, "I"
    if operation == "all_to_all":
        return rate / each * crossing, "I/g (n-1)/(n-g)"
    if operation == "all_reduce" and group.adds_between:
        return rate * max(crossing, 2 * (n - 1) / n), "2 I (n-1)/n"
    return rate * crossing, "I (n-1)/(n-g)"
