"""The learning rate is a function of the step."""

from __future__ import annotations

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
