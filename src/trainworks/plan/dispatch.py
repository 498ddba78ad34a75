"""Time to send tokens to the ranks of their experts and back.

Symbols: k experts per token; G groups of experts, of which a token chooses g first (node-limited routing, DeepSeek-AI
2024, section 2.1.2; G = g = 1 without it); S bytes of a rank's tokens.

An all-to-all sends a copy of a token for each expert. DeepEP and HybridEP send one to each domain that has any of them,
whose ranks pass it on (deepseek-ai/DeepEP, README). With uniform choices, of N equal parts of the experts,

    c = N (1 - (1 - g/G)^max(1, G/N))    are left open by a token's groups
    r = c (1 - (1 - 1/c)^k)              have one of its experts

so that S r (1 - 1/N) crosses between N domains, and S r (1 - 1/n) between the n ranks inside one, r that of all ranks.
"""

from __future__ import annotations

import numpy as np

from trainworks.plan.collectives import LinkRates, collective_s
from trainworks.plan.layouts import Array
from trainworks.record.model_shape import ModelShape


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
    within = parts_reached(shape, ranks) * (1 - 1 / inside) / links.scale_up_bytes_per_s
    between = parts_reached(shape, domains) * (1 - 1 / domains) / links.node_bytes_per_s * links.ranks_per_node
    crossing = np.where(domains > 1, np.maximum(within, between), within)
    seconds: Array = token_bytes * crossing + collective_s("all_to_all", 0 * token_bytes, ranks, ones, links)
    return seconds


def parts_reached(shape: ModelShape, parts: Array) -> Array:
    """Parts r of the experts, of N equal ones, that one token meets on average; N in `parts`, shape [n]."""
    closed = 1 - shape.groups_per_token / shape.expert_groups
    left = np.maximum(1.0, parts * (1 - closed ** np.maximum(1.0, shape.expert_groups / parts)))
    return left * (1 - (1 - 1 / left) ** shape.experts_per_token)
