"""Activations that a block keeps for its backward, by what the kernels of the software save.

Symbols: those of `compute`; r bytes of a value in the residual stream.
"""

from __future__ import annotations

import numpy as np

from trainworks.plan.layouts import Array, Layouts, Recompute
from trainworks.plan.parameters import (
    head_dims,
    mixer_values,
    num_attention_layers,
    num_dense_layers,
    num_expert_layers,
    num_sublayers,
)
from trainworks.plan.software import Software
from trainworks.record.model_shape import ModelShape


def element_bytes(precision: str) -> int:
    """Bytes of an activation: 4 in fp32 and tf32, which is fp32 but for its products; else 2, in 8 bits too."""
    return 4 if precision in ("fp32", "tf32") else 2


def has_casts(layouts: Layouts, precision: str, software: Software) -> Array:
    """1 where autocast makes 16-bit copies of weights and inputs: with 16-bit products, and without shards; else 0."""
    return np.where(layouts.zero > 0, 0.0, float(software.autocast and element_bytes(precision) == 2))


def recomputes_modules(shape: ModelShape, software: Software) -> bool:
    """Whether selective recomputation repeats what is cheap for its memory: norms, latent lifts, activation functions.

    Scores that a kernel never writes cannot be saved. Megatron-Core repeats these modules of models with experts
    instead (`recompute_modules: layernorm mla_up_proj moe_act`, NVIDIA-NeMo/Megatron-Bridge, perf_recipes). What is
    left are the latents, the output of the attention, and inputs of the experts' products and activation functions, in
    8 bits where the products are (`activation_func_fp8_input_store`; DeepSeek-V3, section 3.3.3).
    """
    return bool(shape.experts) and software.selective == "attention" and software.fused_attention


def stream_bytes(
    shape: ModelShape, layouts: Layouts, *, sequence_length: int, precision: str, software: Software
) -> Array:
    """The residual stream of one micro-batch on one rank: r b T h / c, / t with sequence parallelism.

    r is 4 under autocast, else the bytes of products.
    """
    r = np.maximum(element_bytes(precision), 4.0 * has_casts(layouts, precision, software))
    split = np.where(layouts.sequence_parallel > 0, layouts.tp, 1.0)
    return r * layouts.micro_batch * sequence_length / layouts.cp * shape.hidden / split


def activation_bytes(
    shape: ModelShape,
    layouts: Layouts,
    *,
    sequence_length: int,
    precision: str,
    software: Software,
    recompute: Recompute | None = None,
) -> Array:
    """Activations that one block keeps of one micro-batch for its backward, on one rank.

    Unfused, with dropout (Korthikanti et al. 2022, equation 2), per token in 16 bits: h (10 + 24 / t) + 5 H T / t, of
    which sequence parallelism splits the 10 h of norms and dropouts too.

    Otherwise, without dropout, per token:

        norms      2 r h, or `Software.norm_bytes` 2 h; / t with sequence parallelism
        inputs     2 e h of the projections after them, / t if they are gathered again; 5 e h or 4 e h under autocast,
                   where each product has a copy
        heads      e (2 H + 2 K + C) d / t of queries, keys, values, output and C copied heads, 4 H / t of the
                   log-sum-exp, and e H d / t more after Ulysses' exchange
        MLP        3 e f / t: gate, up and their product, and silu(gate) where that is a kernel of its own; 2 e f / t
                   without a gate, or where backward computes the product again (xformers, `silu_bw_fused`); 5 e f
                   where GELU is written out, 16 f under autocast
        experts    k (3 or 4 f + 2 h), and with kernels of their own h more, with an exchange 2 h more; with a capacity
                   times its factor
        text       e (2 H d + 2 H d S / T) / t of a cross-attention to S tokens: queries, output, keys and values
        gates      e h of each gated output of a diffusion transformer, all but cross-attention's, and where kernels
                   are not fused e h of its normalised input; / t with sequence parallelism
        mixers     e (3 i + 2 G N + H) / t: the outputs of the input projection and of the scan, whose kernel computes
                   the convolution, the states and the norm again (mamba_ssm, ssd_combined.py)

    Of a hybrid, each for the layers that have it: an average layer.

        zero bubble  the gradients of the outputs of all products, for the gradients of the weights later

    8-bit products keep their inputs in 8 bits. `full` recomputation keeps the block's input, `selective` what
    `Software.selective` says.

    Args:
        shape: the model.
        layouts: shape [n].
        sequence_length: tokens of a sequence.
        precision: of the products.
        software: of the run.
        recompute: of all layouts; by default their own.
    """
    e, t = element_bytes(precision), layouts.tp
    tokens = layouts.micro_batch * sequence_length / layouts.cp
    split = np.where(layouts.sequence_parallel > 0, t, 1.0)
    stream = stream_bytes(shape, layouts, sequence_length=sequence_length, precision=precision, software=software)
    attending, halves = num_attention_layers(shape) / shape.layers, num_sublayers(shape) / shape.layers
    norms = halves * stream
    fused = software.fuses(experts=bool(shape.experts))
    if shape.gated_mlp and software.norm_bytes and not (shape.experts and fused):
        norms = halves * software.norm_bytes * tokens * shape.hidden / split
    copies = np.where(has_casts(layouts, precision, software) > 0, 5.0 if shape.gated_mlp else 4.0, 2.0)
    inputs = copies * e * shape.hidden * (halves / 2)
    inputs = inputs / (1.0 if software.native or software.keeps_gathered else split)
    gated = halves - shape.diffusion.cross_layers / shape.layers if shape.diffusion else 0.0
    gates = (1.0 if fused else 2.0) * e * gated
    beside = (gates + (0.0 if software.fused_attention else 2.0)) * shape.hidden / split  # and dropouts
    query_dim, value_dim = head_dims(shape)
    of_queries, of_keys = attending * shape.heads, attending * shape.kv_heads
    heads = _mixing_bytes(shape, layouts, sequence_length, e, software)
    width, products = _mlp_widths(shape, layouts, fused and software.fused_gate, repeated=software.repeats_gate)
    mlp = e * width / t + _gelu_bytes(shape, layouts, precision, software)
    if precision in ("fp8", "fp4") and fused:
        inputs = inputs - halves * shape.hidden / split
        mlp = (
            mlp - (of_queries * value_dim + ((not software.repeats_gate) / 3 if shape.gated_mlp else 1 / 2) * width) / t
        )
    later = np.where(layouts.zero_bubble > 0, heads + e * (products / t + shape.hidden), 0.0) * software.native
    whole = norms + tokens * (inputs + beside + heads + mlp + later)
    projected = (of_queries * query_dim + of_keys * (query_dim + value_dim)) / t
    scores = 0.0 if software.fused_attention else (2 * e + 1.0) * tokens * sequence_length * of_queries / t
    kept = {
        "attention": norms + tokens * _without_modules(shape, heads, products / t, precision, t)
        if recomputes_modules(shape, software)
        else whole,
        "products": halves * stream + tokens * (heads + e * products / t + e * shape.hidden),
        "every second product": stream
        + tokens * e * ((2.0 * of_queries * value_dim + of_keys * query_dim + products / 2) / t + shape.hidden),
        "projections": stream + tokens * e * (shape.hidden + projected),
        "queries": stream + tokens * e * projected,
    }[software.selective]
    chosen = layouts.recompute if recompute is None else np.full(len(layouts), float(recompute))
    return np.where(chosen == Recompute.FULL, stream, np.where(chosen == Recompute.SELECTIVE, kept, whole + scores))


