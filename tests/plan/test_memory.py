"""Memory of the fullest rank: published formulas, what each option saves, and measured runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.jobs import JOBS, UNFUSED, known, layouts, random_layouts, tiny
from trainworks.plan.activations import activation_bytes
from trainworks.plan.coefficients import COEFFICIENTS
from trainworks.plan.layouts import Layouts, Recompute
from trainworks.plan.memory import TERMS, Memories, predict_memories
from trainworks.plan.parameters import expert_parameters, resized
from trainworks.plan.software import Software
from trainworks.record.model_shape import ModelShape

LLAMA, GPT = known("llama2-7b"), known("megatron-gpt-22b")
MANY = random_layouts(400, seed=1)
LENGTH = 2048
DEGREES = st.sampled_from([1, 2, 4, 8])


def memory(
    shape: ModelShape = LLAMA,
    some: Layouts | None = None,
    *,
    precision: str = "bf16",
    software: Software = Software(),  # noqa: B008
    length: int = LENGTH,
    **degrees: Any,
) -> Memories:
    chosen = layouts(**degrees) if some is None else some
    return predict_memories(shape, chosen, sequence_length=length, precision=precision, software=software)


def states(memories: Memories) -> float:
    """Bytes of weights, gradients and optimizer of one layout."""
    return float((memories.weights_bytes + memories.gradients_bytes + memories.optimizer_bytes)[0])


def per_token(shape: ModelShape, *, software: Software, precision: str, **degrees: Any) -> float:
    """Activations of one block in units of s b h."""
    kept = activation_bytes(
        shape, layouts(**degrees), sequence_length=LENGTH, precision=precision, software=software, recompute=None
    )
    return float(kept[0]) / (LENGTH * shape.hidden)


def with_every(option: str, value: float) -> Layouts:
    """Many random layouts that agree in one option."""
    return replace(MANY, **{option: np.full(len(MANY), value)})


def test_a_parameter_takes_18_bytes() -> None:
    """Two of weights, four of gradients, twelve of the optimizer: Megatron-LM's distributed-optimizer guide."""
    assert states(memory()) == pytest.approx(18 * LLAMA.num_parameters, rel=1e-4)


@given(dp=st.sampled_from([2, 4, 8, 64]))
def test_a_distributed_optimizer_leaves_six_bytes_and_twelve_by_d(dp: int) -> None:
    expected = (6 + 12 / dp) * LLAMA.num_parameters
    assert states(memory(dp=dp, dp_shard=dp, zero=1)) == pytest.approx(expected, rel=1e-4)


@given(dp=st.sampled_from([2, 4, 8, 64]))
def test_sharding_everything_divides_everything(dp: int) -> None:
    """Four bytes of weights, of gradients, eight of moments: FSDP keeps no 16-bit copy."""
    assert states(memory(dp=dp, dp_shard=dp, zero=3)) == pytest.approx(16 * LLAMA.num_parameters / dp, rel=1e-4)


def test_full_precision_takes_16_bytes() -> None:
    assert states(memory(precision="fp32")) == pytest.approx(16 * LLAMA.num_parameters, rel=1e-4)


@given(tp=DEGREES, pp=st.sampled_from([1, 2, 4]))
def test_the_more_is_shared_the_less_each_rank_holds(tp: int, pp: int) -> None:
    shared = [states(memory(dp=8, dp_shard=8 if zero else 1, zero=zero, tp=tp, pp=pp)) for zero in range(4)]
    assert shared == sorted(shared, reverse=True)


@given(st.sampled_from([2, 4, 8]))
def test_context_parallel_ranks_share_states_too(cp: int) -> None:
    assert states(memory(cp=cp, zero=3)) == pytest.approx(states(memory()) * 16 / 18 / cp)


def test_experts_are_shared_by_the_ranks_that_hold_the_same_ones() -> None:
    shape = known("qwen3-30b-a3b")
    without = states(memory(shape, dp=8, dp_shard=8, zero=3))
    with_ep = states(memory(shape, dp=8, dp_shard=8, zero=3, ep=8))
    assert with_ep == pytest.approx(without, rel=1e-9)


def test_a_tied_output_is_held_once() -> None:
    shape = known("bert-large")
    assert states(memory(shape, length=512)) == pytest.approx(18 * shape.num_parameters, rel=0.02)


@pytest.mark.parametrize("name", JOBS)
def test_tp_never_holds_more(name: str) -> None:
    """But for experts, which `ep` divides and `tp` does not."""
    job = JOBS[name]
    one, two = (
        memory(job.shape, some, precision=job.precision, software=job.software)
        for some in (with_every("tp", 1), with_every("tp", 2))
    )
    if not job.shape.experts:
        assert (two.allocated_bytes <= one.allocated_bytes).all()


