"""Work of one transformer block on one rank: products, traffic and kernels, and the time they take.

Symbols as in `compute`; E experts, k experts per token, T sequence length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainworks.plan.activations import has_casts, recomputes_modules
from trainworks.plan.collectives import parts_reached
from trainworks.plan.compute import DeviceRates, product_s, traffic_s
from trainworks.plan.flops import scan_flops_per_token
from trainworks.plan.layouts import Array, Layouts, Recompute, Values
from trainworks.plan.parameters import head_dims, mixer_bytes, num_attention_layers, num_dense_layers, num_expert_layers
from trainworks.plan.software import Software
from trainworks.record.model_shape import ModelShape

_VOCABULARY_PADDING = 128
"""Columns of the output matrix are padded to a multiple of this on every rank (Megatron-LM)."""
_AUTOCAST_BYTES = 2.0
"""Element-wise bytes under autocast over those of a 16-bit program: of a norm 14 for 4 per value, of a residual
addition 10 for 6, of softmax with dropout 25 for 13; activations and transposed heads keep their 16 bits."""
_KERNELS = (24, 44)
"""Launched by one dense block forward and backward: norms, products, attention, rotations, residuals, casts."""
_KERNELS_EAGER = {False: (33, 44), True: (49, 76)}
"""The same where every operation is a kernel, of plain blocks and of those with RMSNorm, rotations and gates: the
operations but views of GPT-2's and Llama's blocks in transformers, counted with PyTorch 2.13."""
_LAUNCHES_EAGER_FP8 = (26, 51)
"""What a linear layer of torchao's fp8 costs the host in eager mode, forward and backward, in launches: scales, casts,
and a tensor class of Python around them. From one run on an H100 (benchmarks/RESULTS.md), which it was fitted to."""
_KERNELS_EXPERT = 30
"""More of a block with experts: routing, sorting, permuting; forward and backward alike."""


_Part = Literal["attention", "mixer", "mlp", "experts"]


class _Product(NamedTuple):
    rows: Values
    columns: Values
    depth: Values
    batch: Values = 1.0
    share: float = 1.0
    """Share of the rate that one product of these dimensions reaches."""


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


def block_times(
    shape: ModelShape, layouts: Layouts, *, sequence_length: int, device: DeviceRates, software: Software
) -> BlockTimes:
    """Forward, backward and recomputation of one block.

    Backward does each product twice: the gradient of the input [m, n] x [n, k] and of the weight [k, m] x [m, n].
    Recomputation repeats the whole forward (full), or what lies between the projections (selective); in a
    PyTorch-native program selective recomputation repeats chosen operations, `selective_share` of the forward.
    The parts of a hybrid's layers are taken one by one.
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
    kinds = [
        (count / shape.layers, _one_kind(shape, layouts, sequence_length, device, software, each))
        for count, each in parts
        if count
    ]
    return BlockTimes(
        forward_s=sum((share * kind.forward_s for share, kind in kinds), np.zeros(len(layouts))),
        backward_s=sum((share * kind.backward_s for share, kind in kinds), np.zeros(len(layouts))),
        recomputed_s=sum((share * kind.recomputed_s for share, kind in kinds), np.zeros(len(layouts))),
    )


