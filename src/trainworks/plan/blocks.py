"""Work of one transformer block on one rank: products, traffic and kernels, and the time they take.

Symbols as in `compute`; E experts, k experts per token, T sequence length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainworks.plan.activations import has_casts, recomputes_modules
from trainworks.plan.collectives import parts_reached
from trainworks.plan.compute import DeviceRates, Product, product_s, products_s, traffic_s, with_launches
from trainworks.plan.flops import scan_flops_per_token
from trainworks.plan.layouts import Array, Layouts, Recompute
from trainworks.plan.parameters import head_dims, mixer_bytes, num_attention_layers, num_dense_layers, num_expert_layers
from trainworks.plan.software import Software
from trainworks.record.model_shape import ModelShape

_VOCABULARY_PADDING = 128
"""Columns of the output matrix are padded to a multiple of this on every rank. Source: Megatron-LM, the default of
`--make-vocab-size-divisible-by`."""
_AUTOCAST_BYTES = 2.0
"""Element-wise bytes under autocast over those of a 16-bit program. Count: of a norm 14 for 4 per value, of a
residual addition 10 for 6, of softmax with dropout 25 for 13; activations and transposed heads keep their 16 bits."""
_GELU_BYTES = (36.0, 34.0)
"""Bytes that one value moves through eight operations forward, and more under autocast, whose power is in fp32. Count:
`gelu_new` of transformers, 0.5 x (1 + tanh(c (x + 0.044715 x^3)))."""
_KERNELS = (24, 44)
"""Launched by one dense block forward and backward: norms, products, attention, rotations, residuals, casts. Assumed:
no program's were counted; what decides is their product with `launch_s`, which is fitted."""
_KERNELS_EAGER = {False: (33, 44), True: (49, 76)}
"""The same where every operation is a kernel, of plain blocks and of those with RMSNorm, rotations and gates. Count:
the operations but views of GPT-2's and Llama's blocks in transformers, with PyTorch 2.13."""
_LAUNCHES_EAGER_FP8 = (26, 51)
"""What a linear layer of torchao's fp8 costs the host in eager mode, forward and backward, in launches: scales, casts,
and a tensor class of Python around them. Set to: one run on an H100 (benchmarks/RESULTS.md)."""
_KERNELS_EXPERT = 30
"""More of a block with experts: routing, sorting, permuting; forward and backward alike. Assumed: with 44
published step times are predicted as well, with none 0.2 % worse."""


