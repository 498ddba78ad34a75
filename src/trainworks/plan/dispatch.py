"""Time to send tokens to the ranks of their experts and back.

Symbols: k experts per token, E experts in G groups of which a token chooses g first (node-limited routing, DeepSeek-AI
2024, section 2.1.2; G = g = 1 without it), n ranks that share them, S bytes of a rank's tokens.

An all-to-all sends a copy of a token for each of its k experts. DeepEP and HybridEP send one to each domain that has
any of them, where the ranks pass it on over the scale-up link (deepseek-ai/DeepEP, README). With uniform choices a
token meets, of N equal parts of the experts,

    c = N (1 - (1 - g/G)^max(1, G/N))        parts that its groups leave open
    r = c (1 - (1 - 1/c)^k)                  parts that have one of its experts

so that S r (1 - 1/N) leaves a domain, N the domains, and S r reaches the ranks inside, N the ranks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainworks.plan.collectives import LinkRates, collective_s
from trainworks.plan.layouts import Array
from trainworks.record.model_shape import ModelShape


def exchange_s(
    shape: ModelShape, token_bytes: Array, ranks: Array, links: LinkRates, *, once_per_domain: bool
) -> Array:
    """Seconds of one exchange, to the experts or back; 0 for one rank.

    Args:
        shape: the model, with experts.
        token_bytes: S, shape [n].
        ranks: n, neighbours in the order of ranks.
        links: the links.
        once_per_domain: whether a domain gets one copy of a token, or each expert.
    """
    copies, ones = shape.experts_per_token, np.ones(len(ranks))
    sent: tuple[Array, Array] = (ones, ones)
    if once_per_domain:  # kernels that stream have no pipeline of chunks to fill
        links = replace(links, pipelining=0.0, pipelining_inside=0.0)
        domains = np.ceil(ranks / np.clip(links.domain, 1, ranks))
        sent = (domains * parts_reached(shape, ranks) / copies, parts_reached(shape, domains) / copies)
    return collective_s("all_to_all", copies * token_bytes, ranks, ones, links, sent=sent)


def parts_reached(shape: ModelShape, parts: Array) -> Array:
    """Parts r of the experts, of N equal ones, that one token meets on average.

    Args:
        shape: the model, with experts.
        parts: N, shape [n].
    """
    left = 1 - shape.groups_per_token / shape.expert_groups
    per_part = np.maximum(1.0, shape.expert_groups / parts)
    open_parts = np.maximum(1.0, parts * (1 - left**per_part))
    return open_parts * (1 - (1 - 1 / open_parts) ** shape.experts_per_token)
