"""The memory model against real PyTorch: FSDP2, DTensor, checkpointing, pipelining, AdamW, byte by byte.

Where PyTorch's eager kernels keep more than the fused kernels of the model, the excess stands here by name, per block
and token, and has to explain the whole difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from statistics import mean

import numpy as np
import pytest

from trainworks.plan.activations import activation_bytes
from trainworks.plan.layouts import Layouts, Recompute
from trainworks.plan.memory import Memories, predict_memories
from trainworks.plan.shapes.transformer import shape_of_hf_config
from trainworks.plan.software import Software
from trainworks.record.model_shape import ModelShape

torch = pytest.importorskip("torch", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")
transformers = pytest.importorskip("transformers", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")

from tests.validation.hf_model import HfLlama  # noqa: E402
from tests.validation.measured_memory import MICRO_BATCHES, Measured, Parallel, measure  # noqa: E402
from tests.validation.measured_pipeline import peak_of_first_rank  # noqa: E402
from tests.validation.reference_model import Sizes, Transformer  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LLAMA = Sizes()
GPT = Sizes(gated=False, feed_forward=4096)
MIXTRAL = Sizes(experts=8, experts_per_token=2)
WIDE = Sizes(hidden=4096, heads=32, kv_heads=32, feed_forward=11008, vocabulary=1000)
ALONE = Parallel()
FSDP = Parallel(states="sharded", dp_shard=8, zero=3)


@dataclass(frozen=True)
class Case:
    sizes: Sizes = LLAMA
    parallel: Parallel = ALONE
    micro_batch: int = 2
    sequence_length: int = 2048
    precision: str = "bf16"
    excess: Callable[[Sizes, Parallel], float] = lambda sizes, parallel: 0.0
    """Bytes that PyTorch keeps and a fused kernel would not, of a token in a block."""
    loss_excess: float = 0.0
    """The same of a logit."""
    build: Callable[[Sizes], torch.nn.Module] = Transformer

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.sequence_length


def gathered_inputs(sizes: Sizes, parallel: Parallel) -> float:
    """DTensor keeps the gathered inputs of attention and MLP; Megatron-LM gathers their shards again in backward."""
    return 2 * 2 * sizes.hidden * (1 - 1 / parallel.tp)


def casts_of_autocast(sizes: Sizes, parallel: Parallel) -> float:
    """The residual stream is fp32 at both norms; each of five matrices keeps its own 16-bit copy of a norm's output."""
    return 2 * 2 * sizes.hidden + (5 - 2) * 2 * sizes.hidden


def eager_llama(sizes: Sizes, parallel: Parallel) -> float:
    """Two norms keep their input and its root mean square in fp32, and the normalised input before the weight (the
    residual stream itself is free then); silu(gate) is kept beside gate and up.
    """
    return 2 * (4 + 2 - 2 + 2 - 2) * sizes.hidden + 2 * 4 + 2 * sizes.feed_forward


EAGER_LOSS = 6.0
"""fp32 log-softmax, its gradient and that of the logits at once: 12 bytes of a logit instead of 6."""

CASES = {
    "llama": Case(),
    "one sequence": Case(micro_batch=1),
    "four sequences": Case(micro_batch=4),
    "grouped queries": Case(replace(LLAMA, kv_heads=4)),
    "gpt-2": Case(GPT),
    "mixture of experts": Case(MIXTRAL),
    "full recompute": Case(replace(LLAMA, recompute=Recompute.FULL)),
    "wide": Case(WIDE, micro_batch=1),
    "wide, full recompute": Case(replace(WIDE, recompute=Recompute.FULL), micro_batch=1),
    "fsdp": Case(parallel=FSDP),
    "fsdp, full recompute": Case(replace(LLAMA, recompute=Recompute.FULL), FSDP),
    "fsdp, wide": Case(WIDE, FSDP, micro_batch=1),
    "fsdp, wide, full recompute": Case(replace(WIDE, recompute=Recompute.FULL), FSDP, micro_batch=4),
    "fsdp, large vocabulary, few tokens": Case(
        replace(WIDE, vocabulary=128_000), FSDP, micro_batch=1, sequence_length=64
    ),
    "fsdp, mixture of experts": Case(MIXTRAL, FSDP),
    "tp 2": Case(parallel=Parallel(tp=2)),
    "tp 4": Case(parallel=Parallel(tp=4)),
    "tp 2, sequence parallel": Case(parallel=Parallel(tp=2, sequence_parallel=True), excess=gathered_inputs),
    "tp 4, sequence parallel": Case(parallel=Parallel(tp=4, sequence_parallel=True), excess=gathered_inputs),
    "transformers": Case(build=HfLlama, excess=eager_llama),
    "eager loss": Case(replace(LLAMA, fused_loss=False), loss_excess=EAGER_LOSS),
}
UNUSUAL = {
    "fp32": Case(replace(LLAMA, fused_loss=False), Parallel(states="fp32"), precision="fp32"),
    "autocast": Case(parallel=Parallel(states="autocast"), excess=casts_of_autocast),
    "scores in memory": Case(replace(GPT, fused_attention=False), precision="fp16"),
    "scores in memory, selective": Case(
        replace(GPT, fused_attention=False, recompute=Recompute.SELECTIVE), precision="fp16"
    ),
    "tp 4, sequence parallel, full recompute": Case(
        replace(LLAMA, recompute=Recompute.FULL), Parallel(tp=4, sequence_parallel=True)
    ),
}