_Part = Literal["attention", "cross", "mixer", "mlp", "experts"]


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Seconds of one block and micro-batch, averaged over the blocks of the model; shape [n]."""

    forward_s: Array
    backward_s: Array
    recomputed_s: Array
    """Forward work that backward does again."""

    @property
    def total_s(self) -> Array:
        """Forward and backward."""
        return self.forward_s + self.backward_s + self.recomputed_s

    def take(self, chosen: NDArray[np.intp]) -> BlockTimes:
        """The times at these positions."""
        return BlockTimes(self.forward_s[chosen], self.backward_s[chosen], self.recomputed_s[chosen])


@dataclass(frozen=True, slots=True)
class HeadTimes:
    """Seconds of what the first and the last stage do besides blocks, per micro-batch."""

    embedding_s: Array
    output_s: Array
    """Logits and loss, forward and backward."""

    def take(self, chosen: NDArray[np.intp]) -> HeadTimes:
        """The times at these positions."""
        return HeadTimes(self.embedding_s[chosen], self.output_s[chosen])


@dataclass(frozen=True, slots=True)
class _Block:
    """A block, or a part of one, whose work is counted, on each rank of these layouts."""

    shape: ModelShape
    layouts: Layouts
    sequence_length: int
    device: DeviceRates
    software: Software
    parts: frozenset[_Part]

    @property
    def tokens(self) -> Array:
        """M: tokens of a micro-batch on this rank."""
        return _tokens(self.layouts, self.sequence_length)


def block_times(
    shape: ModelShape, layouts: Layouts, *, sequence_length: int, device: DeviceRates, software: Software
) -> BlockTimes:
    """Forward, backward and recomputation of one block.

    Backward does each product twice: the gradient of the input [m, n] x [n, k] and of the weight [k, m] x [m, n].
    Recomputation repeats the whole forward (full), or what lies between the projections (selective); in a
    PyTorch-native program selective recomputation repeats chosen operations, `selective_share` of the forward.
    The parts of a hybrid's layers are taken one by one, and a cross-attention is one. A layer of two streams takes the
    time of one over all tokens.
    """
    dense, routed = num_dense_layers(shape), num_expert_layers(shape)
    parts: list[tuple[int, frozenset[_Part]]] = [
        (dense, frozenset({"attention", "mlp"})),
        (routed, frozenset({"attention", "experts"})),
    ]
    if shape.state_space is not None:
        parts = [
            (shape.state_space.layers, frozenset({"mixer"})),
            (num_attention_layers(shape), frozenset({"attention"})),
            (dense, frozenset({"mlp"})),
            (routed, frozenset({"experts"})),
        ]
    if shape.diffusion is not None:
        parts += [(shape.diffusion.cross_layers, frozenset({"cross"}))]
    kinds = [
        (count / shape.layers, _one_kind(_Block(shape, layouts, sequence_length, device, software, each)))
        for count, each in parts
        if count
    ]
    return BlockTimes(
        forward_s=sum((share * kind.forward_s for share, kind in kinds), np.zeros(len(layouts))),
        backward_s=sum((share * kind.backward_s for share, kind in kinds), np.zeros(len(layouts))),
        recomputed_s=sum((share * kind.recomputed_s for share, kind in kinds), np.zeros(len(layouts))),
    )


def _one_kind(block: _Block) -> BlockTimes:
    layouts, device, software = block.layouts, block.device, block.software
    products = _block_products(block)
    forward, backward = products_s(products, device)
    core_forward, core_backward = _core_s(block)
    traffic = traffic_s(_block_bytes(block), device)
    if device.casts and software.framework != "megatron":  # which keeps the weights of a step in 8 bits
        weights = np.zeros(len(layouts))
        for product in products:
            weights = weights + product.columns * product.depth * product.batch
        traffic = traffic + traffic_s(_cast_bytes(device, software) * weights, device)
    forward = forward + core_forward + traffic
    backward = backward + core_backward + traffic * device.coefficients.backward_bytes
    launched_forward, launched_backward = _launches(block)
    forward = with_launches(forward, launched_forward, device)
    if recomputes_modules(block.shape, software):
        core_forward = _modules_s(block)
    selective = {
        "attention": core_forward,
        "products": device.coefficients.selective_share * forward,
        "every second product": 0.5 * (forward - core_forward) + 0.5 * traffic,
        "projections": device.coefficients.projections_share * forward,
        "queries": device.coefficients.projections_share * forward,
    }[software.selective]
    whole = forward
    # the gradients of a router need the last products of its experts, and the MLP is what a block ends with
    if not {"experts", "cross"} & block.parts and not software.repeats_last:
        whole = forward - products_s(products[-1:], device)[0]
    is_selective = layouts.recompute == Recompute.SELECTIVE
    again = np.where(layouts.recompute == Recompute.FULL, whole, np.where(is_selective, selective, 0.0))
    return BlockTimes(forward, with_launches(backward, launched_backward, device), again)


def _block_products(block: _Block) -> list[Product]:
    shape, layouts, sequence_length, parts = block.shape, block.layouts, block.sequence_length, block.parts
    products = [*_attention_products(shape, layouts, sequence_length)] if "attention" in parts else []
    if (diffusion := shape.diffusion) is not None and diffusion.modulation and "mlp" in parts:
        outputs = diffusion.modulation / shape.layers / shape.hidden
        products = [Product(layouts.micro_batch, outputs, shape.hidden), *products]
    if diffusion is not None and "cross" in parts:  # every rank of cp has the keys and values of all text
        text, width = diffusion.text_tokens, shape.heads * shape.head_dim
        products += [Product(block.tokens, width / layouts.tp, shape.hidden)]
        products += [Product(layouts.micro_batch * text, 2 * width / layouts.tp, shape.hidden)]
        products += [Product(block.tokens, shape.hidden, width / layouts.tp)]
    if (mixer := shape.state_space) is not None and "mixer" in parts:  # tp cuts its heads and groups
        products += [Product(block.tokens, mixer.projected / layouts.tp, shape.hidden)]
        products += [Product(block.tokens, shape.hidden, mixer.inner / layouts.tp)]
    if "experts" in parts:
        return products + _expert_products(shape, layouts, sequence_length, block.device.coefficients.routed_share)
    return products + (_mlp_products(shape, layouts, sequence_length, shape.feed_forward) if "mlp" in parts else [])


def _core_s(block: _Block) -> tuple[Array, Array]:
    """What is computed between the projections: attention, or a mixer's scan, at the rate of attention over a chunk."""
    shape, layouts, device = block.shape, block.layouts, block.device
    if "attention" in block.parts:
        return _attention_core_s(block, keys=block.sequence_length)
    if shape.diffusion is not None and "cross" in block.parts:
        return _attention_core_s(block, keys=shape.diffusion.text_tokens)
    if (mixer := shape.state_space) is None or "mixer" not in block.parts:
        return np.zeros(len(layouts)), np.zeros(len(layouts))
    flops = block.tokens / layouts.tp * scan_flops_per_token(shape) / mixer.layers
    if device.measured_attention_flops_per_s is not None:
        return flops / device.measured_attention_flops_per_s, 2.0 * flops / device.measured_attention_flops_per_s
    rates = device.attention_rates(mixer.head_dim, mixer.chunk, causal=False)
    return flops / rates[0], 2.5 * flops / rates[1]  # backward computes a chunk's scores again


