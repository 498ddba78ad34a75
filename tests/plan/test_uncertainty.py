"""What is believed of a cluster: laws of the interval, and of what a measurement does to it."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.jobs import job, random_layouts
from trainworks.plan.step_time import StepTimes, predict_step_times
from trainworks.plan.uncertainty import GROUPS, PRIOR, Belief, calibrated_s, interval_s, learn, learn_group

MANY = predict_step_times(job(), random_layouts(200, seed=3))
FACTORS = st.floats(0.5, 1.4)
ROWS = st.integers(0, len(MANY.total_s) - 1)


def row(index: int) -> StepTimes:
    """One of the predictions."""
    return StepTimes(**{field.name: getattr(MANY, field.name)[index : index + 1] for field in fields(MANY)})


def predicted(times: StepTimes, belief: Belief = PRIOR) -> float:
    return float(calibrated_s(times, belief)[0])


def width(times: StepTimes, belief: Belief = PRIOR) -> float:
    """Upper over lower end of the interval."""
    low, high = interval_s(times, belief)
    return float((high / low)[0])


def test_every_term_is_in_one_group() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(f.name for f in fields(StepTimes))


def test_before_any_measurement_the_prediction_is_the_model_s() -> None:
    assert np.allclose(calibrated_s(MANY), MANY.total_s, rtol=1e-12)


@given(ROWS, FACTORS, st.floats(1, 4))
def test_an_interval_has_the_prediction_between_its_ends(index: int, factor: float, widen: float) -> None:
    times = row(index)
    belief = learn(times, [factor * predicted(times)])
    low, high = interval_s(times, belief, widen=widen)
    assert 0 < low < predicted(times, belief) < high


@given(st.floats(1.01, 10))
def test_a_wider_interval_has_the_narrow_one_inside(widen: float) -> None:
    (low, high), (lower, higher) = interval_s(MANY), interval_s(MANY, widen=widen)
    assert (lower < low).all()
    assert (high < higher).all()


@given(ROWS, FACTORS)
def test_a_measurement_moves_the_prediction_towards_itself(index: int, factor: float) -> None:
    times = row(index)
    before = predicted(times)
    after = predicted(times, learn(times, [factor * before]))
    assert min(before, factor * before) * (1 - 1e-9) <= after <= max(before, factor * before) * (1 + 1e-9)


def test_a_measurement_that_is_far_off_moves_no_prediction_beyond_itself() -> None:
    for times in map(row, range(200)):
        measured = 1.75 * predicted(times)
        assert predicted(times, learn(times, [measured])) <= measured


@given(ROWS, FACTORS)
def test_a_measurement_never_widens_the_interval(index: int, factor: float) -> None:
    times = row(index)
    assert width(times, learn(times, [factor * predicted(times)])) < width(times) * (1 + 1e-9)


@given(ROWS)
def test_measuring_what_was_predicted_changes_no_mean(index: int) -> None:
    times = row(index)
    belief = learn(times, [predicted(times)])
    assert np.allclose(belief.mean, PRIOR.mean, atol=1e-12)
    assert width(times, belief) < width(times)


@given(ROWS, FACTORS)
def test_what_was_learned_of_one_cluster_is_not_believed_of_another(index: int, factor: float) -> None:
    mean, covariance = PRIOR.mean.copy(), PRIOR.covariance.copy()
    learn(row(index), [factor])
    learn_group(PRIOR, "kernels", factor)
    assert (PRIOR.mean == mean).all()
    assert (PRIOR.covariance == covariance).all()


@given(ROWS, FACTORS)
def test_the_same_measurement_again_and_again_is_believed_in_the_end(index: int, factor: float) -> None:
    times = row(index)
    measured = factor * predicted(times)
    assert predicted(times, learn(times_of(index, 60), [measured] * 60)) == pytest.approx(measured, rel=0.05)


def times_of(index: int, count: int) -> StepTimes:
    return StepTimes(**{field.name: np.repeat(getattr(MANY, field.name)[index], count) for field in fields(MANY)})


@given(st.lists(st.tuples(ROWS, FACTORS), max_size=6))
def test_a_belief_stays_a_distribution(measured: list[tuple[int, float]]) -> None:
    belief = PRIOR
    for index, factor in measured:
        belief = learn(row(index), [factor * predicted(row(index))], belief)
    assert np.allclose(belief.covariance, belief.covariance.T)
    assert (np.linalg.eigvalsh(belief.covariance) > -1e-12).all()
    assert (np.diag(belief.covariance) <= np.diag(PRIOR.covariance) + 1e-12).all()


@given(ROWS, ROWS, FACTORS)
def test_a_slow_cluster_is_slow_for_other_layouts_too(measured: int, other: int, factor: float) -> None:
    belief = learn(row(measured), [factor * predicted(row(measured))])
    moved = predicted(row(other), belief) / predicted(row(other))
    assert (moved - 1) * (factor - 1) >= -1e-9


def test_learning_nothing_changes_nothing() -> None:
    none = StepTimes(**{field.name: np.zeros(0) for field in fields(StepTimes)})
    assert learn(none, []) is PRIOR


@given(ROWS)
def test_a_measurement_that_is_far_off_counts_less(index: int) -> None:
    times = row(index)
    far, near = (np.log(predicted(times, learn(times, [f * predicted(times)])) / predicted(times)) for f in (10, 1.2))
    assert far / np.log(10) < near / np.log(1.2)


@pytest.mark.parametrize("group", GROUPS)
@given(factor=FACTORS)
def test_a_benchmark_moves_its_group_alone(group: str, factor: float) -> None:
    moved = learn_group(PRIOR, group, factor).mean
    index = list(GROUPS).index(group)
    assert [name for name, mean in zip(GROUPS, moved, strict=True) if mean] == ([group] if factor != 1 else [])
    assert abs(moved[index]) <= abs(np.log(factor))


@pytest.mark.parametrize("group", GROUPS)
def test_a_benchmark_makes_its_group_surer(group: str) -> None:
    after = np.diag(learn_group(PRIOR, group, 1.0).covariance)
    surer = {name for name, one, other in zip(GROUPS, after, np.diag(PRIOR.covariance), strict=True) if one < other}
    assert surer == {group}