@cache
def measured(case: Case, layers: int = 4) -> Measured:
    sizes = replace(case.sizes, layers=layers)
    return measure(
        lambda: case.build(sizes),
        case.parallel,
        micro_batch=case.micro_batch,
        sequence_length=case.sequence_length,
        dtype=DTYPES[case.precision],
    )


def shape_of(sizes: Sizes, layers: int = 4) -> ModelShape:
    if not sizes.gated:
        named = {"model_type": "gpt2", "n_layer": layers, "n_embd": sizes.hidden, "n_head": sizes.heads}
        named |= {"n_inner": sizes.feed_forward, "n_positions": sizes.max_sequence_length}
        return shape_of_hf_config(named | {"vocab_size": sizes.vocabulary})
    config = {
        "model_type": "mixtral" if sizes.experts else "llama",
        "num_hidden_layers": layers,
        "hidden_size": sizes.hidden,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "intermediate_size": sizes.feed_forward,
        "vocab_size": sizes.vocabulary,
        "max_position_embeddings": sizes.max_sequence_length,
        "tie_word_embeddings": False,
    }
    experts = {"num_local_experts": sizes.experts, "num_experts_per_tok": sizes.experts_per_token}
    return shape_of_hf_config(config | (experts if sizes.experts else {}))


def layouts_of(case: Case) -> Layouts:
    parallel = case.parallel
    return Layouts.of(
        global_batch=parallel.dp_shard * case.micro_batch * MICRO_BATCHES,
        dp=parallel.dp_shard,
        dp_shard=parallel.dp_shard,
        zero=parallel.zero,
        tp=parallel.tp,
        sequence_parallel=float(parallel.sequence_parallel),
        micro_batch=case.micro_batch,
        recompute=float(case.sizes.recompute),
    )


def software_of(case: Case) -> Software:
    return Software() if case.sizes.fused_attention else Software(attention="unfused", overlap=False, gradient_bytes=2)


def predicted(case: Case) -> Memories:
    return predict_memories(
        shape_of(case.sizes),
        layouts_of(case),
        sequence_length=case.sequence_length,
        precision=case.precision,
        software=software_of(case),
    )


def predicted_peak(case: Case) -> float:
    blocks = case.sizes.layers * case.tokens * case.excess(case.sizes, case.parallel)
    logits = case.tokens * case.sizes.vocabulary / case.parallel.tp * case.loss_excess
    return float(predicted(case).allocated_bytes[0]) + blocks + logits


def measured_block(case: Case) -> float:
    """What one more block keeps, without what the loss and the embedding do."""
    return (measured(case).kept - measured(case, layers=2).kept) / 2


def predicted_block(case: Case) -> float:
    kept = activation_bytes(
        shape_of(case.sizes),
        layouts_of(case),
        sequence_length=case.sequence_length,
        precision=case.precision,
        software=software_of(case),
    )
    return float(kept[0]) + case.tokens * case.excess(case.sizes, case.parallel)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_weights_gradients_and_optimizer_are_exact(case: Case) -> None:
    found, planned = measured(case), predicted(case)
    assert planned.weights_bytes[0] == pytest.approx(found.weights, rel=1e-3)
    assert planned.gradients_bytes[0] == pytest.approx(found.gradients, rel=1e-3)
    assert planned.optimizer_bytes[0] == pytest.approx(found.optimizer, rel=1e-3)


def test_states_without_mixed_precision_are_exact() -> None:
    case = UNUSUAL["fp32"]
    found, planned = measured(case), predicted(case)
    states = [planned.weights_bytes[0], planned.gradients_bytes[0], planned.optimizer_bytes[0]]
    assert states == pytest.approx([found.weights, found.gradients, found.optimizer], rel=1e-3)