def _launches(block: _Block) -> tuple[Array, Array]:
    """Kernels of one block that the host launches, forward and backward; shape [n] each. A part alone has half, and
    each of two streams its own.

    Transformer Engine's GroupedLinear launches two products of each local expert forward and four backward, in 8 and 4
    bits with a cast each.
    """
    shape, layouts, device, software = block.shape, block.layouts, block.device, block.software
    experts, share = "experts" in block.parts, len(block.parts) / 2
    fused = software.fuses(experts=experts)
    if shape.diffusion is not None and "mlp" in block.parts:
        share += shape.diffusion.text_layers / shape.layers
    forward, backward = _KERNELS if fused else _KERNELS_EAGER[_has_rotations(shape)]
    if software.framework == "torch" and not fused and device.is_queued and device.precision == "fp8" and not experts:
        linear_layers = 7 if shape.gated_mlp else 6
        forward += linear_layers * _LAUNCHES_EAGER_FP8[0]
        backward += linear_layers * _LAUNCHES_EAGER_FP8[1]
    extra = share * np.where(layouts.tp > 1, software.distributed_operations / 2, 0.0) + experts * _KERNELS_EXPERT
    grouped = 2.0 * (1 + (device.precision in ("fp8", "fp4"))) * shape.experts / layouts.ep
    grouped = grouped * (experts and software.framework == "megatron")
    return share * forward + extra + grouped, share * backward + extra + 2 * grouped


def _tokens(layouts: Layouts, sequence_length: int) -> Array:
    """M: tokens of a micro-batch on this rank."""
    return layouts.micro_batch * sequence_length / layouts.cp


def _attention_products(shape: ModelShape, layouts: Layouts, sequence_length: int) -> Iterator[Product]:
    tokens, hidden, t = _tokens(layouts, sequence_length), shape.hidden, layouts.tp
    if shape.latent is None:
        width, kv_width = shape.heads * shape.head_dim, np.maximum(shape.kv_heads, t) * shape.head_dim
        yield Product(tokens, (width + 2 * kv_width) / t, hidden)
        yield Product(tokens, hidden, width / t)
        return
    latent = shape.latent
    if latent.query_rank:
        yield Product(tokens, latent.query_rank, hidden)
    yield Product(tokens, latent.kv_rank + latent.rope_head_dim, hidden)
    yield from _latent_lifts(shape, layouts, sequence_length)
    yield Product(tokens, hidden, shape.heads * latent.value_head_dim / t)


def _latent_lifts(shape: ModelShape, layouts: Layouts, sequence_length: int) -> Iterator[Product]:
    """Queries, keys and values of all heads from their latent ranks."""
    if shape.latent is not None:
        tokens, latent, heads = _tokens(layouts, sequence_length), shape.latent, shape.heads / layouts.tp
        yield Product(tokens, heads * (latent.nope_head_dim + latent.rope_head_dim), latent.query_rank or shape.hidden)
        yield Product(tokens, heads * (latent.nope_head_dim + latent.value_head_dim), latent.kv_rank)


def _modules_s(block: _Block) -> Array:
    """What is computed again of norms, latent lifts and the experts' activation functions; see `recomputes_modules`."""
    shape, layouts, device, parts = block.shape, block.layouts, block.device, block.parts
    split, experts = np.where(layouts.sequence_parallel > 0, layouts.tp, 1.0), "experts" in parts
    norms = 2 * len(parts) * shape.hidden / split
    values = norms + experts * (3 if shape.gated_mlp else 2) * _mlp_width(shape, layouts)
    moved_s = traffic_s(device.element_bytes * block.tokens * values, device)
    lifts = [*_latent_lifts(shape, layouts, block.sequence_length)] if "attention" in parts else []
    return moved_s + products_s(lifts, device)[0] if lifts else moved_s