def _one_kind(
    shape: ModelShape,
    layouts: Layouts,
    sequence_length: int,
    device: DeviceRates,
    software: Software,
    parts: frozenset[_Part],
) -> BlockTimes:
    products = _block_products(shape, layouts, sequence_length, device, parts)
    forward, backward = _products_s(products, device)
    core_forward, core_backward = _core_s(shape, layouts, sequence_length, device, software, parts)
    traffic = traffic_s(_block_bytes(shape, layouts, sequence_length, device, software, parts), device)
    if device.casts and software.framework != "megatron":  # which keeps the weights of a step in 8 bits
        weights = np.zeros(len(layouts))
        for product in products:
            weights = weights + product.columns * product.depth * product.batch
        traffic = traffic + traffic_s(_cast_bytes(device, software) * weights, device)
    forward = forward + core_forward + traffic
    backward = backward + core_backward + traffic * device.coefficients.backward_bytes
    launched_forward, launched_backward = _launches(shape, layouts, device, software, parts)
    forward = _with_launches(forward, launched_forward, device)
    if recomputes_modules(shape, software):
        core_forward = _modules_s(shape, layouts, sequence_length, device, parts)
    selective = {
        "attention": core_forward,
        "products": device.coefficients.selective_share * forward,
        "every second product": 0.5 * (forward - core_forward) + 0.5 * traffic,
        "projections": device.coefficients.projections_share * forward,
        "queries": device.coefficients.projections_share * forward,
    }[software.selective]
    whole = forward
    # the gradients of a router need the last products of its experts
    if "experts" not in parts and not software.repeats_last:
        whole = forward - _products_s(products[-1:], device)[0]
    is_selective = layouts.recompute == Recompute.SELECTIVE
    again = np.where(layouts.recompute == Recompute.FULL, whole, np.where(is_selective, selective, 0.0))
    return BlockTimes(forward, _with_launches(backward, launched_backward, device), again)


def _block_products(
    shape: ModelShape, layouts: Layouts, sequence_length: int, device: DeviceRates, parts: frozenset[_Part]
) -> list[_Product]:
    products = [*_attention_products(shape, layouts, sequence_length)] if "attention" in parts else []
    if (mixer := shape.state_space) is not None and "mixer" in parts:  # tp cuts its heads and groups
        tokens, t = _tokens(layouts, sequence_length), layouts.tp
        products += [_Product(tokens, mixer.projected / t, shape.hidden)]
        products += [_Product(tokens, shape.hidden, mixer.inner / t)]
    if "experts" in parts:
        return products + _expert_products(shape, layouts, sequence_length, device.coefficients.routed_share)
    return products + (_mlp_products(shape, layouts, sequence_length, shape.feed_forward) if "mlp" in parts else [])


def _core_s(
    shape: ModelShape,
    layouts: Layouts,
    sequence_length: int,
    device: DeviceRates,
    software: Software,
    parts: frozenset[_Part],
) -> tuple[Array, Array]:
    """What is computed between the projections: attention, or a mixer's scan, at the rate of attention over a chunk."""
    if "attention" in parts:
        return _attention_core_s(shape, layouts, sequence_length, device, software)
    if (mixer := shape.state_space) is None or "mixer" not in parts:
        return np.zeros(len(layouts)), np.zeros(len(layouts))
    flops = _tokens(layouts, sequence_length) / layouts.tp * scan_flops_per_token(shape) / mixer.layers
    if device.measured_attention_flops_per_s is not None:
        return flops / device.measured_attention_flops_per_s, 2.0 * flops / device.measured_attention_flops_per_s
    rates = device.attention_rates(mixer.head_dim, mixer.chunk, causal=False)
    return flops / rates[0], 2.5 * flops / rates[1]  # backward computes a chunk's scores again


def _launches(
    shape: ModelShape, layouts: Layouts, device: DeviceRates, software: Software, parts: frozenset[_Part]
) -> tuple[Array, Array]:
    """Kernels of one block that the host launches, forward and backward; shape [n] each. A part alone has half.

    Transformer Engine's GroupedLinear launches two products of each local expert forward and four backward, in 8 and 4
    bits with a cast each.
    """
    experts, share = "experts" in parts, len(parts) / 2
    fused = software.fuses(experts=experts)
    forward, backward = _KERNELS if fused else _KERNELS_EAGER[shape.gated_mlp]
    if software.framework == "torch" and not fused and device.is_queued and device.precision == "fp8" and not experts:
        linear_layers = 7 if shape.gated_mlp else 6
        forward += linear_layers * _LAUNCHES_EAGER_FP8[0]
        backward += linear_layers * _LAUNCHES_EAGER_FP8[1]
    extra = share * np.where(layouts.tp > 1, software.distributed_operations / 2, 0.0) + experts * _KERNELS_EXPERT
    grouped = 2.0 * (1 + (device.precision in ("fp8", "fp4"))) * shape.experts / layouts.ep
    grouped = grouped * (experts and software.framework == "megatron")
    return share * forward + extra + grouped, share * backward + extra + 2 * grouped


