"""Time of a collective, from the links its ranks share.

Symbols: n ranks of the group, g of them in one scale-up domain or node, S bytes of the buffer each rank contributes
(all-reduce) or ends up with (gather, scatter), a latency, B bytes per second per rank.

    T = a + t + 2 c sqrt(a t)

is an alpha-beta line plus the cost of filling a pipeline of chunks: with k chunks the time is (a k + t)(1 + 1/k), and
the best k gives the square root. `c` is `Coefficients.pipelining`, inside a domain `pipelining_inside`. The transfer t
is the slower of two:

    inside a domain     2(n-1)/n S / B  all-reduce,  (n-1)/n S / B  gather and scatter,  (g-1)/n S / B  all-to-all
    between N domains   2(N-1)/N S / I  all-reduce (trees, one rank per domain),  (n-1)/n S / I  gather and scatter
                        (rings),  (n-g)/n S / (I / g)  all-to-all;  S / I  all-reduce where switches add up (SHARP)

where I is the rate of the domain's interfaces that a group has: with g of the domain's G ranks in it, G/g groups are
busy at the same time, and each has g/G of them, regardless of the port next to a rank. A domain is a node, or several
on an NVL72. If links join pairs of devices without a switch, a group has a share of B: (g-1)/(G-1) where all pairs are
joined. The latency a covers the start, a ring's steps inside, and a tree's levels outside.

An all-to-all of tokens sends a copy for each of a token's k experts. DeepEP and HybridEP send one to each domain that
has any of them, whose ranks pass it on (deepseek-ai/DeepEP, README). Of Q groups of experts a token chooses q first
(node-limited routing, DeepSeek-V3, section 2.1.2; Q = q = 1 without it). With uniform choices, of N equal parts of the
experts,

    c = N (1 - (1 - q/Q)^max(1, Q/N))    are left open by a token's groups
    r = c (1 - (1 - 1/c)^k)              have one of its experts

so that S r (1 - 1/N) crosses between N domains, and S r (1 - 1/g) between the g ranks inside one, r that of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from trainworks.plan.coefficients import LinkFactors
from trainworks.plan.layouts import Array
from trainworks.record.model_shape import ModelShape

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]

_IN_SWITCH_S = 17e-6
"""Latency of a small collective inside a domain whose switches add up. Set to: all-reduces of 8 H100
(benchmarks/data/collectives.csv)."""


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Link rates and sizes of a cluster, as collectives see them; one direction, per rank or per node as named."""

    ranks_per_node: int
    domain: int
    """Ranks that reach each other over the scale-up link, or over the host's bus where there is none."""
    scale_up_bytes_per_s: float
    """Per rank, what a ring reaches."""
    in_switch_gain: float
    """Factor on the all-reduce of a whole domain whose switches add up (NVLS); 1 without."""
    shares: tuple[float, ...]
    """Share of that rate inside a group of 1, 2, ... ranks of a domain whose links join pairs; empty: all of it."""
    start_s: float
    """Latency of a small collective inside a domain: the start of a ring."""
    hop_s: float
    """Latency of a ring's step inside a domain."""
    node_bytes_per_s: float
    """All interfaces of a node together, what rings reach."""
    scale_out_latency_s: float
    message_gain: float
    """Rate of a message between two nodes over that of a ring; 1 where rings keep it."""
    in_network: bool
    """True if the network's switches add up (SHARP): every byte of an all-reduce leaves a domain once."""
    pipelining: float
    pipelining_inside: float
    pipelining_in_switch: float
    """The same of an all-reduce that the switches of a domain add up."""
    copied_bytes_per_s: float = np.inf
    """Rate at which gathered, scattered and exchanged messages are copied out of a flat buffer."""
    scatters_whole: bool = False
    """True if a reduction to shards is an all-reduce of which each rank keeps its part (gloo)."""
    in_switch_s: float = _IN_SWITCH_S

    def corrected(self, by: LinkFactors) -> LinkRates:
        """The links with the latencies, rates and fillings that collectives measured."""
        return replace(
            self,
            scale_up_bytes_per_s=self.scale_up_bytes_per_s / by.scale_up,
            start_s=self.start_s * by.scale_up_latency,
            hop_s=self.hop_s * by.scale_up_latency,
            in_switch_s=self.in_switch_s * by.scale_up_latency,
            pipelining_inside=self.pipelining_inside * by.scale_up_filling,
            pipelining_in_switch=self.pipelining_in_switch * by.scale_up_filling,
            node_bytes_per_s=self.node_bytes_per_s / by.scale_out,
            scale_out_latency_s=self.scale_out_latency_s * by.scale_out_latency,
            pipelining=self.pipelining * by.scale_out_filling,
        )

    def share_inside(self, ranks: Array) -> Array:
        """Share of the scale-up rate that groups of so many ranks of one domain have; shape [n]."""
        shares = np.array(self.shares or (1.0,))
        at: Array = shares[np.clip(ranks, min(2, len(shares)), len(shares)).astype(np.intp) - 1]
        return at