def _mlp_width(shape: ModelShape, layouts: Layouts) -> Array:
    """Values per token inside of the routed and shared experts of a block."""
    routed = layouts.expert_rows * shape.experts_per_token * shape.expert_feed_forward
    return (routed + shape.shared_feed_forward) / layouts.tp


def _mlp_products(shape: ModelShape, layouts: Layouts, sequence_length: int, width: int) -> list[Product]:
    tokens, hidden, t = _tokens(layouts, sequence_length), shape.hidden, layouts.tp
    up = (2 if shape.gated_mlp else 1) * width / t
    return [Product(tokens, up, hidden), Product(tokens, hidden, width / t)]


def _expert_products(shape: ModelShape, layouts: Layouts, sequence_length: int, share: float) -> list[Product]:
    """Routed tokens are k M / t per rank for any ep; they meet E / ep experts. tp does not cut experts."""
    routed = _tokens(layouts, sequence_length) * shape.experts_per_token / layouts.tp
    local = shape.experts / layouts.ep
    rows, hidden, width = routed / local, shape.expert_latent or shape.hidden, shape.expert_feed_forward
    products = [
        Product(rows, (2 if shape.gated_mlp else 1) * width, hidden, local, share),
        Product(rows, hidden, width, local, share),
    ]
    if shape.expert_latent:  # down and up again, of a token once
        tokens, latent = _tokens(layouts, sequence_length) / layouts.tp, shape.expert_latent
        products += [Product(tokens, latent, shape.hidden), Product(tokens, shape.hidden, latent)]
    if shape.shared_feed_forward:
        products += _mlp_products(shape, layouts, sequence_length, shape.shared_feed_forward)
    return products


def _attention_core_s(block: _Block, *, keys: int) -> tuple[Array, Array]:
    """Scores and their product with the values, forward and backward.

    FLOPs 2 b T (T / cp) (d_qk + d_v) H / t, with the keys of a cross-attention instead of the first T, half when
    causal and fused; backward 2.5 times (fused, which computes the scores again) or 2 times. Unfused, the scores
    [b, H / t, T, T] pass through memory: written by the product, read and written by softmax and dropout, read by the
    next product: 13 bytes each in 16 bits with dropout's mask, 9 with a fused scale-mask-softmax.
    """
    shape, layouts, length, device = block.shape, block.layouts, block.sequence_length, block.device
    query_dim, value_dim = head_dims(shape)
    pairs = layouts.micro_batch * keys * (length / layouts.cp)
    heads = shape.heads / layouts.tp
    flops = 2.0 * pairs * heads * (query_dim + value_dim)
    if device.measured_attention_flops_per_s is not None:
        forward = flops / device.measured_attention_flops_per_s
        return forward, 2.0 * forward
    if block.software.fused_attention:
        rates = device.attention_rates((query_dim + value_dim) / 2, keys, causal=shape.causal)
        # Half of the token pairs when causal, and a band of them, or of chunks half, in layers with a window.
        full = 0.5 if shape.causal else 1.0
        banded = shape.window_layers / shape.layers if shape.window else 0.0
        band = shape.window * (full if shape.chunked else 1.0) / length
        seen = flops * ((1 - banded) * full + banded * min(full, band))
        return seen / rates[0], 2.5 * seen / rates[1]
    batch = layouts.micro_batch * heads / layouts.cp
    product = product_s(length, keys, query_dim, device, batch)
    product = product + product_s(length, value_dim, keys, device, batch)
    scores = traffic_s(pairs * heads * (4 * device.element_bytes + 1), device)
    scores = scores * unfused_factor(shape, layouts, device, block.software)
    return product + scores, 2 * product + device.coefficients.backward_bytes * scores