def _with_launches(kernels_s: Array, num_kernels: Values, device: DeviceRates) -> Array:
    """The slower of the device, with the gaps between its kernels, and of the host that launches them; near each other
    they do not overlap perfectly: (x^8 + y^8)^(1/8). Their sum where the host is the device.
    """
    if not device.is_queued:
        return kernels_s + num_kernels * device.coefficients.launch_s
    device_s = kernels_s + num_kernels * device.coefficients.gap_s
    host_s = num_kernels * device.coefficients.launch_s
    return np.sqrt(np.sqrt(np.sqrt(device_s**8 + host_s**8)))


def _products_s(products: Sequence[_Product], device: DeviceRates) -> tuple[Array, Array]:
    """Seconds of all products forward, and backward: the gradients of their inputs and of their weights."""
    dims = np.empty((4, len(products), np.size(products[0].rows)))
    for at, product in enumerate(products):
        for dim, value in zip(dims, product[:4], strict=True):
            dim[at] = value
    m, n, k, batch = dims
    share = np.array([product.share for product in products])[:, np.newaxis]
    forward, of_inputs, of_weights = (
        seconds / share
        for seconds in product_s(np.stack([m, m, k]), np.stack([n, k, n]), np.stack([k, n, m]), device, batch)
    )
    return forward.sum(axis=0), (of_inputs + of_weights).sum(axis=0)


def _tokens(layouts: Layouts, sequence_length: int) -> Array:
    """M: tokens of a micro-batch on this rank."""
    return layouts.micro_batch * sequence_length / layouts.cp


def _attention_products(shape: ModelShape, layouts: Layouts, sequence_length: int) -> Iterator[_Product]:
    tokens, hidden, t = _tokens(layouts, sequence_length), shape.hidden, layouts.tp
    if shape.latent is None:
        width, kv_width = shape.heads * shape.head_dim, np.maximum(shape.kv_heads, t) * shape.head_dim
        yield _Product(tokens, (width + 2 * kv_width) / t, hidden)
        yield _Product(tokens, hidden, width / t)
        return
    latent = shape.latent
    if latent.query_rank:
        yield _Product(tokens, latent.query_rank, hidden)
    yield _Product(tokens, latent.kv_rank + latent.rope_head_dim, hidden)
    yield from _latent_lifts(shape, layouts, sequence_length)
    yield _Product(tokens, hidden, shape.heads * latent.value_head_dim / t)


def _latent_lifts(shape: ModelShape, layouts: Layouts, sequence_length: int) -> Iterator[_Product]:
    """Queries, keys and values of all heads from their latent ranks."""
    if shape.latent is not None:
        tokens, latent, heads = _tokens(layouts, sequence_length), shape.latent, shape.heads / layouts.tp
        yield _Product(tokens, heads * (latent.nope_head_dim + latent.rope_head_dim), latent.query_rank or shape.hidden)
        yield _Product(tokens, heads * (latent.nope_head_dim + latent.value_head_dim), latent.kv_rank)


def _modules_s(
    shape: ModelShape, layouts: Layouts, sequence_length: int, device: DeviceRates, parts: frozenset[_Part]
) -> Array:
    """What is computed again of norms, latent lifts and the experts' activation functions; see `recomputes_modules`."""
    split, experts = np.where(layouts.sequence_parallel > 0, layouts.tp, 1.0), "experts" in parts
    norms = 2 * len(parts) * shape.hidden / split
    values = norms + experts * (3 if shape.gated_mlp else 2) * _mlp_width(shape, layouts)
    moved_s = traffic_s(device.element_bytes * _tokens(layouts, sequence_length) * values, device)
    lifts = [*_latent_lifts(shape, layouts, sequence_length)] if "attention" in parts else []
    return moved_s + _products_s(lifts, device)[0] if lifts else moved_s