def test_a_block_keeps_korthikanti_s_bytes() -> None:
    """s b h (34 + 5 a s / h): Korthikanti et al. 2022, equation 1."""
    kept = per_token(GPT, software=UNFUSED, precision="fp16")
    assert kept == pytest.approx(34 + 5 * GPT.heads * LENGTH / GPT.hidden)


@given(tp=DEGREES)
def test_tp_leaves_korthikanti_s_ten_bytes_whole(tp: int) -> None:
    """s b h (10 + 24 / t + 5 a s / h t): equation 2."""
    kept = per_token(GPT, software=UNFUSED, precision="fp16", tp=tp)
    assert kept == pytest.approx(10 + (24 + 5 * GPT.heads * LENGTH / GPT.hidden) / tp)


@given(tp=DEGREES)
def test_sequence_parallelism_divides_the_ten_bytes_too(tp: int) -> None:
    """s b h / t (34 + 5 a s / h): equation 4."""
    kept = per_token(GPT, software=UNFUSED, precision="fp16", tp=tp, sequence_parallel=1)
    assert kept == pytest.approx((34 + 5 * GPT.heads * LENGTH / GPT.hidden) / tp)


@given(tp=DEGREES)
def test_selective_recomputation_leaves_34_bytes(tp: int) -> None:
    """34 s b h / t: equation 6."""
    options = {"tp": tp, "sequence_parallel": 1, "recompute": Recompute.SELECTIVE}
    assert per_token(GPT, software=UNFUSED, precision="fp16", **options) == pytest.approx(34 / tp)


def test_full_recomputation_leaves_the_input() -> None:
    """2 s b h: table 2."""
    assert per_token(GPT, software=UNFUSED, precision="fp16", recompute=Recompute.FULL) == pytest.approx(2)


def test_fused_attention_keeps_no_scores() -> None:
    fused, unfused = (per_token(GPT, software=software, precision="bf16") for software in (Software(), UNFUSED))
    assert unfused - fused > 5 * GPT.heads * LENGTH / GPT.hidden


def test_8_bit_products_keep_smaller_inputs() -> None:
    assert per_token(LLAMA, software=Software(), precision="fp8") < per_token(
        LLAMA, software=Software(), precision="bf16"
    )


@pytest.mark.parametrize("name", JOBS)
def test_the_more_is_computed_again_the_less_is_kept(name: str) -> None:
    job = JOBS[name]
    none, selective, full = (
        memory(job.shape, with_every("recompute", kind), precision=job.precision, software=job.software).allocated_bytes
        for kind in Recompute
    )
    plain = MANY.offload == 0
    assert (full <= selective)[plain].all()
    assert (selective <= none)[plain].all()


@pytest.mark.parametrize("name", JOBS)
def test_sequence_parallelism_never_needs_more(name: str) -> None:
    job = JOBS[name]
    off, on = (
        memory(job.shape, with_every("sequence_parallel", value), precision=job.precision, software=job.software)
        for value in (0, 1)
    )
    assert (on.allocated_bytes <= off.allocated_bytes).all()


@pytest.mark.parametrize("name", JOBS)
def test_an_optimizer_in_the_host_s_memory_takes_none_here(name: str) -> None:
    job = JOBS[name]
    here, there = (memory(job.shape, with_every("offload_optimizer", value), precision="bf16") for value in (0, 1))
    assert (there.optimizer_bytes == 0).all()
    assert (here.allocated_bytes - there.allocated_bytes >= 0).all()


def test_offloaded_activations_take_less_in_a_deep_model() -> None:
    here, there = (memory(LLAMA, pp=4, offload=value).activations_bytes for value in (0, 1))
    assert there < here / 2


def test_offloading_activations_of_a_single_block_takes_no_more() -> None:
    one_block = resized(LLAMA, layers=1)
    here, there = (memory(one_block, offload=value).activations_bytes for value in (0, 1))
    assert there <= here


@given(pp=st.sampled_from([2, 4, 8]), accum=st.integers(1, 16))
def test_the_first_stage_keeps_as_many_micro_batches_as_stages_at_most(pp: int, accum: int) -> None:
    one_block = float(
        activation_bytes(LLAMA, layouts(), sequence_length=LENGTH, precision="bf16", software=Software())[0]
    )
    embedded = 2 * LENGTH * LLAMA.hidden
    kept = memory(LLAMA, layouts(accum, pp=pp)).activations_bytes
    first = min(accum, pp) * (LLAMA.layers / pp * one_block + embedded)
    assert kept == pytest.approx(first) or memory(LLAMA, layouts(accum, pp=pp)).stage == pp - 1


