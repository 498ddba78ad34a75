"""Quantities: parsed from text to base units, and formatted.

Inside the program a quantity is a number whose name carries its unit (`_s`, `_bytes`, `_bytes_per_s`, `_flops`).
Only this module knows that `80 GB` is 8e10 bytes, `80 GiB` is 80 * 2^30, and `400 Gb/s` is 5e10 bytes per second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Literal

from trainworks.errors import QuantityError
from trainworks.numerals import ascii_width, with_digits

HOUR_S, DAY_S, WEEK_S = 3600.0, 86400.0, 604800.0

DURATION_UNITS_S = {
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": HOUR_S,
    "hour": HOUR_S,
    "hours": HOUR_S,
    "d": DAY_S,
    "day": DAY_S,
    "days": DAY_S,
    "w": WEEK_S,
    "week": WEEK_S,
    "weeks": WEEK_S,
}
BYTE_UNITS = {"B": 1} | {
    prefix + suffix: base ** (power + 1)
    for suffix, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate("KMGTP")
}
BYTE_UNITS["kB"] = 1000
BANDWIDTH_UNITS_BYTES_PER_S = {f"{unit}/s": float(size) for unit, size in BYTE_UNITS.items()} | {
    f"{prefix}b/s": 1000.0 ** (power + 1) / 8 for power, prefix in enumerate("KMGT")
}
COUNT_SUFFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}

_LONGEST = 100
"""Longest text of a quantity, in characters."""
_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?|\.[0-9]+)\s*([^\s0-9].*?)?\s*")
_DURATION_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)\s*([a-z]+)")


def _split(text: str, kind: str, example: str) -> tuple[Fraction, str]:
    _check_length(text, kind, example)
    match = _NUMBER.fullmatch(ascii_width(text))
    if match is None:
        raise QuantityError(f"`{text}` is not {kind}", hint=f"write it like `{example}`")
    return Fraction(match[1].replace("_", "")), match[2] or ""


def _check_length(text: str, kind: str, example: str) -> None:
    if len(text) > _LONGEST:
        raise QuantityError(
            f"`{text[:20]}...` is not {kind}: it has {len(text)} characters, more than {_LONGEST}",
            hint=f"write it like `{example}`",
        )


def _scale(value: Fraction, unit: str, units: Mapping[str, float], kind: str, example: str) -> Fraction:
    if unit in units:
        return value * Fraction(units[unit])
    number = f"{float(value):g}"
    if units is DURATION_UNITS_S and unit.lower().startswith("mo"):
        raise QuantityError(f"a month has no fixed length: `{number} {unit}`", hint="write it in days, like `90d`")
    suggestion = f"did you mean `{number} {_nearest(unit, units)}`?" if unit else f"write it like `{example}`"
    written = f"unknown unit `{unit}`" if unit else f"`{number}` has no unit"
    raise QuantityError(f"{written}; {kind} takes {', '.join(filter(None, units))}", hint=suggestion)


def _nearest(unit: str, units: Iterable[str]) -> str:
    """The known unit that differs only in case, else the longest prefix of `unit`, else the most similar."""
    known = [name for name in units if name]
    same = [name for name in known if name.lower() == unit.lower()]
    begun = max((name for name in known if unit.lower().startswith(name.lower())), key=len, default=None)
    if not same and begun:
        return begun
    return get_close_matches(unit, same or known, n=1, cutoff=0.0)[0]


def parse_duration(text: str | float) -> float:
    """Parse `3h`, `90 s`, `1h30m` or `2 days` in seconds; a bare number is refused, because its unit would be a guess.

    >>> parse_duration("1h30m")
    5400.0
    """
    written = str(text)
    _check_length(written, "a duration", "3h")
    parts = _DURATION_PART.findall(written)
    if parts and not _DURATION_PART.sub("", written).strip():
        return float(sum(_scale(Fraction(value), unit, DURATION_UNITS_S, "a duration", "3h") for value, unit in parts))
    value, unit = _split(written, "a duration", "3h")
    return float(_scale(value, unit, DURATION_UNITS_S, "a duration", "3h"))


def parse_bytes(text: str | int) -> int:
    """Parse `80 GB` (10^9) or `80 GiB` (2^30) in bytes.

    >>> parse_bytes("80 GB"), parse_bytes("1 GiB")
    (80000000000, 1073741824)
    """
    value, unit = _split(str(text), "a size", "80 GB")
    return round(_scale(value, unit, BYTE_UNITS, "a size", "80 GB"))


def parse_bandwidth(text: str) -> float:
    """Parse `400 Gb/s` (bits) or `50 GB/s` (bytes) in bytes per second, one direction.

    >>> parse_bandwidth("400 Gb/s") == parse_bandwidth("50 GB/s")
    True
    """
    value, unit = _split(str(text), "a bandwidth", "400 Gb/s")
    return float(_scale(value, unit, BANDWIDTH_UNITS_BYTES_PER_S, "a bandwidth", "400 Gb/s"))


def byte_rate_note(text: str) -> str | None:
    """Note on a network bandwidth in bytes instead of bits per second; None for any other text.

    >>> byte_rate_note("64x 400 GB/s"), byte_rate_note("400 Gb/s")
    ('`400 GB/s` is 3,200 Gb/s; write `400 Gb/s` if you mean bits', None)
    """
    found = re.search(r"([0-9][0-9._]*)\s*([KMGT]B/s)\s*$", text)
    if found is None:
        return None
    number, unit = found[1].strip(), found[2]
    bits = f"{parse_bandwidth(f'{number} {unit}') * 8 / 1e9:,.0f} Gb/s"
    return f"`{number} {unit}` is {bits}; write `{number} {unit[0]}b/s` if you mean bits"


def parse_count(text: str | float) -> int:
    """Parse an integer with an optional k, M, B or T, or in Chinese: `2B` and `20亿` are 2e9.

    >>> parse_count("1.5k"), parse_count("1.5万")
    (1500, 15000)
    """
    _check_length(str(text), "a count", "2B")
    written = with_digits(str(text))
    if not written.isascii():
        raise QuantityError(f"`{text}` is not a count", hint="write it like `2B` or `20亿`")
    value, suffix = _split(written, "a count", "2B")
    count = _scale(value, suffix, COUNT_SUFFIXES, "a count", "2B")
    if count.denominator != 1:
        raise QuantityError(f"`{text}` is not a whole number", hint="write it like `2B`")
    return int(count)


CurrencyCode = Literal["USD", "CNY"]
_SIGNS: Mapping[str, CurrencyCode] = {"$": "USD", "¥": "CNY", "￥": "CNY", "人民币": "CNY"}
_NAMES: Mapping[str, CurrencyCode] = {
    "USD": "USD",
    "美元": "USD",
    "CNY": "CNY",
    "RMB": "CNY",
    "人民币": "CNY",
    "元": "CNY",
}
_PER_HOUR = re.compile(r"\s*/\s*(?:(?:GPU|accelerator|卡|张)\s*(?:/\s*)?)?(?:h|hour|小时|时)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Money:
    """An amount in the currency in which it was given; `catalog.exchange` converts it."""

    amount: float
    currency: CurrencyCode

    def __str__(self) -> str:
        return f"{self.amount:.15g} {self.currency}"

    @property
    def text(self) -> str:
        """The amount for people, as `format_money` rounds it."""
        return format_money(self.amount, self.currency)

    @classmethod
    def parse(cls, text: str | float) -> Money:
        """Parse `2000 USD`, `1.5M USD`, `$2000`, `500万元`, `3.2 CNY`, `RMB` or `¥3`, which is yuan.

        A bare number is refused, because its currency would be a guess.

        >>> [str(Money.parse(text)) for text in ("1.5M USD", "500万元", "¥7.1")]
        ['1500000 USD', '5000000 CNY', '7.1 CNY']
        """
        _check_length(str(text), "an amount", "2000 USD")
        written = with_digits(str(text)).strip().replace(",", "")
        sign = next((sign for sign in _SIGNS if written.startswith(sign)), "")
        name = next((name for name in _NAMES if written.endswith(name)), "")
        currency = _SIGNS.get(sign) or _NAMES.get(name)
        amount = written.removeprefix(sign).removesuffix(name).strip()
        is_doubled = sign and name and (_NAMES[name] != currency or sign == "$")
        if currency is None or is_doubled or not amount.isascii():
            hint = "write it like `2000 USD`, `$2000`, `500万元` or `3.2 CNY`; other currencies are not converted"
            raise QuantityError(f"`{text}` is not an amount of US dollars or yuan", hint=hint)
        value, suffix = _split(amount, "an amount", "2000 USD")
        return cls(float(_scale(value, suffix, COUNT_SUFFIXES, "an amount", "2000 USD")), currency)

    @classmethod
    def parse_per_hour(cls, text: str | float) -> Money:
        """Parse a price per hour of an accelerator, whose unit may be left out: `2.5 USD`, `¥20/GPU/h`, `20元/卡时`.

        >>> str(Money.parse_per_hour("¥20/GPU/h")), str(Money.parse_per_hour("2.5 USD/h"))
        ('20 CNY', '2.5 USD')
        """
        return cls.parse(_PER_HOUR.sub("", str(text).strip()))


def parse_share(text: str | float) -> float:
    """Parse a share such as `5%` or `0.05`, from 0 to 1.

    >>> parse_share("90%"), parse_share("0.9")
    (0.9, 0.9)
    """
    written = str(text).strip()
    number = written.removesuffix("%")
    try:
        share = float(number) / (100 if number != written else 1)
    except ValueError:
        raise QuantityError(f"`{text}` is not a share", hint="write it like `90%`") from None
    if not 0 <= share <= 1:
        hint = f"did you mean `{share:g}%`?" if 1 < share <= 100 else "write it like `90%`"
        raise QuantityError(f"`{text}` is not between 0 and 100 %", hint=hint)
    return share


_CHINESE_NOUNS = {"步": "steps", "轮": "epochs", "token": "tokens", "tokens": "tokens", "词元": "tokens"}
_CHINESE_COUNT = re.compile(rf"(?P<count>\S.*?)\s*个?\s*(?P<noun>{'|'.join(_CHINESE_NOUNS)})")


def parse_counted(text: str, nouns: tuple[str, ...]) -> tuple[int, str]:
    """Parse a count with a noun: `300 steps`, `2B tokens`, `100亿 tokens`, `300步`; the noun may be singular.

    >>> parse_counted("2B tokens", ("steps", "tokens")), parse_counted("3轮", ("steps", "epochs"))
    ((2000000000, 'tokens'), (3, 'epochs'))
    """
    written = str(text).strip()
    count, _, noun = written.rpartition(" ")
    if not written.isascii() and (found := _CHINESE_COUNT.fullmatch(ascii_width(written))):
        count, noun = found["count"], _CHINESE_NOUNS[found["noun"]]
    plural = noun if noun.endswith("s") else noun + "s"
    if not count or plural not in nouns:
        number = written.split()[0] if written[:1].isdigit() else "300"
        examples = " or ".join(f"`{number} {noun}`" for noun in nouns)
        kinds = " or ".join(filter(None, [", ".join(nouns[:-1]), nouns[-1]]))
        raise QuantityError(f"`{text}` is not a count of {kinds}", hint=f"write it like {examples}")
    return parse_count(count), plural


def format_duration(seconds: float) -> str:
    """Format a duration with three significant figures below a minute, two units above.

    >>> format_duration(0.0421), format_duration(75.0), format_duration(90000.0)
    ('42.1 ms', '1m 15s', '1d 1h')
    """
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if 0 < seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms" if seconds >= 0.9995e-3 else f"{seconds * 1e6:.3g} us"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for size, unit, below, below_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // below}{below_unit}"
    return f"{whole} s"


def format_step_time(seconds: float) -> str:
    """Format a duration with exactly three figures below a minute, for columns of equal precision.

    >>> format_step_time(30.0), format_step_time(0.2), format_step_time(75.0)
    ('30.0 s', '200 ms', '1m 15s')
    """
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if 0.9995 * size <= seconds < 59.95:
            return f"{_three_figures(seconds / size)} {unit}"
    return format_duration(seconds)


def format_bytes(num_bytes: float) -> str:
    """Format bytes with a decimal prefix and three significant figures.

    >>> format_bytes(80e9), format_bytes(512)
    ('80.0 GB', '512 B')
    """
    return _with_prefix(num_bytes, "B")


def format_gib(num_bytes: float) -> str:
    """Format accelerator memory in GiB, the unit in which it is sold: a card of "80 GB" has 80 GiB.

    >>> format_gib(85_899_345_920), format_gib(2**40)
    ('80.0 GiB', '1,024 GiB')
    """
    gib = num_bytes / 2**30
    return f"{_three_figures(gib) if abs(gib) < 999.5 else f'{gib:,.0f}'} GiB"


def format_share(share: float, digits: int = 0) -> str:
    """A share as a percentage: `42 %`."""
    return f"{100 * share:.{digits}f} %"


def format_count(count: float) -> str:
    """Format a count with k, M, B, T and three significant figures.

    >>> format_count(2_000_000_000), format_count(300)
    ('2.00B', '300')
    """
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(count) >= (size if suffix == "k" else size * 0.9995):
            scaled = count / (1e3 if suffix == "k" else size)
            return f"{_three_figures(scaled)}{suffix}"
    return f"{count:,.0f}"


def plural(noun: str) -> str:
    """More than one of a part.

    >>> plural("NIC"), plural("switch"), plural("box")
    ('NICs', 'switches', 'boxes')
    """
    return f"{noun}es" if noun.endswith(("ch", "x")) else f"{noun}s"


def format_counted(number: float, noun: str) -> str:
    """A whole number of things; the reverse of `parse_counted`.

    >>> format_counted(1, "rack"), format_counted(3915, "switch")
    ('1 rack', '3,915 switches')
    """
    return f"{number:,.0f} {noun if number == 1 else plural(noun)}"


def format_short_usd(usd: float) -> str:
    """Format dollars for a table, with three figures.

    >>> format_short_usd(55.04), format_short_usd(9610.0), format_short_usd(1.39e6)
    ('55.04', '9,610', '1.39M')
    """
    return f"{usd:.2f}" if abs(usd) < 100 else format_count(usd)


def format_money(amount: float, currency: str) -> str:
    """Format an amount of money: without cents from 100, with cents below 10.

    >>> format_money(1234567.8, "USD"), format_money(55.04, "CNY"), format_money(1.549, "USD")
    ('1,234,568 USD', '55.0 CNY', '1.55 USD')
    """
    size = abs(amount)
    return f"{amount:,.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f} {currency}"


def format_usd(amount: float) -> str:
    """Format US dollars as `format_money` does."""
    return format_money(amount, "USD")


def format_quantity(value: float, unit: str) -> str:
    """Format a number in base units for people.

    >>> format_quantity(5400.0, "s"), format_quantity(5e10, "bytes/s"), format_quantity(10200.0, "W")
    ('1h 30m', '50.0 GB/s', '10.2 kW')
    >>> format_quantity(93_206.0, "kg CO2e"), format_quantity(27.0, "kg CO2e")
    ('93.2 t CO2e', '27 kg CO2e')
    >>> format_quantity(0.0312, ""), format_quantity(12.5, "USD/h"), format_quantity(0.1, "USD/kWh")
    ('0.0312', '12.5 USD/h', '0.10 USD/kWh')
    """
    if unit == "s":
        return format_duration(value)
    if unit in ("bytes", "bytes/s"):
        return format_bytes(value) + unit.removeprefix("bytes")
    if unit in ("W", "Wh", "FLOP/s"):
        return _with_prefix(value, unit)
    if unit.startswith("USD"):
        return format_usd(value) + unit.removeprefix("USD")
    if unit.startswith("kg ") and abs(value) >= 1000:
        value, unit = value / 1000, unit.removeprefix("k").replace("g", "t", 1)
        return f"{value:,.1f} {unit}"
    number = f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.3g}"
    return f"{number} {unit}".rstrip()


def _with_prefix(value: float, unit: str) -> str:
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{_three_figures(value / size)} {prefix}{unit}"
    return f"{value:.0f} {unit}"


def _three_figures(value: float) -> str:
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}"
