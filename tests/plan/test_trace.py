"""Numbers that know where they come from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.plan.trace import Traced, computed, derive, fact, leaves, tornado, walk, with_changed

PRICE = fact("price", 55.0, "USD/h", source="a list", low=10.0, high=98.0)
HOURS = fact("hours", 5000.0, "h", source="asked for", low=4000.0, high=6000.0)


def yearly(price: Traced = PRICE, hours: Traced = HOURS) -> Traced:
    rent = derive("rent", "USD", "price * hours", price=price, hours=hours)
    fee = fact("fee", 1000.0, "USD", source="a contract")
    return derive("cost", "USD", "rent + fee", rent=rent, fee=fee)


def test_the_value_is_what_the_formula_says() -> None:
    assert yearly().value == 55.0 * 5000.0 + 1000.0


def test_every_input_is_walked_once_and_results_come_first() -> None:
    assert [item.name for item in walk(yearly())] == ["cost", "rent", "fee", "price", "hours"]


def test_a_number_that_two_formulas_share_is_walked_once() -> None:
    twice = derive("sum", "USD", "a + b", a=yearly(), b=PRICE)
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
    run = derive("run", "s", "100 * step", step=step)
    assert [swing.of.name for swing in tornado(run)] == ["step time"]
    assert step in leaves(run)
    assert HOURS in list(walk(run))


def test_a_formula_may_not_reach_anything_but_its_inputs() -> None:
    with pytest.raises(NameError):
        derive("bad", "", "__import__('os').getpid()")