@given(pp=st.sampled_from([2, 4, 8]), interleave=st.sampled_from([2, 4]))
def test_an_interleaved_schedule_keeps_korthikanti_s_share_more(pp: int, interleave: int) -> None:
    """1 + (p - 1) / (p v): section 4.2.3."""
    plain, chunked = (memory(LLAMA, pp=pp, interleave=v) for v in (1, interleave))
    share = chunked.activations_bytes / plain.activations_bytes
    assert share == pytest.approx(1 + (pp - 1) / (pp * interleave), rel=0.05)


@given(pp=DEGREES, recomputing=st.integers(1, 3))
def test_layers_that_do_not_recompute_keep_their_activations(pp: int, recomputing: int) -> None:
    blocks = LLAMA.layers / pp
    none, some, every = (
        float(memory(LLAMA, pp=pp, recompute=kind, recompute_layers=layers).activations_bytes[0])
        for kind, layers in ((Recompute.NONE, 0), (Recompute.FULL, recomputing), (Recompute.FULL, 0))
    )
    assert some == pytest.approx(none - (none - every) * recomputing / blocks)


def test_a_chunk_adds_up_its_gradients_before_zero_2_scatters_them() -> None:
    held = [
        float(memory(LLAMA, dp=8, dp_shard=8, zero=zero, pp=4, interleave=v).gradients_bytes[0])
        for zero, v in ((1, 4), (2, 4), (2, 1))
    ]
    assert held[1] == pytest.approx(held[0] / 4 + held[2])


def test_a_large_vocabulary_fills_the_last_stage() -> None:
    assert memory(resized(LLAMA, vocabulary=1_000_000, layers=4), pp=4, micro_batch=8).stage == 3


def test_many_blocks_fill_the_first_stage() -> None:
    assert memory(pp=4).stage == 0


@pytest.mark.parametrize("name", JOBS)
def test_the_terms_add_up(name: str) -> None:
    memories = memory(JOBS[name].shape, MANY)
    assert np.allclose(memories.device_bytes(), sum(getattr(memories, name) for name in TERMS), rtol=1e-12)
    allocated = memories.device_bytes() - memories.baseline_bytes - memories.allocator_bytes
    assert np.allclose(memories.allocated_bytes, allocated, rtol=1e-12)


def test_the_device_holds_more_than_the_allocator_reserves_and_that_more_than_it_hands_out() -> None:
    memories = memory(tiny(), MANY, length=128)
    assert (memories.allocated_bytes <= memories.reserved_bytes()).all()
    assert (memories.reserved_bytes() < memories.device_bytes()).all()


def test_fragmentation_is_a_share_of_what_is_reserved() -> None:
    memories = memory()
    assert memories.allocator_bytes == pytest.approx(COEFFICIENTS.fragmentation * memories.reserved_bytes())


@given(micro_batch=DEGREES)
def test_a_larger_micro_batch_needs_more(micro_batch: int) -> None:
    assert memory(micro_batch=2 * micro_batch).allocated_bytes > memory(micro_batch=micro_batch).allocated_bytes


@pytest.mark.parametrize(
    ("degrees", "gibibytes"),
    [
        ({"dp": 4, "dp_shard": 4, "pp": 2}, 66.55),
        ({"dp": 4, "dp_shard": 4, "tp": 2, "sequence_parallel": 1}, 60.68),
        ({"dp": 2, "dp_shard": 2, "tp": 4, "sequence_parallel": 1}, 39.07),
        ({"tp": 8, "sequence_parallel": 1}, 28.29),
    ],
    ids=["pp2", "tp2", "tp4", "tp8"],
)
@pytest.mark.parametrize("accum", [4, 8])
def test_measured_allocations_are_predicted_within_five_per_cent(
    degrees: dict[str, int], gibibytes: float, accum: int
) -> None:
    """Llama 3 70B cut to 12 layers with Megatron-LM on B200s; SimuMax docs/b200/b200_release_v1.2_summary.md."""
    shape = resized(known("llama3-70b"), layers=12)
    some = layouts(accum * degrees.get("dp", 1), zero=1, **degrees)
    allocated = memory(shape, some, length=4096).allocated_bytes
    assert float(allocated[0]) / 2**30 == pytest.approx(gibibytes, rel=0.05)


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_experts_in_every_second_layer_are_shared_evenly_by_the_stages(pp: int) -> None:
    """With the dense layers first, the later stages would hold all experts."""
    maverick = known("llama4-maverick")
    first = maverick.model_copy(update={"interleaved": False})
    degrees = {"pp": pp, "ep": 8, "dp": 8, "dp_shard": 8}
    stage, expected = states(memory(maverick, **degrees)), 18 * (maverick.num_parameters - 2 * 202048 * 5120) / pp
    routed = 18 * maverick.experts * expert_parameters(maverick) * 24 / pp
    assert stage == pytest.approx(expected - routed + routed / 8 + 18 * 202048 * 5120, rel=0.01)
    assert states(memory(first, **degrees)) > 1.2 * stage