def collective_s(kind: Collective, size_bytes: Array, ranks: Array, stride: Array, links: LinkRates) -> Array:
    """Seconds of one collective; 0 for one rank.

    Args:
        kind: which one.
        size_bytes: S, shape [n].
        ranks: members of the group.
        stride: distance of neighbouring members in the order of ranks: 1 for the innermost axis, the product of
            the degrees inside it for any other. Members within a domain are `domain / stride`.
        links: the links.
    """
    if (ranks <= 1).all():
        return np.zeros(len(ranks))
    copied_s = 0.0 if kind == "all_reduce" else size_bytes / links.copied_bytes_per_s
    if kind == "reduce_scatter" and links.scatters_whole:
        kind = "all_reduce"
    inside = np.clip(links.domain / stride, 1, ranks)
    domains = np.ceil(ranks / inside)
    crosses = domains > 1
    in_switch = (inside >= 4) & (links.in_switch_gain > 1)
    gain = np.where(in_switch, links.in_switch_gain, 1.0) if kind == "all_reduce" else 1.0
    up = links.scale_up_bytes_per_s * gain
    up = up * links.share_inside(inside)
    interface = np.maximum(links.node_bytes_per_s, 1.0) / links.ranks_per_node
    if kind == "all_reduce":
        crossings = 1.0 if links.in_network else 2 * (domains - 1) / domains
        within, between = 2 * (ranks - 1) / ranks / up, crossings / (interface * inside)
    elif kind == "all_to_all":
        within, between = (inside - 1) / ranks / up, (ranks - inside) / ranks / interface
    else:
        within, between = (ranks - 1) / ranks / up, (ranks - 1) / ranks / (interface * inside)
    transfer = size_bytes * np.where(crosses, np.maximum(within, between), within)
    latency = np.where(crosses, links.scale_out_latency_s * np.log2(np.maximum(2.0, domains)), 0.0)
    steps = (inside - 1) * (2.0 if kind == "all_reduce" else 1.0)
    ring = links.start_s + steps * links.hop_s
    latency = latency + np.where(inside > 1, np.where(in_switch, links.in_switch_s, ring), 0.0)
    added = links.pipelining_in_switch if kind == "all_reduce" else links.pipelining_inside
    filling = np.where(crosses, links.pipelining, np.where(in_switch, added, links.pipelining_inside))
    total = copied_s + latency + transfer + 2 * filling * np.sqrt(latency * transfer)
    return np.where(ranks > 1, total, 0.0)


def exchange_s(shape: ModelShape, token_bytes: Array, ranks: Array, links: LinkRates, *, by_domain: bool) -> Array:
    """Seconds of one exchange, to the experts or back; 0 for one rank.

    Args:
        shape: the model, with experts.
        token_bytes: S, shape [n].
        ranks: neighbours that share the experts.
        links: the links.
        by_domain: whether a domain gets one copy of a token, by kernels that stream; else each expert does.
    """
    ones = np.ones(len(ranks))
    if not by_domain:
        return collective_s("all_to_all", shape.experts_per_token * token_bytes, ranks, ones, links)
    inside = np.clip(links.domain, 1, ranks)
    domains = np.ceil(ranks / inside)
    up = links.scale_up_bytes_per_s * links.share_inside(inside)
    within = parts_reached(shape, ranks) * (1 - 1 / inside) / up
    interface = np.maximum(links.node_bytes_per_s, 1.0) / links.ranks_per_node
    between = parts_reached(shape, domains) * (1 - 1 / domains) / interface
    crossing = np.where(domains > 1, np.maximum(within, between), within)
    seconds: Array = token_bytes * crossing + collective_s("all_to_all", 0 * token_bytes, ranks, ones, links)
    return seconds


def parts_reached(shape: ModelShape, parts: Array) -> Array:
    """Parts r of the experts, of N equal ones, that one token meets on average; N in `parts`, shape [n]."""
    closed = 1 - shape.groups_per_token / shape.expert_groups
    left = np.maximum(1.0, parts * (1 - closed ** np.maximum(1.0, shape.expert_groups / parts)))
    return left * (1 - (1 - 1 / left) ** shape.experts_per_token)


def point_to_point_s(size_bytes: Array, stride: Array, stages: Array, links: LinkRates) -> Array:
    """Seconds to send S bytes to the next stage where that is farthest.

    Stages lie `stride` ranks apart. Where they do not all fit into one domain, some neighbours are in different ones,
    and the ranks of a stage on one node share its interfaces.

    Args:
        size_bytes: S, of each rank.
        stride: ranks of one stage.
        stages: of the pipeline.
        links: the links.
    """
    inside = stride * stages <= links.domain
    sharing = np.minimum(stride, links.ranks_per_node)
    neighbour = links.scale_up_bytes_per_s * (links.shares[1] if links.shares else 1.0)
    rate = np.where(inside, neighbour, links.message_gain * links.node_bytes_per_s / sharing)
    latency = np.where(inside, links.start_s / 3, links.scale_out_latency_s / 3)
    return latency + size_bytes / np.maximum(rate, 1.0)
