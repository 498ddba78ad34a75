"""What every part of a report shares: its JSON, amounts in their units, and text that is safe to print."""

from __future__ import annotations

import unicodedata

from pydantic import ConfigDict

from trainworks.config.spec import Frozen
from trainworks.units import format_bytes, format_count, format_duration, format_money, format_quantity

KEPT_CONTROLS = "\n\t"
MISSING = "-"


class ReportPart(Frozen):
    """Base of the report's models: a number that is not finite becomes a JSON string, and reads back."""

    model_config = ConfigDict(ser_json_inf_nan="strings")


def printable(value: object) -> str:
    r"""Text that a terminal, a page and a JSON file can take: no control characters, no lone surrogates.

    Newlines and tabs stay. None becomes the empty string.

    >>> printable("a\x1b[31mb"), printable(None)
    ('a[31mb', '')
    """
    text = "" if value is None else str(value)
    return "".join(char for char in text if char in KEPT_CONTROLS or unicodedata.category(char) not in ("Cc", "Cs"))


def format_amount(value: float | None, unit: str) -> str:
    """A value in its unit (`s`, `bytes`, `per_s`, `ratio`, `Wh`, `USD`, `count`, `value`); a dash when there is none.

    >>> format_amount(0.031, "s"), format_amount(0.4213, "ratio"), format_amount(None, "s")
    ('31 ms', '42.1 %', '-')
    """
    if value is None:
        return MISSING
    if unit == "ratio":
        return format_percent(value)
    if unit == "value":
        return f"{value:.4g}"
    if unit == "Wh":
        return format_quantity(value, unit)
    if unit == "count":
        return f"{value:,.0f}" if value >= 10 else f"{value:.2g}" if value >= 0.01 or not value else "< 0.01"
    formats = {"s": format_duration, "bytes": format_bytes, "per_s": format_count}
    return formats[unit](value) if unit in formats else format_money(value, unit)


def format_percent(ratio: float | None) -> str:
    """A ratio as a percentage with three significant figures at most.

    >>> format_percent(0.4213), format_percent(0.0421), format_percent(1.0)
    ('42.1 %', '4.2 %', '100 %')
    """
    return MISSING if ratio is None else f"{ratio * 100:.0f} %" if ratio >= 0.9995 else f"{ratio * 100:.1f} %"


def format_relative(ratio: float | None) -> str:
    """A signed relative difference, (measured - planned) / planned.

    >>> format_relative(0.124), format_relative(-0.05), format_relative(None)
    ('+12.4 %', '-5.0 %', '-')
    """
    if ratio is None:
        return MISSING
    return f"{ratio * 100:+.0f} %" if abs(ratio) >= 0.9995 else f"{ratio * 100:+.1f} %"
