"""Step time: a sum of terms, each of which follows its formula."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import processes
from tests.plan.shapes import calibration, layout, shape
from trainworks.plan.local.step_time import all_reduce_time_s, calibration_request, predict_step_time, ring_share

BYTES = st.floats(1, 1e12)
RATES = st.floats(1e6, 1e12)


def step(dp_shard: int = 1, dp_replicate: int = 1, accumulate: int = 1, **measured):
    """A predicted step of sequences of 128 tokens."""
    ranks = layout(dp_shard, dp_replicate, accumulate=accumulate)
    return predict_step_time(shape(), ranks, calibration(**measured), sequence_length=128)


@given(BYTES, RATES, st.floats(0, 1))
def test_one_rank_reduces_in_no_time(message: float, rate: float, latency: float) -> None:
    assert all_reduce_time_s(message, 1, latency_s=latency, bytes_per_s=rate) == 0


@given(BYTES, RATES, st.integers(2, 4096))
def test_the_bus_bandwidth_of_the_modelled_time_is_the_bandwidth_put_in(
    message: float, rate: float, ranks: int
) -> None:
    seconds = all_reduce_time_s(message, ranks, latency_s=0.0, bytes_per_s=rate)
    assert message / seconds * ring_share(ranks) == pytest.approx(rate)


@given(st.integers(1, 4096))
def test_a_ring_sends_less_than_twice_its_message(ranks: int) -> None:
    assert ring_share(ranks) < ring_share(ranks + 1) < 2


def test_one_rank_does_not_communicate() -> None:
    assert step(all_reduce_latency_s=1.0).communication_s == 0


@pytest.mark.parametrize("axis", ["dp_shard", "dp_replicate"])
def test_more_ranks_communicate(axis: str) -> None:
    assert step(**{axis: 2}).communication_s > 0


@given(st.integers(1, 64))
def test_compute_is_linear_in_accumulation(accumulate: int) -> None:
    assert step(accumulate=accumulate).compute_s == pytest.approx(accumulate * step().compute_s)


@given(st.integers(1, 64))
def test_the_optimizer_s_work_is_shared_by_the_shards(dp_shard: int) -> None:
    assert step(dp_shard).optimizer_s == pytest.approx(step().optimizer_s / dp_shard)


@given(st.floats(1, 100))
def test_a_faster_machine_computes_no_slower(factor: float) -> None:
    faster = step(attention_flops_per_s=factor * 1e12, memory_bytes_per_s=factor * 1e10)
    assert faster.compute_s <= step().compute_s


def test_matrix_products_take_their_flops_over_their_rate() -> None:
    """Everything else is made free: 6 FLOPs per weight and token remain."""
    model = shape()
    free = {"attention_flops_per_s": 1e30, "memory_bytes_per_s": 1e30}
    weights = model.num_parameters - model.hidden * (2 * model.layers + 1)
    assert step(**free).compute_s == pytest.approx(6 * 128 * weights / 1e12)


def test_what_is_measured_are_the_products_of_one_micro_batch() -> None:
    request = calibration_request(shape(), layout(micro_batch=2), processes(), sequence_length=128, precision="bf16")
    assert request.gemm_shapes == ((256, 64, 64), (256, 192, 64), (256, 1000, 64))
