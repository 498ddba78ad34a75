"""Arrays of layouts: what is said of many is said of each."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.jobs import BATCH, JOBS, layouts, random_layouts
from trainworks.plan.job import StepTimes
from trainworks.plan.layouts import Layouts
from trainworks.plan.memory import Memories, predict_memories
from trainworks.plan.step_time import TrainingJob

MANY = random_layouts(300)


def memories(job: TrainingJob, of: Layouts) -> Memories:
    return predict_memories(
        job.shape, of, sequence_length=job.sequence_length, precision=job.precision, software=job.software
    )


def same(one: object, other: object) -> bool:
    """Whether all arrays of two records agree to twelve figures."""
    return all(
        np.allclose(getattr(one, field.name), getattr(other, field.name), rtol=1e-12, atol=0)
        for field in fields(one)  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", JOBS)
def test_pricing_many_layouts_at_once_is_pricing_each_alone(name: str) -> None:
    some = MANY.take(slice(list(JOBS).index(name), None, len(JOBS)))
    alone = [some.take(slice(index, index + 1)) for index in range(len(some))]
    times = [JOBS[name].step_times(one) for one in alone]
    together = JOBS[name].step_times(some)
    assert same(together, StepTimes(*map(np.concatenate, zip(*map(values, times), strict=True))))


@pytest.mark.parametrize("name", JOBS)
def test_the_memory_of_many_layouts_at_once_is_the_memory_of_each_alone(name: str) -> None:
    some = MANY.take(slice(list(JOBS).index(name), None, len(JOBS)))
    alone = [some.take(slice(index, index + 1)) for index in range(len(some))]
    each = [memories(JOBS[name], one) for one in alone]
    assert same(memories(JOBS[name], some), Memories(*map(np.concatenate, zip(*map(values, each), strict=True))))


def values(record: object) -> list[np.ndarray]:
    return [getattr(record, field.name) for field in fields(record)]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", JOBS)
def test_every_layout_has_a_time_and_a_memory(name: str) -> None:
    for record in (JOBS[name].step_times(MANY), memories(JOBS[name], MANY)):
        assert all(np.isfinite(array).all() and (array >= 0).all() for array in values(record))
        assert all(array.shape == (len(MANY),) for array in values(record))


@given(st.permutations(range(40)))
def test_the_order_of_layouts_means_nothing(order: list[int]) -> None:
    job = JOBS["dense"]
    some = MANY.take(slice(0, 40))
    shuffled = job.step_times(some.take(np.array(order)))
    assert (shuffled.total_s == job.step_times(some).total_s[order]).all()


@given(st.integers(1, 400))
def test_chunks_put_together_are_the_layouts(size: int) -> None:
    chunks = list(MANY.chunks(size))
    assert all(len(chunk) <= size for chunk in chunks)
    assert same(Layouts.concatenate(chunks), MANY)


def test_micro_batch_times_accumulation_times_dp_is_the_global_batch() -> None:
    assert (MANY.micro_batch * MANY.accum * MANY.dp == BATCH).all()


def test_the_world_size_is_the_product_of_the_axes_without_ep() -> None:
    assert layouts(dp=2, cp=3, tp=5, pp=7, ep=2).world_size == 210


def test_a_degree_that_is_not_given_is_one_and_an_option_off() -> None:
    row = layouts(4).row(0)
    degrees = {"dp", "dp_shard", "tp", "pp", "interleave", "cp", "ep", "micro_batch"}
    assert {name for name, value in row.items() if value == 1} == degrees
    assert {name for name, value in row.items() if value == 0} == row.keys() - degrees - {"accum"}


def test_values_are_broadcast_against_each_other() -> None:
    assert layouts(tp=np.array([1.0, 2.0, 4.0]), pp=2).world_size.tolist() == [2, 4, 8]


def test_an_unknown_degree_is_our_own_mistake() -> None:
    with pytest.raises(TypeError, match="no such degree: tpp"):
        layouts(tpp=2)
    with pytest.raises(TypeError, match="no such degree: accum"):
        layouts(accum=2)


def test_a_micro_batch_that_is_larger_than_a_rank_s_share_counts_once() -> None:
    assert layouts(4, dp=4, micro_batch=8).accum == 1


def test_no_layouts_are_none() -> None:
    assert len(MANY.take(MANY.dp < 0)) == 0


def test_a_mask_takes_the_layouts_where_it_is_true() -> None:
    assert (MANY.take(MANY.tp == 8).tp == 8).all()
