"""Money in other currencies: converted at a rate that has a source, and shown in the currency in which it came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.catalog.catalog import assumption
from trainworks.catalog.exchange import DOLLAR, exchange_for, exchange_of, usd_of
from trainworks.units import Money


@given(st.floats(0.01, 1e12), st.floats(1.0, 100.0))
def test_an_amount_of_yuan_is_shown_as_the_same_amount(amount: float, rate: float) -> None:
    given_rate = {"CNY per USD": rate}
    shown = exchange_of("CNY", given_rate).format(usd_of(Money(amount, "CNY"), given_rate))
    assert shown == Money(amount, "CNY").text


def test_the_rate_is_that_of_the_catalogue_and_names_its_source_and_date() -> None:
    rate = assumption("CNY per USD").typical
    assert usd_of(Money(rate, "CNY")) == pytest.approx(1.0)
    (note,) = exchange_of("CNY").notes
    assert note.startswith(f"CNY at {rate:g} per USD: ") and "2025-10" in note


def test_dollars_need_no_rate() -> None:
    assert exchange_of("USD") is DOLLAR
    assert (DOLLAR.notes, DOLLAR.format(2000.0), usd_of(Money(3.0, "USD"))) == ((), "2,000 USD", 3.0)


def test_an_answer_is_in_the_currency_of_the_first_amount_that_is_given() -> None:
    yuan, dollars = Money(1.0, "CNY"), Money(1.0, "USD")
    assert [exchange_for(*moneys).currency for moneys in ((yuan, dollars), (None, yuan), (dollars, yuan), ())] == [
        "CNY", "CNY", "USD", "USD",
    ]  # fmt: skip
