"""The step: its terms, what each degree costs, and the bubble of a pipeline."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.jobs import A100S, BATCH, H100S, JOBS, job, known, layouts, random_layouts
from trainworks.errors import UsageError
from trainworks.plan.coefficients import COEFFICIENTS
from trainworks.plan.compression import gathered_bytes
from trainworks.plan.flops import causal_flops_per_token
from trainworks.plan.job import StepTimes
from trainworks.plan.layouts import Layouts, Recompute
from trainworks.plan.parameters import resized
from trainworks.plan.software import Software
from trainworks.plan.step_time import TrainingJob

MANY = random_layouts(300, seed=2)
LLAMA = job()
NO_HEAD = job(resized(known("llama2-7b"), vocabulary=8))
DEGREES = st.sampled_from([2, 4, 8])


def step(of: TrainingJob = LLAMA, global_batch: int = BATCH, **degrees: Any) -> StepTimes:
    """One step of one layout."""
    return of.step_times(layouts(global_batch, **degrees))


def seconds(of: TrainingJob = LLAMA, global_batch: int = BATCH, **degrees: Any) -> float:
    return float(step(of, global_batch, **degrees).total_s[0])


def with_every(option: str, value: float) -> Layouts:
    """Many random layouts that agree in one option."""
    return replace(MANY, **{option: np.full(len(MANY), value)})


@pytest.mark.parametrize("name", JOBS)
def test_the_terms_add_up(name: str) -> None:
    times = JOBS[name].step_times(MANY)
    terms = np.sum([getattr(times, field.name) for field in fields(times)], axis=0)
    assert np.allclose(times.total_s, terms, rtol=1e-12)


@pytest.mark.parametrize("name", JOBS)
def test_no_layout_beats_the_data_sheet(name: str) -> None:
    """Products of a step, without the part of attention that a causal mask saves, at the peak of all accelerators."""
    of = JOBS[name]
    flops = BATCH * of.sequence_length * causal_flops_per_token(of.shape, of.sequence_length)
    peak = of.cluster.accelerator.peak_flops_per_s[of.precision]  # type: ignore[index]
    assert (of.step_times(MANY).total_s > flops / (peak * MANY.world_size)).all()


@pytest.mark.parametrize("name", JOBS)
def test_twice_the_batch_takes_at_most_twice_as_long(name: str) -> None:
    once = JOBS[name].step_times(MANY).total_s
    twice = JOBS[name].step_times(replace(MANY, accum=2 * MANY.accum)).total_s
    assert (once < twice).all()
    assert (twice <= 2 * once * (1 + 1e-12)).all()


@pytest.mark.parametrize("name", JOBS)
def test_the_work_of_a_step_grows_with_its_micro_batches(name: str) -> None:
    once, twice = (JOBS[name].step_times(replace(MANY, accum=n * MANY.accum)) for n in (1, 2))
    assert np.allclose(twice.forward_s, 2 * once.forward_s)
    assert np.allclose(twice.bubble_s, once.bubble_s)


def test_one_accelerator_talks_to_nobody() -> None:
    times = step()
    assert [times.tp_s, times.cp_s, times.ep_s, times.pp_s, times.dp_s, times.bubble_s, times.straggle_s] == [0] * 7


@pytest.mark.parametrize(
    ("term", "degree"), [("tp_s", "tp"), ("cp_s", "cp"), ("ep_s", "ep"), ("pp_s", "pp"), ("bubble_s", "pp")]
)
def test_a_degree_of_one_costs_no_communication(term: str, degree: str) -> None:
    times = JOBS["experts"].step_times(MANY)
    assert (getattr(times, term)[getattr(MANY, degree) == 1] == 0).all()
    assert (getattr(times, term)[getattr(MANY, degree) > 1] > 0).all()


def test_replicas_of_data_have_gradients_to_exchange() -> None:
    times = LLAMA.step_times(MANY)
    assert ((times.dp_s > 0) == (MANY.dp * MANY.cp > 1)).all()


def test_what_is_not_computed_again_takes_no_time() -> None:
    times = LLAMA.step_times(MANY)
    assert ((times.recompute_s > 0) == (MANY.recompute > 0)).all()


@pytest.mark.parametrize("name", JOBS)
def test_recomputation_never_makes_a_step_faster(name: str) -> None:
    """Unless activations have to leave the device, which takes longer the more of them are kept."""
    none, selective, full = (
        JOBS[name].step_times(replace(with_every("recompute", kind), offload=0 * MANY.offload)).total_s
        for kind in Recompute
    )
    assert (none <= selective * (1 + 1e-12)).all()
    assert (selective <= full * (1 + 1e-12)).all()


@pytest.mark.parametrize("term", ["recompute_s", "tp_s", "cp_s"])
def test_layers_that_do_not_recompute_have_the_time_of_a_layout_that_does_not(term: str) -> None:
    none, some, every = (
        float(getattr(step(tp=2, cp=2, pp=4, recompute=kind, recompute_layers=layers), term)[0])
        for kind, layers in ((Recompute.NONE, 0), (Recompute.FULL, 3), (Recompute.FULL, 0))
    )
    assert none < some
    assert some == pytest.approx(none + (every - none) * 3 / 8)


@given(pp=DEGREES, per_stage=st.integers(1, 8), interleave=st.sampled_from([1, 2, 4]))
def test_the_bubble_of_an_even_pipeline_is_narayanan_s(pp: int, per_stage: int, interleave: int) -> None:
    """(p - 1) / (v m) of the time that the stages work: Narayanan et al. 2021, section 2.2."""
    times = step(NO_HEAD, global_batch=per_stage * pp, pp=pp, interleave=interleave)
    working = times.forward_s + times.backward_s
    expected = (pp - 1) / (interleave * per_stage * pp)
    assert float((times.bubble_s / working)[0]) == pytest.approx(expected, rel=0.03)


@given(pp=DEGREES, tp=st.sampled_from([1, 8]))
def test_a_zero_bubble_schedule_leaves_less_of_the_bubble(pp: int, tp: int) -> None:
    plain, filled = (step(pp=pp, tp=tp, zero_bubble=value).bubble_s for value in (0, 1))
    assert 0 < filled < 0.7 * plain


@given(pp=DEGREES)
def test_more_chunks_make_a_smaller_bubble_and_more_messages(pp: int) -> None:
    chunked = [step(pp=pp, interleave=v) for v in (1, 2, 4)]
    bubbles, messages = ([float(getattr(times, term)[0]) for times in chunked] for term in ("bubble_s", "pp_s"))
    assert bubbles == sorted(set(bubbles), reverse=True)
    assert messages == sorted(set(messages))


def test_the_slowest_stage_of_an_uneven_pipeline_sets_the_pace() -> None:
    """7 blocks on 2 stages are 4 and 3: as slow as 8."""
    seven, eight = (job(resized(known("llama2-7b"), layers=layers, vocabulary=8)) for layers in (7, 8))
    assert step(seven, pp=2).forward_s == pytest.approx(step(eight, pp=2).forward_s, rel=1e-12)


def test_logits_slow_down_the_last_stage() -> None:
    wide = job(resized(known("llama2-7b"), vocabulary=256000))
    assert step(wide, pp=4).head_s > 10 * step(NO_HEAD, pp=4).head_s


def test_a_last_stage_with_a_block_less_has_time_for_the_logits() -> None:
    """Llama 3 405B: 126 layers on 16 stages, the ends counted, against 128."""
    short, even = (job(resized(known("llama3.1-405b"), layers=layers), "128x H100-SXM") for layers in (126, 128))
    assert seconds(short, tp=8, pp=16) < seconds(even, tp=8, pp=16)


@pytest.mark.parametrize("name", JOBS)
def test_software_that_overlaps_is_never_slower(name: str) -> None:
    of = JOBS[name]
    apart, overlapped = (replace(of, software=replace(of.software, overlap=value)) for value in (False, True))
    assert (overlapped.step_times(MANY).total_s <= apart.step_times(MANY).total_s).all()


def test_sharded_weights_travel_once_per_micro_batch() -> None:
    apart = replace(LLAMA, software=Software(overlap=False))
    short, long = (step(apart, batch, dp=8, dp_shard=8, zero=3).dp_s for batch in (64, 128))
    assert long == pytest.approx(2 * short, rel=1e-9)


@pytest.mark.parametrize(("native", "zero", "scatters"), [(False, 2, 16), (False, 1, 1), (True, 2, 1), (True, 1, 1)])
def test_a_pipeline_of_pytorch_scatters_its_gradients_once(native: bool, zero: int, scatters: int) -> None:
    apart = replace(LLAMA, software=Software(overlap=False, native=native))
    degrees = {"pp": 4, "dp": 8, "dp_shard": 8, "zero": zero}
    once, often = (step(apart, batch, **degrees).dp_s for batch in (8, 128))  # 1 and 16 micro-batches
    assert often[0] / once[0] == pytest.approx((4 * scatters + 2) / (4 + 2), rel=0.02)


def test_an_interleaved_pipeline_scatters_the_gradients_of_a_run_of_micro_batches_once() -> None:
    apart = replace(LLAMA, software=Software(overlap=False))
    once, plain, chunked = (
        float(step(apart, 128, dp=4, dp_shard=4, pp=4, zero=zero, interleave=v).dp_s[0])
        for zero, v in ((1, 1), (2, 1), (2, 4))
    )
    gathered = float(step(apart, 4, dp=4, dp_shard=4, pp=4, zero=1).dp_s[0]) / 3  # 16 bits of weights, 32 of gradients
    assert plain == pytest.approx(32 * (once - gathered) + gathered, rel=1e-2)
    assert chunked == pytest.approx(8 * (once - gathered) + gathered, rel=1e-2)


@given(pp=DEGREES, v=st.sampled_from([2, 4]))
def test_chunks_hide_gradients_behind_micro_batches_but_those_of_the_last_chunk(pp: int, v: int) -> None:
    slow = job(LLAMA.shape, "64 nodes of 8x A100-SXM-80GB over 1x HDR")
    degrees = {"dp": 64, "dp_shard": 64, "zero": 1, "pp": pp}
    plain, chunked = (float(step(slow, 1024, interleave=each, **degrees).dp_s[0]) for each in (1, v))
    assert plain / v <= chunked * (1 + 1e-9)
    assert (chunked < plain) == (pp > 1)


def test_fsdp_sends_gradients_in_16_bits_and_copies_them_into_and_out_of_flat_buffers() -> None:
    whole, half = (replace(LLAMA, software=Software(overlap=False, sent_gradient_bytes=sent)) for sent in (4, 2))
    ratio = step(whole, dp=8, dp_shard=8, zero=3).dp_s / step(half, dp=8, dp_shard=8, zero=3).dp_s
    assert ratio == pytest.approx((2 + 2 + 4) / (2 + 2 + 2), rel=0.02)
    native = Software.of("PyTorch", compiled=True)
    flat, megatron = (replace(LLAMA, software=each) for each in (native, replace(native, native=False)))
    copied = (
        step(flat, 64, dp=8, dp_shard=8, zero=3).backward_s - step(megatron, 64, dp=8, dp_shard=8, zero=3).backward_s
    )
    rate = COEFFICIENTS.memory_share * LLAMA.cluster.accelerator.memory_bytes_per_s
    assert float(copied[0]) == pytest.approx(8 * (5 * 2 + 2) * LLAMA.shape.num_parameters / rate, rel=0.05)


def test_deepspeed_s_zero_2_reduces_to_every_rank_and_hides_nothing() -> None:
    """2 (n - 1) / n of the gradients for each micro-batch, and (n - 1) / n of the weights after the update."""
    deepspeed, native = (replace(LLAMA, software=Software.of(name)) for name in ("DeepSpeed 2024", "PyTorch 2024"))
    large = {"dp": 8, "dp_shard": 8, "zero": 2, "micro_batch": 8}
    sent = 2 * LLAMA.shape.num_parameters * 7 / 8
    rate = COEFFICIENTS.scale_up_share * LLAMA.cluster.accelerator.scale_up_bytes_per_s
    assert float(step(deepspeed, 256, **large).dp_s[0]) == pytest.approx((4 * 2 + 1) * sent / rate, rel=0.02)
    assert step(native, 256, **large).dp_s < 0.3 * step(deepspeed, 256, **large).dp_s
    sharded = large | {"zero": 3}
    assert step(deepspeed, 256, **sharded).dp_s == step(native, 256, **sharded).dp_s


@pytest.mark.parametrize(
    ("framework", "precision", "moved"),
    [
        ("Megatron-DeepSpeed 2022", "bf16", 18),
        ("Megatron-DeepSpeed 2022", "fp16", 6),
        ("Megatron-LM 2021", "bf16", 10),
        ("Megatron-LM 2024", "bf16", 0),
    ],
)
def test_sums_of_gradients_that_are_kernels_move_their_bytes_once_per_micro_batch(
    framework: str, precision: str, moved: int
) -> None:
    software = Software.of(framework, precision=precision)
    of = job(precision=precision, software=software)
    added = (
        step(of, 64, dp=8).backward_s
        - step(replace(of, software=replace(software, summed_bytes=0)), 64, dp=8).backward_s
    )
    rate = COEFFICIENTS.memory_share * LLAMA.cluster.accelerator.memory_bytes_per_s
    assert float(added[0]) == pytest.approx(8 * moved * LLAMA.shape.num_parameters / rate, rel=0.05)


def test_offloaded_gradients_of_deepspeed_cross_the_link_between_micro_batches() -> None:
    of = replace(LLAMA, software=Software.of("DeepSpeed 2024"))
    few, many = (step(of, batch, dp=8, dp_shard=8, zero=2, offload_optimizer=1).optimizer_s for batch in (8, 32))
    crossing = 3 * 2 * 2 * LLAMA.shape.num_parameters / 8
    rate = COEFFICIENTS.host_link_share * LLAMA.cluster.accelerator.host_bytes_per_s
    assert float((many - few)[0]) == pytest.approx(crossing / rate, rel=0.02)


def test_a_pipeline_s_messages_keep_the_rate_of_omni_path_that_rings_lose() -> None:
    omni, hdr = (job(cluster=f"4 nodes of 8x A100-SXM-80GB over {net}") for net in ("4x Omni-Path 100", "2x HDR"))
    assert step(omni, dp=32).dp_s > 2 * step(hdr, dp=32).dp_s
    assert step(omni, dp=8, pp=4).pp_s < 1.2 * step(hdr, dp=8, pp=4).pp_s


def test_weights_that_are_gathered_in_8_bits_travel_in_half_of_the_bytes() -> None:
    of = job(LLAMA.shape, H100S, precision="fp8", software=Software(overlap=False))
    wide, narrow = (layouts(dp=8, dp_shard=8, zero=3, fp8_all_gather=each) for each in (0, 1))
    per_parameter = [float(gathered_bytes(of.shape, each, 2.0)[0]) for each in (wide, narrow)]
    tables = 2 * LLAMA.shape.vocabulary * LLAMA.shape.hidden / LLAMA.shape.num_parameters
    assert per_parameter == [2.0, pytest.approx(1 + tables)]
    assert float(of.step_times(narrow).dp_s[0]) < float(of.step_times(wide).dp_s[0])


def test_replicated_gradients_travel_once_per_step() -> None:
    apart = replace(LLAMA, software=Software(overlap=False))
    assert step(apart, 64, dp=8).dp_s == step(apart, 128, dp=8).dp_s


def test_shards_within_a_node_and_replicas_between_need_less_of_the_network_over_many_micro_batches() -> None:
    apart = replace(LLAMA, software=Software(overlap=False))
    everywhere, hybrid = (step(apart, 2048, dp=32, dp_shard=size, zero=3).dp_s for size in (32, 8))
    assert hybrid < everywhere


def test_a_shared_optimizer_updates_its_share() -> None:
    assert step(dp=8, dp_shard=8, zero=1).optimizer_s == pytest.approx(step().optimizer_s / 8)


def test_an_optimizer_in_the_host_s_memory_waits_for_the_link() -> None:
    assert step(offload_optimizer=1).optimizer_s > step().optimizer_s


def test_offloaded_activations_hide_where_the_link_is_fast() -> None:
    slow, fast = (step(job(cluster=text), offload=1).offload_s for text in ("1x A100-SXM-80GB", "1x GH200"))
    assert fast < slow


@given(tp=DEGREES)
def test_tp_between_nodes_is_slower_than_within_one(tp: int) -> None:
    narrow = job(cluster="16 nodes of 1x A100-SXM-80GB over 1x HDR")
    assert step(narrow, tp=tp).tp_s > step(tp=tp).tp_s


def test_a_faster_accelerator_takes_less_time() -> None:
    parts = ("V100-SXM-32GB", "A100-SXM-80GB", "H100-SXM", "B200")
    times = [seconds(job(cluster=f"1x {part}", precision="fp16")) for part in parts]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("dp", [1, 2, 4, 8, 16])
def test_more_replicas_of_the_same_batch_are_faster(dp: int) -> None:
    assert seconds(dp=2 * dp, micro_batch=1) < seconds(dp=dp, micro_batch=1)


def test_more_nodes_wait_for_a_slower_slowest() -> None:
    shares = [float((step(dp=dp).straggle_s / step(dp=dp).total_s)[0]) for dp in (8, 16, 32)]
    assert shares == sorted(set(shares))


def test_the_optimizer_of_a_step_does_not_grow_with_the_batch() -> None:
    assert step(global_batch=64).optimizer_s == step(global_batch=128).optimizer_s


def test_coefficients_are_an_argument() -> None:
    slower = replace(COEFFICIENTS, step_s=COEFFICIENTS.step_s + 1.0)
    once = layouts()
    added = LLAMA.step_times(once, slower).total_s - LLAMA.step_times(once).total_s
    assert float(added[0]) == pytest.approx(1.0)


def test_a_precision_without_units_is_refused() -> None:
    with pytest.raises(UsageError, match="A100-SXM-80GB has no fp8 matrix units"):
        step(job(cluster=A100S, precision="fp8"))
