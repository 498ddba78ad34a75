"""Time of a collective, from who shares which link.

Symbols: n ranks of the group, g of them in one scale-up domain or node, S bytes of the buffer each rank contributes
(all-reduce) or ends up with (gather, scatter), a latency, B bytes per second per rank.

    T = a + t + 2 c sqrt(a t),  t = share(n) * S / B

is an alpha-beta line plus the cost of filling a pipeline of chunks: with k chunks the time is (a k + t)(1 + 1/k), and
the best k gives the square root. `c` is `Coefficients.pipelining`. Shares: all-reduce 2(n-1)/n, gather and scatter
(n-1)/n, all-to-all (n-1)/n.

A ring that leaves a scale-up domain (a node, or several on an NVL72) passes the domain's interfaces once; where g of
its G ranks are in the group, G/g groups are busy at the same time: a group has g/G of the domain's interfaces, whatever
single port a rank sits next to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainworks.catalog.cluster import ClusterDescription
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.layouts import Array

__all__ = ["Collective", "Fabric", "collective_s", "fabric_of", "point_to_point_s"]

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]

_SCALE_UP_LATENCY_S = {"NVLink2": 55e-6, "NVLink3": 45e-6}
_LATENCY_S = {"InfiniBand": 35e-6, "RoCE": 45e-6, "EFA": 65e-6, "Omni-Path": 60e-6}


@dataclass(frozen=True, slots=True)
class Fabric:
    """What collectives need to know of a cluster; one direction, per rank or per node as named."""

    ranks_per_node: int
    domain: int
    """Ranks that reach each other over the scale-up link, or over the host's bus where there is none."""
    scale_up_bytes_per_s: float
    """Per rank, what a ring reaches."""
    in_switch_gain: float
    """Factor on the all-reduce of a whole domain whose switches add up (NVLS); 1 without."""
    scale_up_latency_s: float
    node_bytes_per_s: float
    """All interfaces of a node together, what rings reach."""
    scale_out_latency_s: float
    pipelining: float


def fabric_of(cluster: ClusterDescription, coefficients: Coefficients = COEFFICIENTS) -> Fabric:
    """The reachable rates of a cluster's links.

    Without a scale-up link ranks of a node talk over the host's bus. Latencies are of a whole small collective, by
    generation of the link (NVLink 2 and 3, then switches that add up) and by kind of network.
    """
    accelerator = cluster.accelerator
    up = cluster.scale_up_bytes_per_s or accelerator.host_bytes_per_s / 2
    generation = accelerator.scale_up[:7]
    return Fabric(
        ranks_per_node=cluster.accelerators_per_node,
        domain=max(cluster.scale_up_domain, cluster.accelerators_per_node),
        scale_up_bytes_per_s=up * coefficients.scale_up_share,
        in_switch_gain=1.32 if cluster.scale_up_reduction else 1.0,
        scale_up_latency_s=_SCALE_UP_LATENCY_S.get(generation, 17e-6),
        node_bytes_per_s=cluster.node_bytes_per_s * coefficients.scale_out_share,
        scale_out_latency_s=_LATENCY_S.get(cluster.network, 60e-6),
        pipelining=coefficients.pipelining,
    )


def collective_s(kind: Collective, size_bytes: Array, ranks: Array, stride: Array, fabric: Fabric) -> Array:
    """Seconds of one collective; 0 for one rank.

    Args:
        kind: which one.
        size_bytes: S, shape [n].
        ranks: members of the group.
        stride: distance of neighbouring members in the order of ranks: 1 for the innermost axis, the product of
            the degrees inside it for any other. Members within a domain are `domain / stride`.
        fabric: the links.
    """
    inside = np.clip(fabric.domain / stride, 1, ranks)
    crosses = ranks > inside
    share = (2.0 if kind == "all_reduce" else 1.0) * (ranks - 1) / ranks
    reduced_in_switches = (inside == ranks) & (ranks >= 4) & (kind == "all_reduce")
    up = fabric.scale_up_bytes_per_s * np.where(reduced_in_switches, fabric.in_switch_gain, 1.0)
    out = fabric.node_bytes_per_s / fabric.ranks_per_node * inside
    rate = np.where(crosses, np.minimum(up, out), up)
    if kind == "all_to_all":
        rate = _all_to_all_rate(ranks, inside, up, fabric.node_bytes_per_s / fabric.ranks_per_node)
    nodes = np.maximum(2.0, ranks / inside)
    latency = np.where(crosses, fabric.scale_out_latency_s * np.log2(nodes), 0.0)
    latency = latency + np.where(inside > 1, fabric.scale_up_latency_s, 0.0)
    transfer = share * size_bytes / rate
    total = latency + transfer + 2 * fabric.pipelining * np.sqrt(latency * transfer)
    return np.where(ranks > 1, total, 0.0)


def _all_to_all_rate(ranks: Array, inside: Array, up: Array | float, nic_bytes_per_s: float) -> Array:
    """Of the bytes a rank sends, (n - i)/(n - 1) leave its domain through its share of the interfaces."""
    others = np.maximum(ranks - 1, 1)
    leaving, staying = (ranks - inside) / others, (inside - 1) / others
    per_byte = np.maximum(leaving / nic_bytes_per_s, staying / up)
    return 1.0 / np.maximum(per_byte, 1e-30)


def point_to_point_s(size_bytes: Array, stride: Array, fabric: Fabric) -> Array:
    """Seconds to send S bytes to the neighbour at distance `stride`, all ranks of a node sending at once."""
    inside = stride < fabric.domain
    rate = np.where(inside, fabric.scale_up_bytes_per_s, fabric.node_bytes_per_s / fabric.ranks_per_node)
    latency = np.where(inside, fabric.scale_up_latency_s / 4, fabric.scale_out_latency_s / 4)
    return latency + size_bytes / rate
