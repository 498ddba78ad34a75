"""Statistics of predicted and measured figures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.plan.score import (
    errors_of,
    learned_positions,
    macro_average,
    rank_correlation,
    regret,
    rejections_of,
)

figures = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30)
distinct = st.lists(st.integers(1, 10**6), min_size=2, max_size=30, unique=True)


@given(figures)
def test_a_perfect_prediction_has_no_error(measured: list[float]) -> None:
    errors = errors_of(measured, measured, low=measured, high=measured)
    assert errors is not None
    assert (errors.mape, errors.median, errors.p90, errors.bias, errors.coverage) == (0, 0, 0, 0, 1)


@given(figures)
def test_doubling_every_prediction_is_a_bias_of_100_per_cent(measured: list[float]) -> None:
    errors = errors_of(2 * np.array(measured), measured)
    assert errors is not None
    assert (errors.mape, errors.bias, errors.coverage) == (1.0, 1.0, None)


@given(figures, st.floats(1e-3, 1e3))
def test_errors_have_no_unit(measured: list[float], unit: float) -> None:
    predicted = np.array(measured) + 1
    one, other = errors_of(predicted, measured), errors_of(predicted * unit, np.array(measured) * unit)
    assert one is not None and other is not None
    assert one.mape == pytest.approx(other.mape)


@given(figures)
def test_the_median_is_no_more_than_the_p90(measured: list[float]) -> None:
    errors = errors_of(np.ones(len(measured)), measured)
    assert errors is not None and errors.median <= errors.p90


def test_no_row_has_no_error() -> None:
    assert errors_of([], []) is None and macro_average([]) is None


def test_the_macro_average_counts_sources_and_leaves_out_empty_ones() -> None:
    macro = macro_average([errors_of([2.0] * 9, [1.0] * 9), errors_of([1.0], [1.0]), None])
    assert macro is not None
    assert (macro.n, macro.mape, macro.coverage) == (2, 0.5, None)


@given(distinct)
def test_an_order_correlates_with_itself_and_against_its_opposite(values: list[int]) -> None:
    assert rank_correlation(values, values) == 1.0
    assert rank_correlation(values, [-value for value in values]) == -1.0


@given(distinct)
def test_only_the_order_matters(values: list[int]) -> None:
    assert rank_correlation(values, [np.log(value) for value in values]) == 1.0


def test_predictions_that_are_all_the_same_say_nothing() -> None:
    assert rank_correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == 0.0


@given(distinct)
def test_the_right_order_has_no_regret(values: list[int]) -> None:
    assert regret(values, values) == 0.0


@given(distinct, distinct)
def test_regret_is_never_negative(predicted: list[int], measured: list[int]) -> None:
    n = min(len(predicted), len(measured))
    assert regret(predicted[:n], measured[:n]) >= 0.0


def test_equal_first_choices_share_their_regret() -> None:
    assert regret([1.0, 1.0, 2.0], [10.0, 12.0, 11.0]) == pytest.approx(0.1)


@given(st.integers(1, 100), st.integers(1, 5))
def test_learned_rows_are_distinct_and_spread(n: int, learned: int) -> None:
    positions = learned_positions(n, learned)
    assert len(set(positions)) == len(positions) == min(n, learned)
    assert all(0 <= position < n for position in positions)


def test_rejections_are_counted_on_both_sides() -> None:
    counts = rejections_of([True, False, True, False], [True, True, False, False])
    assert (counts.out_of_memory, counts.out_of_memory_rejected) == (2, 1)
    assert (counts.fitting, counts.fitting_rejected) == (2, 1)