def _mlp_width(shape: ModelShape, layouts: Layouts) -> Array:
    """Values per token inside of the routed and shared experts of a block."""
    routed = layouts.expert_rows * shape.experts_per_token * shape.expert_feed_forward
    return (routed + shape.shared_feed_forward) / layouts.tp


def _mlp_products(shape: ModelShape, layouts: Layouts, sequence_length: int, width: int) -> list[_Product]:
    tokens, hidden, t = _tokens(layouts, sequence_length), shape.hidden, layouts.tp
    up = (2 if shape.gated_mlp else 1) * width / t
    return [_Product(tokens, up, hidden), _Product(tokens, hidden, width / t)]


def _expert_products(shape: ModelShape, layouts: Layouts, sequence_length: int, share: float) -> list[_Product]:
    """Routed tokens are k M / t per rank for any ep; they meet E / ep experts. tp does not cut experts."""
    routed = _tokens(layouts, sequence_length) * shape.experts_per_token / layouts.tp
    local = shape.experts / layouts.ep
    rows, hidden, width = routed / local, shape.expert_latent or shape.hidden, shape.expert_feed_forward
    products = [
        _Product(rows, (2 if shape.gated_mlp else 1) * width, hidden, local, share),
        _Product(rows, hidden, width, local, share),
    ]
    if shape.expert_latent:  # down and up again, of a token once
        tokens, latent = _tokens(layouts, sequence_length) / layouts.tp, shape.expert_latent
        products += [_Product(tokens, latent, shape.hidden), _Product(tokens, shape.hidden, latent)]
    if shape.shared_feed_forward:
        products += _mlp_products(shape, layouts, sequence_length, shape.shared_feed_forward)
    return products


def _attention_core_s(
    shape: ModelShape, layouts: Layouts, sequence_length: int, device: DeviceRates, software: Software
) -> tuple[Array, Array]:
    """Scores and their product with the values, forward and backward.

    FLOPs 2 b T (T / cp) (d_qk + d_v) H / t, half when causal and fused; backward 2.5 times (fused, which
    computes the scores again) or 2 times. Unfused, the scores [b, H / t, T, T] pass through memory: written by the
    product, read and written by softmax and dropout, read by the next product: 13 bytes each in 16 bits with
    dropout's mask, 9 with a fused scale-mask-softmax.
    """
    query_dim, value_dim = head_dims(shape)
    pairs = layouts.micro_batch * sequence_length * (sequence_length / layouts.cp)
    heads = shape.heads / layouts.tp
    flops = 2.0 * pairs * heads * (query_dim + value_dim)
    if device.measured_attention_flops_per_s is not None:
        forward = flops / device.measured_attention_flops_per_s
        return forward, 2.0 * forward
    if software.fused_attention:
        rates = device.attention_rates((query_dim + value_dim) / 2, sequence_length, causal=shape.causal)
        # Half of the token pairs when causal, and a band of them, or of chunks half, in layers with a window.
        full = 0.5 if shape.causal else 1.0
        banded = shape.window_layers / shape.layers if shape.window else 0.0
        band = shape.window * (full if shape.chunked else 1.0) / sequence_length
        seen = flops * ((1 - banded) * full + banded * min(full, band))
        return seen / rates[0], 2.5 * seen / rates[1]
    length = sequence_length
    batch = layouts.micro_batch * heads / layouts.cp
    product = product_s(length, length, query_dim, device, batch)
    product = product + product_s(length, value_dim, length, device, batch)
    scores = traffic_s(pairs * heads * (4 * device.element_bytes + 1), device)
    scores = scores * unfused_factor(shape, layouts, device, software)
    return product + scores, 2 * product + device.coefficients.backward_bytes * scores


