"""Sweeps as arithmetic: what is tried, what is ended early, what a range test says."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.errors import UsageError
from trainworks.plan.sweeps.pruning import ETA, Reports, rungs, should_stop, smoothed
from trainworks.plan.sweeps.range_test import has_diverged, read_range_test
from trainworks.plan.sweeps.space import Choice, NumberRange, grid, parse_dimension, random_point


def test_values_and_ranges_are_told_apart() -> None:
    assert parse_dimension("optimizer.lr", "1e-4,3e-4") == Choice(("1e-4", "3e-4"))
    assert parse_dimension("global_batch", "16,32") == Choice((16, 32))
    assert parse_dimension("layout", "[{tp: 1}, {tp: 2}]").values == ([{"tp": 1}, {"tp": 2}],)  # type: ignore[union-attr]
    assert parse_dimension("seed", [1, 2]) == Choice((1, 2))
    assert parse_dimension("optimizer.lr", "1e-5..1e-2") == NumberRange(1e-5, 1e-2, whole=False)
    assert parse_dimension("model.layers", "2..8") == NumberRange(2, 8, whole=True)


@pytest.mark.parametrize(
    ("written", "problem"), [("", "has no values"), ("3..1", "not below"), ("a..b", "range of numbers"), ("[1", "list")]
)
def test_a_dimension_that_makes_no_sense_is_refused(written: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_dimension("optimizer.lr", written)


def test_a_grid_has_every_combination_once_and_the_last_key_varies_fastest() -> None:
    points = grid({"a": Choice((1, 2)), "b": Choice((1, 2, 3))})
    assert points[:3] == [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 3}]
    assert len({tuple(point.items()) for point in points}) == len(points) == 6


def test_a_grid_refuses_a_range() -> None:
    with pytest.raises(UsageError, match="a grid needs values of `lr`"):
        grid({"lr": NumberRange(0.1, 1.0, whole=False)})


@given(st.floats(1e-8, 1.0), st.floats(1.01, 1e6), st.booleans(), st.integers(0, 50), st.integers(0, 50))
def test_a_draw_is_inside_its_range_and_depends_on_seed_and_number_alone(
    low: float, ratio: float, whole: bool, seed: int, number: int
) -> None:
    low, high = (math.ceil(low), math.ceil(low) + math.ceil(ratio)) if whole else (low, low * ratio)
    space = {"x": NumberRange(low, high, whole=whole), "y": Choice(("a", "b"))}
    point = random_point(space, seed, number)
    assert point == random_point(space, seed, number)
    assert low * (1 - 1e-9) <= point["x"] <= high * (1 + 1e-9)
    assert isinstance(point["x"], int) == whole


def test_a_wide_positive_range_is_drawn_from_by_its_logarithm() -> None:
    draws = [random_point({"lr": NumberRange(1e-6, 1.0, whole=False)}, 0, number)["lr"] for number in range(400)]
    assert sum(draw < 1e-3 for draw in draws) == pytest.approx(200, abs=60)


GOOD, FAIR, BAD = ([(step, end + 10 / step) for step in range(1, 101)] for end in (1.0, 2.0, 5.0))
"""Costs of whole trials of 100 steps."""


def first(reports: Reports, steps: int) -> Reports:
    return [report for report in reports if report[0] <= steps]


def test_the_median_rule_ends_a_trial_below_the_median_and_none_above_it() -> None:
    others = [GOOD, FAIR, FAIR]
    assert should_stop("median", first(BAD, 50), others, num_steps=100)
    assert not should_stop("median", first(GOOD, 50), others, num_steps=100)


def test_the_median_rule_waits_for_a_fifth_of_the_steps_and_for_three_others() -> None:
    assert not should_stop("median", first(BAD, 19), [GOOD] * 3, num_steps=100)
    assert should_stop("median", first(BAD, 20), [GOOD] * 3, num_steps=100)
    assert not should_stop("median", first(BAD, 50), [GOOD] * 2, num_steps=100)
    assert not should_stop("median", first(BAD, 50), [first(GOOD, 40)] * 3, num_steps=100)


def test_asha_keeps_the_best_third_at_every_rung() -> None:
    trials = [[(step, cost + 1 / step) for step in range(1, 101)] for cost in range(9)]
    at = rungs(100)[1]
    kept = [
        not should_stop("asha", first(own, at), [*trials[:index], *trials[index + 1 :]], num_steps=100)
        for index, own in enumerate(trials)
    ]
    assert kept == [True] * (9 // ETA) + [False] * (9 - 9 // ETA)


def test_asha_ends_none_before_its_first_rung_nor_the_first_trials_at_it() -> None:
    assert not should_stop("asha", first(BAD, rungs(100)[0] - 1), [GOOD] * 9, num_steps=100)
    assert not should_stop("asha", first(BAD, rungs(100)[0]), [GOOD], num_steps=100)


@pytest.mark.parametrize("rule", ["median", "asha"])
def test_a_trial_that_is_not_finite_ends(rule: str) -> None:
    assert should_stop(rule, [(1, 2.0), (2, math.nan)], [], num_steps=100)  # type: ignore[arg-type]
    assert not should_stop(rule, [], [], num_steps=100)  # type: ignore[arg-type]


def test_training_losses_report_means_over_a_twentieth_of_the_steps() -> None:
    assert smoothed([*range(1, 21)], [float(step) for step in range(1, 21)], 100)[:2] == [(5, 3.0), (10, 8.0)]


def range_test(steps: int = 200) -> tuple[list[float], list[float]]:
    """Loss that falls fastest near 1e-3, is lowest near 1e-2, and diverges after 0.1."""
    rates = [1e-6 * 10 ** (6 * step / (steps - 1)) for step in range(steps)]
    losses = [5 - 2 / (1 + (1e-3 / rate) ** 2) + 20 * max(0.0, math.log10(rate / 2e-2)) ** 2 for rate in rates]
    return rates, losses


def test_a_range_test_suggests_a_tenth_of_the_rate_with_the_lowest_loss() -> None:
    found = read_range_test(*range_test())
    assert found.suggested is not None
    assert found.steepest is not None
    assert found.diverged_at is not None
    assert 5e-4 < found.suggested < 8e-3
    assert 2e-4 < found.steepest < 1e-2
    assert found.diverged_at > 0.02
    assert len(found.losses) < 200


def test_a_loss_that_never_fell_suggests_nothing() -> None:
    found = read_range_test([1e-3, 1e-2, 1e-1], [1.0, 2.0, 3.0])
    assert (found.suggested, found.steepest) == (None, None)


def test_a_loss_that_is_not_finite_has_diverged() -> None:
    assert has_diverged([1.0, math.nan])
    assert not has_diverged([])
    assert read_range_test([0.1, 0.2, 0.3], [2.0, 1.0, math.nan]).diverged_at == 0.3