def test_autocast_holds_as_many_bytes_as_16_bit_weights_with_fp32_copies() -> None:
    """4 + 4 + 8 bytes of a parameter and 2 of its cast copy are 2 + 4 + 12; an embedding is looked up, never cast."""
    case = UNUSUAL["autocast"]
    found, planned = measured(case), predicted(case)
    shape = shape_of(case.sizes)
    casts = 2 * (shape.num_parameters - shape.vocabulary * shape.hidden)
    states = planned.weights_bytes[0] + planned.gradients_bytes[0] + planned.optimizer_bytes[0]
    looked_up = 2 * shape.vocabulary * shape.hidden
    assert found.weights + found.gradients + found.optimizer + casts == pytest.approx(states - looked_up, rel=1e-3)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(("fsdp, ", "wide", "one "))])
def test_a_block_keeps_what_is_planned(name: str) -> None:
    assert predicted_block(CASES[name]) == pytest.approx(measured_block(CASES[name]), rel=0.01)


@pytest.mark.parametrize("name", [name for name in UNUSUAL if name != "autocast"])
def test_a_block_of_another_stack_keeps_what_is_planned(name: str) -> None:
    assert predicted_block(UNUSUAL[name]) == pytest.approx(measured_block(UNUSUAL[name]), rel=0.01)


def test_a_block_under_autocast_keeps_what_is_planned_and_casts_of_its_weights() -> None:
    case = UNUSUAL["autocast"]
    shape = shape_of(case.sizes)
    casts = 2 * (shape.num_parameters - shape_of(case.sizes, layers=3).num_parameters)
    assert predicted_block(case) + casts == pytest.approx(measured_block(case), rel=0.01)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_peak_is_right_to_two_percent(case: Case) -> None:
    assert predicted_peak(case) == pytest.approx(measured(case).peak, rel=0.02)


def test_the_peak_under_autocast_is_right_to_two_percent() -> None:
    case = UNUSUAL["autocast"]
    looked_up = 2 * case.sizes.vocabulary * case.sizes.hidden
    assert predicted_peak(case) - looked_up == pytest.approx(measured(case).peak, rel=0.02)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_peak_beyond_the_states_is_right_to_five_percent(case: Case) -> None:
    found = measured(case)
    states = found.weights + found.gradients + found.optimizer
    assert predicted_peak(case) - states == pytest.approx(found.peak - states, rel=0.05)


@pytest.mark.lane("test-all")
def test_peaks_are_right_to_one_percent_on_average() -> None:
    assert mean(abs(predicted_peak(case) / measured(case).peak - 1) for case in CASES.values()) < 0.01


@pytest.mark.parametrize("value", [measured_block, predicted_block], ids=["measured", "planned"])
def test_twice_the_micro_batch_keeps_twice_as_much(value: Callable[[Case], float]) -> None:
    assert value(CASES["four sequences"]) == pytest.approx(2 * value(CASES["llama"]), rel=1e-3)


@pytest.mark.parametrize("value", [measured_block, predicted_block], ids=["measured", "planned"])
def test_full_recompute_keeps_the_input_of_a_block(value: Callable[[Case], float]) -> None:
    case = CASES["full recompute"]
    assert value(case) == pytest.approx(2 * case.tokens * case.sizes.hidden, rel=1e-3)


PIPELINES = {"4 ranks": (4, 1, 1), "8 ranks": (8, 1, 1), "4 ranks, 2 chunks": (4, 2, 1), "2 ranks, 2 chunks": (2, 2, 2)}


@pytest.mark.parametrize(("stages", "chunks", "blocks"), PIPELINES.values(), ids=PIPELINES.keys())
def test_the_first_rank_of_a_pipeline_holds_the_micro_batches_under_way(stages: int, chunks: int, blocks: int) -> None:
    sizes = replace(LLAMA, vocabulary=8)
    micro_batches = 2 * stages
    found = peak_of_first_rank(
        sizes, stages=stages, chunks=chunks, blocks=blocks, micro_batches=micro_batches, sequence_length=2048
    )
    planned = predict_memories(
        shape_of(sizes, layers=stages * chunks * blocks),
        Layouts.of(global_batch=micro_batches, pp=stages, interleave=chunks),
        sequence_length=2048,
        precision="bf16",
        software=Software(),
    )
    assert np.all(planned.stage == 0)
    # torch keeps what the chunks behind the first have sent, until its backward; the software of the plan frees it
    passes = 2 * (stages - 1) + (chunks - 1) * stages + 1 - min(micro_batches, 2 * stages - 1)
    sent = passes * 2048 * 2 * sizes.hidden if chunks > 1 else 0
    kept = planned.activations_bytes[0] + planned.working_bytes[0] + sent
    assert kept == pytest.approx(found, rel=0.03)
