"""What an adapter (LoRA, DoRA) changes in memory and time: the base is frozen, and a few new weights train beside it.

Symbols: N parameters of the model, P of the adapters, s ranks that share them, V vocabulary, h hidden; r rank and O
outputs of adapted layers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainworks.config.finetune import Adapter
from trainworks.errors import UsageError
from trainworks.plan import parameters
from trainworks.plan.activations import activation_bytes, element_bytes
from trainworks.plan.compute import DeviceRates, traffic_s, with_launches
from trainworks.plan.flops import attention_flops_per_token, layers_matmul_parameters, model_flops_per_token
from trainworks.plan.job import StepTimes
from trainworks.plan.layouts import Array, Layouts, Recompute
from trainworks.plan.run.memory import RunMemories
from trainworks.plan.software import Software
from trainworks.record.model_shape import ModelShape

_NF4_BYTES = 0.5 + 4 / 64
"""Per weight. Count: a code of 4 bits, and a scale in fp32 for each block of 64."""
_MAGNITUDE_PASSES = {2: (12.0, 34.0), 4: (8.0, 24.0)}
"""Bytes that magnitudes move per output in forward and backward, by the bytes of an activation, of which they make
fp32. Count: z, gain and cast in forward, the gradients of both in backward. Of eager torch, not measured on a GPU."""
_UNPACKED_BYTES = {2: 39.0, 4: 33.0}
"""Bytes that eager torch moves per weight that it takes out of 4 bits, by the bytes of the result. Count, of
`worker.models.nf4`: both halves of a byte 2, their stack 2, whole numbers of 64 bits 9, look-up 12, scale 8, cast 6."""
_UNPACKING_KERNELS = 7
"""Count: the same operations."""
_STACK_BYTES = 2.0
"""Beside a weight in 4 bits and the result, in compiled code. Count: Inductor has two kernels, and the second reads the
stack that the first writes."""
_BY_INPUTS = ("o_proj", "down_proj", "c_proj")
"""Layers that tp cuts by inputs: each rank has all of their outputs."""


def adapter_parameters(shape: ModelShape, adapter: Adapter) -> int:
    """P: r (inputs + outputs) of every adapted layer, and its outputs with DoRA; experts and routers have none.

    Raises:
        UsageError: the model is a hybrid of attention and Mamba-2, or a diffusion transformer.
    """
    sizes = _adapted_sizes(shape, adapter).values()
    return shape.layers * sum(adapter.rank * sum(each) + adapter.use_dora * each[1] for each in sizes)


def _adapted_sizes(shape: ModelShape, adapter: Adapter) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the adapted layers of a block by name.

    Layers that a model has joined (`qkv_proj`) count as their parts, which have more inputs together.
    """
    if shape.state_space is not None or shape.diffusion is not None:
        kind = "Mamba-2 hybrids" if shape.diffusion is None else "diffusion transformers"
        raise UsageError(f"adapters of {kind} cannot be planned yet", hint="plan it without `adapter`")
    sizes = parameters.attention_sizes(shape) | ({} if shape.experts else parameters.mlp_sizes(shape))
    chosen = [
        name
        for name in sizes
        if not adapter.targets
        or any(f".{name}".endswith(f".{each}") or f".{each}".endswith(f".{name}") for each in adapter.targets)
    ]
    return {name: sizes[name] for name in chosen}


def adapted_memories(
    memories: RunMemories,
    shape: ModelShape,
    layouts: Layouts,
    adapter: Adapter,
    *,
    length: int,
    precision: str,
    software: Software,
    device: str,
    moment_bytes: float,
) -> RunMemories:
    """Memory of the worker with a frozen base: the states of `adapted_states`.

    logits       without the gradient of the output matrix, and the product that is added to it: - 8 V h
    activations  with DoRA the outputs of adapted layers before their magnitudes; of one block with recomputation
    checkpoint   the copy of (4 + m) P / s, on a CPU
    """
    states = adapted_states(shape, layouts, adapter, precision=precision, moment_bytes=moment_bytes)
    shards = np.where(layouts.zero >= 1, np.maximum(1.0, layouts.dp_shard * layouts.cp), 1.0)
    written = (4 + moment_bytes) * adapter_parameters(shape, adapter) / shards
    kept = activation_bytes(
        shape,
        layouts,
        sequence_length=length,
        precision=precision,
        software=software,
        recompute=Recompute.NONE,
    )
    scaled = element_bytes(precision) * _scaled_values(shape, layouts, adapter, length)
    keeps = (layouts.recompute == Recompute.NONE) | (layouts.recompute_layers > 0)
    of_blocks = np.where(keeps, memories.activations_bytes * scaled / kept, scaled)
    return replace(
        memories,
        **states,
        activations_bytes=memories.activations_bytes + of_blocks,
        logits_bytes=np.maximum(0.0, memories.logits_bytes - 8.0 * shape.vocabulary * shape.hidden),
        checkpoint_bytes=written if device == "cpu" else memories.checkpoint_bytes,
    )