def _block_bytes(block: _Block) -> Array:
    """Bytes that element-wise kernels of one block move forward.

    Per token: two norms (read, write) and two residual additions (2 reads, write): 10 e h, split over t with sequence
    parallelism; rotations or head transposes 4 e (H d + K d) / t; activation function 3 e f / t gated, 5 where it is
    apart from the gate, 2 e f / t plain; with 8-bit products the casts of every product's input, k h / t of the routed
    ones; e h / t for each of `permuted_copies`. A part alone, or two side by side, have one norm and one addition.
    Scales, shifts and gates of a diffusion transformer are applied in the kernels of norms and additions.
    """
    shape, layouts, device, software, parts = block.shape, block.layouts, block.device, block.software, block.parts
    e, experts, received = device.element_bytes, "experts" in parts, shape.expert_latent or shape.hidden
    hidden_share = np.where(layouts.sequence_parallel > 0, layouts.tp, 1.0)
    query_dim, value_dim = head_dims(shape)
    heads = (shape.heads * query_dim + shape.kv_heads * value_dim) / layouts.tp * ("attention" in parts)
    heads = heads + shape.heads * query_dim / layouts.tp * ("cross" in parts)
    beside = shape.diffusion.single_layers / shape.layers * ("mlp" in parts) if shape.diffusion else 0.0
    width = _mlp_width(shape, layouts) if experts else shape.feed_forward / layouts.tp * ("mlp" in parts)
    passes = (3 if software.fused_gate else 5) if shape.gated_mlp else 2
    written = np.zeros(len(layouts))
    if software.writes_gelu and not (shape.gated_mlp or experts):
        casts = has_casts(layouts, device.precision, software)
        passes, written = 0, block.tokens * width * (_GELU_BYTES[0] + _GELU_BYTES[1] * casts)
    per_token = 5 * (len(parts) - beside) * e * shape.hidden / hidden_share + 4 * e * heads + passes * e * width
    if (mixer := shape.state_space) is not None and "mixer" in parts:
        per_token = per_token + mixer_bytes(shape, e) / layouts.tp
        heads = heads + mixer.inner / layouts.tp  # the input of its last product
    if experts:
        per_token = per_token + e * received * permuted_copies(shape, layouts, software) / layouts.tp
    if device.casts:
        routed = experts * shape.experts_per_token / layouts.tp * (received / shape.hidden)
        inputs = 1.5 * len(parts) + routed
        per_token = per_token + _cast_bytes(device, software) * (inputs * shape.hidden + heads + width)
    return block.tokens * per_token * unfused_factor(shape, layouts, device, software) + written


def _cast_bytes(device: DeviceRates, software: Software) -> int:
    """Bytes that casting one value to 8 bits moves: e read, and two layouts written, in Transformer Engine's kernels.

    Elsewhere the largest value is found first, e read once more, and the second layout is a kernel of its own: 2 e + 3.
    """
    return device.element_bytes + 2 if software.framework == "megatron" else 2 * device.element_bytes + 3


def permuted_copies(shape: ModelShape, layouts: Layouts, software: Software) -> Array:
    """Copies of a token that are read or written to sort tokens by expert, there and back: 2 (k + r) of r that arrived
    at ranks, see `collectives`; 6 k where each expert gets its own, which are sorted before and after they travel.
    """
    k = shape.experts_per_token
    return np.where(
        (layouts.ep > 1) & (not software.by_domain),
        6.0 * k * layouts.expert_rows,
        2 * (k + parts_reached(shape, layouts.ep)),
    )


def unfused_factor(shape: ModelShape, layouts: Layouts, device: DeviceRates, software: Software) -> Array:
    """Bytes that element-wise work moves over those of fused kernels: 1, or where every operation is a kernel more.

    PyTorch has a kernel for the norm and the activation of plain models, but writes RMSNorm, rotations and gates out;
    those of diffusion transformers, too.
    Under autocast the residual stream, norms and softmax are fp32, and their results are cast for the products.
    """
    if software.fuses(experts=bool(shape.experts)):
        return np.ones(len(layouts))
    written = device.coefficients.eager_bytes if _has_rotations(shape) else device.coefficients.unfused_bytes
    return written * (1 + (_AUTOCAST_BYTES - 1) * has_casts(layouts, device.precision, software))


def _has_rotations(shape: ModelShape) -> bool:
    """Whether a block has more element-wise work than GPT-2's: rotations and gates, or modulations."""
    return shape.gated_mlp or shape.diffusion is not None


def head_times(
    shape: ModelShape, layouts: Layouts, *, sequence_length: int, device: DeviceRates, software: Software
) -> HeadTimes:
    """Embedding look-up, and logits with their loss.

    Logits: three products of [M, h] x [h, V / t] in at least 16 bits, and passes over M V / t values: written and
    read in 16 bits, loss and gradient in fp32: 22 bytes unfused, 12 where the loss is one kernel.
    """
    tokens, t = _tokens(layouts, sequence_length), layouts.tp
    vocabulary = np.ceil(shape.vocabulary / (_VOCABULARY_PADDING * t)) * _VOCABULARY_PADDING
    forward_s, backward_s = products_s([Product(tokens, vocabulary, shape.hidden)], device)
    logit_bytes = software.logit_bytes or (12 if software.fused_attention else 22)
    loss_s = traffic_s(tokens * vocabulary * logit_bytes, device)
    embedding_s = traffic_s(tokens * shape.hidden * 6.0 * device.element_bytes, device)
    return HeadTimes(embedding_s, forward_s + backward_s + loss_s)
