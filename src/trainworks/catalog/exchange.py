"""Money in US dollars, in which every sum is computed, and back in the currency of a budget or a price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import overload

from trainworks.units import CurrencyCode, Money, format_money, format_short_usd

_NONE_GIVEN: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Exchange:
    """A currency and its rate to the US dollar."""

    currency: CurrencyCode = "USD"
    per_usd: float = 1.0
    """Units of the currency for one dollar."""
    source: str = ""
    """Where the rate is from, with its date; empty for the dollar itself."""

    def format(self, usd: float) -> str:
        """An amount of US dollars in this currency: `7,100 CNY`."""
        return format_money(usd * self.per_usd, self.currency)

    def short(self, usd: float) -> str:
        """The same for the column of a table, without the currency: `7,100`."""
        return format_short_usd(usd * self.per_usd)

    def price(self, usd: float) -> str:
        """A price in this currency, always with cents: `17.75 CNY`."""
        return f"{usd * self.per_usd:.2f} {self.currency}"

    @property
    def name(self) -> str:
        """The currency in words."""
        return "US dollars" if self.currency == "USD" else "yuan"

    @property
    def notes(self) -> tuple[str, ...]:
        """The rate that amounts in this currency come from; none for the dollar."""
        return (f"{self.currency} at {self.per_usd:g} per USD: {self.source}",) if self.source else ()


DOLLAR = Exchange()


def exchange_of(currency: CurrencyCode, given: Mapping[str, float] = _NONE_GIVEN) -> Exchange:
    """A currency at the rate of the catalogue, or at the given one of the assumption `CNY per USD`.

    >>> exchange_of("CNY", {"CNY per USD": 7.25}).format(1000.0)
    '7,250 CNY'
    """
    if currency == "USD":
        return DOLLAR
    from trainworks.catalog.catalog import assumption, find_row  # noqa: PLC0415  # records of dollars need no catalogue

    name = f"{currency} per USD"
    if name in given:
        return Exchange(currency, given[name], "given by you")
    return Exchange(currency, assumption(name).typical, find_row(name, "assumptions").figure("typical").cited)


@overload
def usd_of(money: Money, given: Mapping[str, float] = ...) -> float: ...
@overload
def usd_of(money: Money | None, given: Mapping[str, float] = ...) -> float | None: ...
def usd_of(money: Money | None, given: Mapping[str, float] = _NONE_GIVEN) -> float | None:
    """An amount in US dollars; None stays None.

    >>> usd_of(Money(500.0, "USD")), usd_of(Money(500.0, "CNY"), {"CNY per USD": 7.25}).__round__(2)
    (500.0, 68.97)
    """
    return None if money is None else money.amount / exchange_of(money.currency, given).per_usd


def exchange_for(*given_first: Money | None, given: Mapping[str, float] = _NONE_GIVEN) -> Exchange:
    """The currency of an answer: that of the first amount which is given, else the dollar."""
    return next((exchange_of(money.currency, given) for money in given_first if money is not None), DOLLAR)