def adapted_states(
    shape: ModelShape,
    layouts: Layouts,
    adapter: Adapter,
    *,
    precision: str,
    moment_bytes: float = 8.0,
    shares_codes: bool = False,
) -> dict[str, Array]:
    """Memory of weights, gradients and optimizer with a frozen base.

    weights     b N / s + 4 P / s, where b is 4, 2 in bf16, and 0.56 in 4 bits, shared only if the program does so
    gradients   4 P, / s with zero 2 and 3
    optimizer   m P / s, where m is 8 with AdamW; nothing where the host holds its states

    Ranks of tp and pp have equal parts of all but the experts, which are spread over ep and pp; with zero 3 the other
    ranks of the shards and of tp share each expert.
    """
    trained = adapter_parameters(shape, adapter) / (layouts.tp * layouts.pp)
    shards = np.maximum(1.0, layouts.dp_shard * layouts.cp)

    def shared(stage: int) -> Array:
        return np.where(layouts.zero >= stage, shards, 1.0)

    return {
        "weights_bytes": _base_bytes(shape, adapter, precision, layouts, shares_codes) + 4 * trained / shared(3),
        "gradients_bytes": 4 * trained / shared(2),
        "optimizer_bytes": np.where(layouts.offload_optimizer > 0, 0.0, moment_bytes * trained / shared(1)),
    }


def _base_bytes(shape: ModelShape, adapter: Adapter, precision: str, layouts: Layouts, shares_codes: bool) -> Array:
    in_16_bits = adapter.base == "bf16" or (adapter.base in ("auto", "nf4") and precision == "bf16")
    per_weight = 2.0 if in_16_bits else 4.0
    ranks = layouts.dp_shard * layouts.cp
    shards, expert_shards = (
        np.where(layouts.zero >= 3, np.maximum(1.0, each), 1.0) for each in (ranks, ranks * layouts.tp / layouts.ep)
    )
    routed = parameters.num_expert_layers(shape) * shape.experts * parameters.expert_parameters(shape)
    dense, in_4_bits = shape.num_parameters - routed, _weights_in_4_bits(shape, adapter)
    experts: Array = per_weight * routed / layouts.ep / expert_shards
    codes = _NF4_BYTES * in_4_bits / (shards if shares_codes else 1.0)
    others = (per_weight * (dense - in_4_bits) / shards + codes) / layouts.tp
    return (others + experts) / layouts.pp


def _weights_in_4_bits(shape: ModelShape, adapter: Adapter) -> int:
    """Weights of the blocks but their routed experts; 0 unless the base is in 4 bits."""
    routed = parameters.num_expert_layers(shape) * shape.experts * parameters.expert_parameters(shape)
    ends = parameters.embedding_parameters(shape) + parameters.output_parameters(shape)
    return (shape.num_parameters - routed - ends) * (adapter.base == "nf4")


def _unpacking_s(
    shape: ModelShape, layouts: Layouts, adapter: Adapter, *, precision: str, device: DeviceRates, fused: bool
) -> Array:
    """Seconds of a step in which one pass over all blocks takes its weights out of 4 bits, for every micro-batch.

    Compiled code has two kernels for each matrix, eager torch `_UNPACKING_KERNELS`.
    """
    width = element_bytes(precision)
    matrices = shape.layers * len(parameters.attention_sizes(shape) | parameters.mlp_sizes(shape))
    compiled, eager = (_NF4_BYTES + _STACK_BYTES + width, 2), (_UNPACKED_BYTES[width], _UNPACKING_KERNELS)
    num_bytes, kernels = compiled if fused else eager
    weights = layouts.accum * _weights_in_4_bits(shape, adapter) / (layouts.tp * layouts.pp)
    launched = layouts.accum * matrices * kernels / layouts.pp * (adapter.base == "nf4")
    return with_launches(traffic_s(num_bytes * weights, device), launched, device)


