"""One block on one rank: what its degrees divide, what recomputation adds, what bounds it from below."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.jobs import UNFUSED, known, layouts, tiny
from trainworks.catalog.catalog import accelerator
from trainworks.plan.blocks import BlockTimes, HeadTimes, block_times, head_times
from trainworks.plan.coefficients import COEFFICIENTS
from trainworks.plan.compute import device_rates
from trainworks.plan.layouts import Layouts, Recompute
from trainworks.plan.parameters import attention_parameters, dense_mlp_parameters, resized
from trainworks.plan.software import Software
from trainworks.record.model_shape import ModelShape

LLAMA, EXPERTS, LATENT = known("llama2-7b"), known("qwen3-30b-a3b"), known("deepseek-v2")
MODELS = {"dense": LLAMA, "experts": EXPERTS, "latent": LATENT, "encoder": known("bert-large")}
LENGTH = 4096
DEGREES = st.sampled_from([1, 2, 4, 8])


def block(
    shape: ModelShape = LLAMA,
    *,
    software: Software = Software(),  # noqa: B008
    length: int = LENGTH,
    precision: str = "bf16",
    coefficients: Any = COEFFICIENTS,
    **degrees: Any,
) -> BlockTimes:
    """One block on an H100."""
    device = device_rates(accelerator("H100-SXM"), precision, coefficients)
    return block_times(shape, layouts(**degrees), sequence_length=length, device=device, software=software)


def head(shape: ModelShape = LLAMA, software: Software = Software(), **degrees: Any) -> HeadTimes:  # noqa: B008
    device = device_rates(accelerator("H100-SXM"), "bf16")
    return head_times(shape, layouts(**degrees), sequence_length=LENGTH, device=device, software=software)


@pytest.mark.parametrize("software", [Software(), UNFUSED], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", MODELS)
def test_full_recomputation_adds_exactly_the_forward(name: str, software: Software) -> None:
    again = block(MODELS[name], software=software, recompute=Recompute.FULL)
    once = block(MODELS[name], software=software)
    assert again.recomputed_s == pytest.approx(once.forward_s, rel=1e-12)
    assert again.total_s == pytest.approx(once.total_s + once.forward_s, rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_without_recomputation_nothing_is_computed_again(name: str) -> None:
    assert block(MODELS[name]).recomputed_s == 0


@pytest.mark.parametrize("software", [Software(), UNFUSED], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", MODELS)
def test_selective_recomputation_adds_a_part_of_the_forward(name: str, software: Software) -> None:
    chosen = block(MODELS[name], software=software, recompute=Recompute.SELECTIVE)
    assert 0 < chosen.recomputed_s < chosen.forward_s


@given(micro_batch=DEGREES, tp=DEGREES, recompute=st.sampled_from(Recompute))
def test_recomputation_changes_neither_forward_nor_backward(micro_batch: int, tp: int, recompute: Recompute) -> None:
    again = block(micro_batch=micro_batch, tp=tp, recompute=recompute)
    once = block(micro_batch=micro_batch, tp=tp)
    assert (again.forward_s, again.backward_s) == (once.forward_s, once.backward_s)


@pytest.mark.parametrize("name", MODELS)
@given(micro_batch=DEGREES)
def test_tp_divides_the_work_by_its_degree_at_most(name: str, micro_batch: int) -> None:
    whole = block(MODELS[name], micro_batch=micro_batch).total_s
    for tp in (2, 4, 8):
        part = block(MODELS[name], micro_batch=micro_batch, tp=tp, sequence_parallel=1).total_s
        assert whole / tp * (1 - 1e-12) <= part


@pytest.mark.parametrize("name", ["dense", "experts", "latent"])
def test_tp_makes_a_large_block_faster(name: str) -> None:
    times = [float(block(MODELS[name], micro_batch=4, tp=tp).total_s[0]) for tp in (1, 2, 4)]
    assert times == sorted(times, reverse=True)


@given(micro_batch=DEGREES, tp=DEGREES, cp=DEGREES)
def test_a_block_is_never_faster_than_its_products_at_the_full_rate(micro_batch: int, tp: int, cp: int) -> None:
    tokens = micro_batch * LENGTH / cp
    rate = device_rates(accelerator("H100-SXM"), "bf16").product_flops_per_s
    forward = 2 * (attention_parameters(LLAMA) + dense_mlp_parameters(LLAMA)) * tokens / tp / rate
    times = block(micro_batch=micro_batch, tp=tp, cp=cp)
    assert times.forward_s >= forward
    assert times.backward_s >= 2 * forward


@pytest.mark.parametrize("name", MODELS)
def test_a_small_block_takes_as_long_as_its_launches(name: str) -> None:
    small = {"dense": "llama", "experts": "mixtral", "latent": "deepseek_v3", "encoder": "bert"}[name]
    slow = replace(COEFFICIENTS, launch_s=2 * COEFFICIENTS.launch_s)
    times, slower = (block(tiny(small), length=32, coefficients=given) for given in (COEFFICIENTS, slow))
    assert slower.forward_s == pytest.approx(2 * times.forward_s, rel=0.02)


def test_the_launches_of_a_small_block_are_not_divided() -> None:
    one, eight = (block(tiny(), length=32, micro_batch=1, tp=tp).total_s for tp in (1, 2))
    assert eight == pytest.approx(one, rel=0.02)


def test_a_large_block_does_not_wait_for_its_launches() -> None:
    none = replace(COEFFICIENTS, launch_s=0.0)
    assert block(micro_batch=4).total_s == pytest.approx(block(micro_batch=4, coefficients=none).total_s, rel=0.05)


@given(micro_batch=DEGREES, tp=DEGREES)
def test_a_micro_batch_twice_as_large_takes_at_most_twice_as_long(micro_batch: int, tp: int) -> None:
    once, twice = (block(micro_batch=size * micro_batch, tp=tp).total_s for size in (1, 2))
    assert once < twice <= 2 * once * (1 + 1e-12)


def test_a_sequence_twice_as_long_takes_more_than_twice_as_long() -> None:
    assert block(length=32768).forward_s > 2.2 * block(length=16384).forward_s


@given(cp=st.sampled_from([2, 4, 8]))
def test_context_parallelism_divides_a_long_sequence(cp: int) -> None:
    whole, part = block(length=65536).total_s, block(length=65536, cp=cp).total_s
    assert part == pytest.approx(whole / cp, rel=0.02)


@given(tp=st.sampled_from([2, 4, 8]))
def test_sequence_parallelism_moves_fewer_bytes(tp: int) -> None:
    assert block(tp=tp, sequence_parallel=1).total_s < block(tp=tp).total_s


def test_fused_attention_is_faster() -> None:
    assert block().total_s < block(software=UNFUSED).total_s


def test_an_8_bit_block_is_faster_where_products_are_large() -> None:
    wide = known("llama3-70b")
    assert block(wide, precision="fp8").total_s < block(wide).total_s


def test_a_model_s_block_is_the_mean_of_its_kinds() -> None:
    """Three dense layers of four, in equal parts of the two."""
    shape = resized(LATENT, layers=4, dense_layers=3)
    dense, experts = (block(resized(LATENT, layers=1, dense_layers=number)) for number in (1, 0))
    assert block(shape).total_s == pytest.approx(0.75 * dense.total_s + 0.25 * experts.total_s, rel=1e-12)


@given(ep=st.sampled_from([2, 4, 8, 16]))
def test_experts_on_more_ranks_meet_more_tokens_each_in_no_more_time(ep: int) -> None:
    assert block(EXPERTS, dp=16, ep=ep).total_s <= block(EXPERTS, dp=16).total_s * (1 + 1e-12)


def test_more_experts_per_token_cost_more() -> None:
    more = EXPERTS.model_copy(update={"experts_per_token": 2 * EXPERTS.experts_per_token})
    assert block(more).total_s > block(EXPERTS).total_s


def test_key_value_heads_are_copied_where_there_are_fewer_than_ranks() -> None:
    grouped = known("llama3-70b")
    assert grouped.kv_heads == 8
    once, twice = (block(grouped, tp=tp).forward_s for tp in (8, 16))
    assert twice > once / 2


@given(tp=DEGREES)
def test_logits_are_divided_by_tp(tp: int) -> None:
    assert head(tp=tp).output_s >= head().output_s / tp * (1 - 1e-12)
    assert head(tp=2 * tp).output_s < head(tp=tp).output_s


def test_a_larger_vocabulary_costs_at_the_output_alone() -> None:
    wide, narrow = head(resized(LLAMA, vocabulary=128000)), head(resized(LLAMA, vocabulary=32000))
    assert wide.output_s > 3 * narrow.output_s
    assert wide.embedding_s == narrow.embedding_s


def test_a_fused_loss_moves_fewer_bytes() -> None:
    assert head().output_s < head(software=UNFUSED).output_s


@pytest.mark.parametrize("length", [8192, 32768])
def test_attention_within_chunks_takes_the_time_of_a_window_half_as_long(length: int) -> None:
    chunked = known("llama4-scout")
    windowed = chunked.model_copy(update={"chunked": False, "window": chunked.window // 2})
    assert block(chunked, length=length).forward_s == pytest.approx(block(windowed, length=length).forward_s)


@pytest.mark.parametrize("length", [4096, 8192])
def test_a_chunk_as_long_as_the_sequence_is_none(length: int) -> None:
    whole = known("llama4-scout").model_copy(update={"window_layers": 0})
    assert block(known("llama4-scout"), length=length).forward_s == block(whole, length=length).forward_s


def test_shapes_are_those_of_the_layouts() -> None:
    many: Layouts = layouts(tp=np.array([1.0, 2.0, 4.0]))
    device = device_rates(accelerator("H100-SXM"), "bf16")
    times = block_times(LLAMA, many, sequence_length=LENGTH, device=device, software=Software())
    assert times.forward_s.shape == times.recomputed_s.shape == (3,)


def test_a_recomputation_that_stops_early_leaves_out_the_last_product() -> None:
    """Backward does not need the output of the down projection: 4096 x 11008 of a block of Llama 2 7B."""
    whole, early = (block(recompute=Recompute.FULL, software=Software(repeats_last=last)) for last in (True, False))
    products = attention_parameters(LLAMA) + dense_mlp_parameters(LLAMA)
    left_out = (whole.recomputed_s - early.recomputed_s) / whole.forward_s
    assert float(left_out[0]) == pytest.approx(4096 * 11008 / products, rel=0.25)
    assert whole.forward_s == early.forward_s


def test_experts_are_recomputed_whole() -> None:
    whole, early = (
        block(resized(EXPERTS, layers=1), recompute=Recompute.FULL, software=Software(repeats_last=last))
        for last in (True, False)
    )
    assert whole.recomputed_s == early.recomputed_s


def test_casts_outside_of_transformer_engine_are_kernels_of_their_own() -> None:
    """7 bytes for 4 of each value, and of each weight in every micro-batch."""
    inside, outside = (Software(framework=name) for name in ("megatron", "jax"))
    assert block(software=inside).forward_s == block(software=outside).forward_s
    assert block(software=inside, precision="fp8").forward_s < block(software=outside, precision="fp8").forward_s


def test_units_that_are_no_faster_in_8_bits_cast_inside() -> None:
    assert device_rates(accelerator("H100-SXM"), "fp8").casts
    assert not device_rates(accelerator("TPU-v6e"), "fp8").casts
    assert not device_rates(accelerator("H100-SXM"), "bf16").casts