def _mixing_bytes(shape: ModelShape, layouts: Layouts, sequence_length: int, e: int, software: Software) -> Array:
    """Bytes per token of what attention and mixers take and give, on average over the blocks."""
    query_dim, value_dim = head_dims(shape)
    t = layouts.tp
    heads = e * ((shape.heads + shape.kv_heads) * (query_dim + value_dim) + software.copied_heads * value_dim) / t
    heads = heads + (4.0 * shape.heads / t if software.fused_attention else 0.0)
    if software.native:
        heads = heads + np.where(layouts.cp > 1, e * shape.heads * query_dim / t, 0.0)
    if (diffusion := shape.diffusion) is not None:
        crossing = 2.0 * e * query_dim * (1 + diffusion.text_tokens / sequence_length) + 4.0 * software.fused_attention
        heads = heads + diffusion.cross_layers / shape.layers * shape.heads * crossing / t
    return num_attention_layers(shape) / shape.layers * heads + e * mixer_values(shape) / t


def _without_modules(shape: ModelShape, heads: Array, products: Array, precision: str, tp: Array) -> Array:
    """Bytes per token that a block keeps beside its norms' inputs, see `recomputes_modules`."""
    e, latent = element_bytes(precision), shape.latent
    if latent and not shape.state_space:
        heads = e * (latent.query_rank + latent.kv_rank + shape.heads * latent.value_head_dim / tp)
    return heads + (1.0 if precision in ("fp8", "fp4") else e) * products


def _gelu_bytes(shape: ModelShape, layouts: Layouts, precision: str, software: Software) -> Array:
    """Bytes per token that a GELU of eight operations keeps beside its input and output."""
    if not software.writes_gelu or shape.gated_mlp or shape.experts:
        return np.zeros(len(layouts))
    per_value = 3.0 * element_bytes(precision) + 6.0 * has_casts(layouts, precision, software)
    kept: Array = per_value * shape.feed_forward / layouts.tp
    return kept


def _mlp_widths(shape: ModelShape, layouts: Layouts, fused: bool, *, repeated: bool) -> tuple[Array, Array]:
    """Values per token that the MLP keeps, on average over the blocks; of them, the outputs of its first products."""
    gates = 2.0 if shape.gated_mlp else 1.0
    kept = gates + (0.0 if shape.gated_mlp and repeated else 1.0 + float(shape.gated_mlp and not fused))
    dense, first = kept * shape.feed_forward, gates * shape.feed_forward
    ones = np.ones(len(layouts))
    share, rest = num_expert_layers(shape) / shape.layers, num_dense_layers(shape) / shape.layers
    if not shape.experts:
        return rest * dense * ones, rest * first * ones
    hidden = (2.0 * ones if fused else np.where(layouts.ep > 1, 5.0, 3.0)) * (shape.expert_latent or shape.hidden)
    copies = shape.experts_per_token * layouts.expert_rows
    routed = copies * (kept * shape.expert_feed_forward + hidden)
    routed_first = copies * (gates * shape.expert_feed_forward + (shape.expert_latent or shape.hidden))
    if not shape.state_space:
        rest = 1 - share
    width = share * (routed + kept * shape.shared_feed_forward) + rest * dense
    products = share * (routed_first + gates * shape.shared_feed_forward) + rest * first
    return width, products * ones
