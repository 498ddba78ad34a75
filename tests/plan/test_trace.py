"""Numbers that know where they come from."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.plan.trace import (
    Formula,
    Traced,
    ceil,
    computed,
    fact,
    leaves,
    maximum,
    minimum,
    sqrt,
    tornado,
    walk,
    where,
    with_changed,
)

PRICE = fact("price", 55.0, "USD/h", source="a list", low=10.0, high=98.0)
HOURS = fact("hours", 5000.0, "h", source="asked for", low=4000.0, high=6000.0)


def yearly(price: Traced = PRICE, hours: Traced = HOURS) -> Traced:
    rent = (price * hours).named("rent", "USD")
    fee = fact("fee", 1000.0, "USD", source="a contract")
    return (rent + fee).named("cost", "USD")


def test_the_value_is_what_the_formula_says() -> None:
    assert yearly().value == 55.0 * 5000.0 + 1000.0


def test_every_input_is_walked_once_and_results_come_first() -> None:
    assert [item.name for item in walk(yearly())] == ["cost", "rent", "fee", "price", "hours"]


def test_a_number_that_two_formulas_share_is_walked_once() -> None:
    twice = (yearly() + PRICE).named("sum", "USD")
    assert [item.name for item in walk(twice)].count("price") == 1


@given(st.floats(0.01, 1e6), st.floats(0.01, 1e6))
def test_a_changed_fact_gives_what_building_anew_gives(price: float, hours: float) -> None:
    changed = with_changed(yearly(), {"price": price, "hours": hours})
    anew = yearly(fact("price", price, "USD/h", source="a list"), fact("hours", hours, "h", source="asked for"))
    assert changed.value == anew.value


def test_changing_a_fact_leaves_the_original_alone() -> None:
    original = yearly()
    with_changed(original, {"price": 1.0})
    assert original.value == 276_000.0


def test_the_tornado_has_the_widest_swing_first_and_no_certain_fact() -> None:
    swings = tornado(yearly())
    assert [swing.of.name for swing in swings] == ["price", "hours"]
    assert (swings[0].at_low, swings[0].at_high) == (51_000.0, 491_000.0)


def test_a_computed_number_is_a_leaf_that_keeps_its_inputs() -> None:
    step = computed("step time", 2.0, "s", by="layout search", low=1.8, high=2.2, nodes=HOURS)
    run = (100 * step).named("run", "s", step=step)
    assert [swing.of.name for swing in tornado(run)] == ["step time"]
    assert step in leaves(run)
    assert HOURS in list(walk(run))


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (PRICE * (HOURS + 1), "price * (hours + 1)"),
        (PRICE * HOURS + 1, "price * hours + 1"),
        (PRICE - (HOURS - 1), "price - (hours - 1)"),
        (PRICE / (HOURS * 2), "price / (hours * 2)"),
        (1 - PRICE / HOURS / 2, "1 - price / hours / 2"),
        (-ceil(-PRICE * HOURS), "-ceil(-price * hours)"),
        (-(PRICE + HOURS), "-(price + hours)"),
        ((PRICE + 1) ** (HOURS / 1000), "(price + 1) ** (hours / 1000)"),
        (maximum(1, PRICE // 7, minimum(HOURS, sqrt(HOURS))), "max(1, price // 7, min(hours, sqrt(hours)))"),
        (PRICE * (HOURS > 1), "price * (hours > 1)"),
        (where(PRICE < 2 * HOURS, PRICE + 1, HOURS), "price + 1 if price < 2 * hours else hours"),
        (1 + where(PRICE > HOURS, PRICE, HOURS), "1 + (price if price > hours else hours)"),
    ],
)
def test_the_printed_formula_is_the_computed_one(formula: Formula, text: str) -> None:
    result = formula.named("result", "")
    assert result.formula == text
    names = {"price": PRICE.value, "hours": HOURS.value, "ceil": math.ceil, "sqrt": math.sqrt}
    assert result.value == eval(text, names) == float(formula)


def test_an_abbreviated_input_has_its_symbol_in_the_formula_and_among_the_inputs() -> None:
    result = (PRICE * HOURS).named("rent", "USD", h=HOURS)
    assert result.formula == "price * h"
    assert list(result.inputs) == ["price", "h"]


def test_different_inputs_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two inputs of one formula are called `price`"):
        (PRICE + fact("price", 1.0, "USD/h", source="another list")).named("sum", "USD/h")