def _block_bytes(
    shape: ModelShape,
    layouts: Layouts,
    sequence_length: int,
    device: DeviceRates,
    software: Software,
    parts: frozenset[_Part],
) -> Array:
    """Bytes that element-wise kernels of one block move forward.

    Per token: two norms (read, write) and two residual additions (2 reads, write): 10 e h, split over t with sequence
    parallelism; rotations or head transposes 4 e (H d + K d) / t; activation function 3 e f / t gated, 5 where it is
    apart from the gate, 2 e f / t plain; with 8-bit products the casts of every product's input, k h / t of the routed
    ones; e h / t for each of `permuted_copies`. A part alone has one norm and one addition.
    """
    e, experts, received = device.element_bytes, "experts" in parts, shape.expert_latent or shape.hidden
    tokens = _tokens(layouts, sequence_length)
    hidden_share = np.where(layouts.sequence_parallel > 0, layouts.tp, 1.0)
    query_dim, value_dim = head_dims(shape)
    heads = (shape.heads * query_dim + shape.kv_heads * value_dim) / layouts.tp * ("attention" in parts)
    width = _mlp_width(shape, layouts) if experts else shape.feed_forward / layouts.tp * ("mlp" in parts)
    passes = (3 if software.fused_gate else 5) if shape.gated_mlp else 2
    per_token = 5 * len(parts) * e * shape.hidden / hidden_share + 4 * e * heads + passes * e * width
    if (mixer := shape.state_space) is not None and "mixer" in parts:
        per_token = per_token + mixer_bytes(shape, e) / layouts.tp
        heads = heads + mixer.inner / layouts.tp  # the input of its last product
    if experts:
        per_token = per_token + e * received * permuted_copies(shape, layouts, software) / layouts.tp
    if device.casts:
        routed = experts * shape.experts_per_token / layouts.tp * (received / shape.hidden)
        inputs = 1.5 * len(parts) + routed
        per_token = per_token + _cast_bytes(device, software) * (inputs * shape.hidden + heads + width)
    return tokens * per_token * unfused_factor(shape, layouts, device, software)


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

    PyTorch has a kernel for the norm and the activation of plain models, but writes RMSNorm, rotations and gates out.
    Under autocast the residual stream, norms and softmax are fp32, and their results are cast for the products.
    """
    if software.fuses(experts=bool(shape.experts)):
        return np.ones(len(layouts))
    written = device.coefficients.eager_bytes if shape.gated_mlp else device.coefficients.unfused_bytes
    return written * (1 + (_AUTOCAST_BYTES - 1) * has_casts(layouts, device.precision, software))


def head_times(
    shape: ModelShape, layouts: Layouts, *, sequence_length: int, device: DeviceRates, software: Software
) -> HeadTimes:
    """Embedding look-up, and logits with their loss.

    Logits: three products of [M, h] x [h, V / t] in at least 16 bits, and passes over M V / t values: written and
    read in 16 bits, loss and gradient in fp32: 22 bytes unfused, 12 where the loss is one kernel.
    """
    tokens, t = _tokens(layouts, sequence_length), layouts.tp
    vocabulary = np.ceil(shape.vocabulary / (_VOCABULARY_PADDING * t)) * _VOCABULARY_PADDING
    forward_s, backward_s = _products_s([_Product(tokens, vocabulary, shape.hidden)], device)
    logit_bytes = software.logit_bytes or (12 if software.fused_attention else 22)
    loss_s = traffic_s(tokens * vocabulary * logit_bytes, device)
    embedding_s = traffic_s(tokens * shape.hidden * 6.0 * device.element_bytes, device)
    return HeadTimes(embedding_s, forward_s + backward_s + loss_s)