def _scaled_values(shape: ModelShape, layouts: Layouts, adapter: Adapter, length: int) -> Array:
    """Outputs of a block that magnitudes scale, of one micro-batch on one rank; 0 without DoRA."""
    sizes = _adapted_sizes(shape, adapter)
    per_token = sum(
        outputs / (1.0 if name.endswith(_BY_INPUTS) else layouts.tp) for name, (_, outputs) in sizes.items()
    )
    return adapter.use_dora * layouts.micro_batch * length / layouts.cp * per_token


def adapted_times(
    times: StepTimes,
    shape: ModelShape,
    layouts: Layouts,
    adapter: Adapter,
    *,
    length: int,
    precision: str,
    device: DeviceRates,
    fused: bool,
    shares_codes: bool = False,
) -> StepTimes:
    """Time with a frozen base.

    forward     + the adapters' own products, P / N_l of those of the layers
    backward    of each product the gradient of its input alone: half; attention in full; + 3 P / 2 N_l for adapters
    DoRA        norms: products as of r more tokens in each micro-batch; `_MAGNITUDE_PASSES`; with dropout all products
                of adapted layers once more
    4 bits      each use of a weight takes it out: forward, forward again, and backward; `fused`: compiled
    head        two of three products
    dp          gradients of P instead of N; with zero 3 the weights are gathered as before, those in 4 bits as such,
                or not at all where every rank has all of them
    optimizer   P of N
    waiting     bubble and stragglers in proportion to the work
    """
    trained = adapter_parameters(shape, adapter)
    products, attention = 6.0 * layers_matmul_parameters(shape), attention_flops_per_token(shape, length)
    share = products / (products + attention)
    extra = share * trained / max(1, layers_matmul_parameters(shape))
    moved = trained / shape.num_parameters
    weights, gradients = 2.0 * element_bytes(precision), 4.0
    packed = _weights_in_4_bits(shape, adapter) / shape.num_parameters
    gathered = 1 - packed * (1 - shares_codes * _NF4_BYTES / element_bytes(precision))
    sharded = (weights * gathered + gradients * moved) / (weights + gradients)
    again = share * (adapter.use_dora and adapter.dropout > 0)
    norms = again + share * adapter.use_dora * adapter.rank / (layouts.micro_batch * length / layouts.cp)
    scaled = layouts.accum * shape.layers / layouts.pp * _scaled_values(shape, layouts, adapter, length)
    unpacking_s = _unpacking_s(shape, layouts, adapter, precision=precision, device=device, fused=fused)
    magnitudes = _MAGNITUDE_PASSES[element_bytes(precision)]
    passes_s = [traffic_s(scaled * num_bytes, device) + unpacking_s for num_bytes in magnitudes]
    repeats = times.recompute_s / times.forward_s
    changed = replace(
        times,
        forward_s=times.forward_s * (1 + extra + norms) + passes_s[0],
        backward_s=times.backward_s * (1 - share / 2 + extra + again / 2) + passes_s[1],
        recompute_s=times.recompute_s * (1 + extra + norms) + repeats * passes_s[0],
        head_s=times.head_s * 2 / 3,
        dp_s=times.dp_s * np.where(layouts.zero >= 3, sharded, moved),
        optimizer_s=times.optimizer_s * moved,
    )
    less = _work_s(changed) / _work_s(times)
    return replace(changed, bubble_s=times.bubble_s * less, straggle_s=times.straggle_s * less)


def _work_s(times: StepTimes) -> Array:
    """Seconds of a stage's own work, which waiting for other stages and for stragglers follows."""
    return times.total_s - times.bubble_s - times.straggle_s - times.host_s


def adapted_flops_per_token(shape: ModelShape, adapter: Adapter, length: int) -> float:
    """Model FLOPs per token: 4 of 6 for a frozen weight, all of attention, and 6 P."""
    attention = attention_flops_per_token(shape, length)
    frozen = model_flops_per_token(shape, length) - attention
    return frozen * 2 / 3 + attention + 6.0 * adapter_parameters(shape, adapter)
