"""The learning rate is a function of the step."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.config.optimizer import Optimizer
from trainworks.worker.optimizer import learning_rate

STEPS = 100


def settings(**changes) -> Optimizer:
    return Optimizer.model_validate({"lr": 1.0, "warmup": "10 steps", "min_lr_ratio": 0.1} | changes)


def rates(**changes) -> list[float]:
    return [learning_rate(step, num_steps=STEPS, settings=settings(**changes)) for step in range(STEPS + 1)]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_warm_up_rises_linearly_to_the_peak(schedule):
    assert rates(schedule=schedule)[:10] == pytest.approx([step / 10 for step in range(1, 11)])


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_rate_falls_to_its_floor(schedule):
    after = rates(schedule=schedule)[10:]
    assert after == sorted(after, reverse=True)
    assert after[-1] == pytest.approx(0.1)


def test_constant_stays():
    assert set(rates(schedule="constant")[10:]) == {1.0}


@given(step=st.integers(0, 10_000))
def test_the_rate_is_never_above_the_peak_nor_below_the_floor_after_warm_up(step):
    rate = learning_rate(step, num_steps=STEPS, settings=settings())
    assert 0 < rate <= 1.0
    assert step < 10 or rate >= 0.1 - 1e-12


def course(schedule: str, num_steps: int = 100, **settings: object) -> list[float]:
    chosen = Optimizer.model_validate({"lr": 1.0, "schedule": schedule, "warmup": "10 steps"} | settings)
    return [learning_rate(step, num_steps=num_steps, settings=chosen) for step in range(num_steps)]


def test_wsd_is_stable_and_then_falls_linearly_to_its_floor() -> None:
    found = course("wsd", min_lr_ratio=0.1, decay_share=0.25)
    assert found[9:76] == [1.0] * 67
    assert found[-1] == pytest.approx(1 - 0.9 * 24 / 25)
    falls = [before - after for before, after in pairwise(found[75:])]
    assert falls == pytest.approx([0.9 / 25] * len(falls))


def test_inverse_sqrt_falls_by_half_when_the_steps_are_four_times_the_warm_up() -> None:
    found = course("inverse-sqrt")
    assert found[9] == 1.0
    assert found[39] == pytest.approx(0.5)
    assert all(before > after for before, after in pairwise(found[9:]))


def test_a_range_test_rises_by_the_same_factor_at_every_step() -> None:
    found = course("range-test", min_lr_ratio=1e-6, warmup=None)
    factors = [after / before for before, after in pairwise(found)]
    assert found[0] == pytest.approx(1e-6)
    assert factors == pytest.approx([factors[0]] * len(factors))
    assert factors[0] > 1


def test_a_decay_share_without_its_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="`decay_share` is of `schedule: wsd`"):
        Optimizer.model_validate({"decay_share": 0.5})
