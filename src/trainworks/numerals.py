"""Chinese numbers in text: digits of full width, numerals, and the scales 百, 千, 万 and 亿 behind digits.

1.5万    1.5 * 10^4        千亿      10^3 * 10^8       三十二      3 * 10 + 2
100亿    100 * 10^8        两千      2 * 10^3          一万零五百   1 * 10^4 + 5 * 10^2
"""

from __future__ import annotations

import re
from fractions import Fraction

_WIDE = re.compile("[\uff02-\uff07\uff0a\uff0b\uff0d-\uff19\uff1c-\uff1e\uff20-\uff5d\u3000]")
"""Letters, digits and signs of full width, without the punctuation that separates the parts of a Chinese sentence."""

_DIGITS = {numeral: value for value, numeral in enumerate("零一二三四五六七八九")} | {"两": 2}
_DIGIT = "[一二三四五六七八九两]"
_TENS = {"千": 1000, "百": 100, "十": 10}
_SECTION = re.compile("零?" + "零?".join(rf"(?:({_DIGIT}?){ten})?" for ten in _TENS) + rf"零?({_DIGIT})?")
"""A number below 10,000: a digit with each of 千, 百 and 十, and one without."""
_MYRIADS = {"亿": 10**8, "万": 10**4}

NUMERALS = "[零一二两三四五六七八九十百千万亿]+"
"""Pattern of a number without digits; `chinese_number` decides whether it is one."""
SCALES = "(?:[十百千]?(?:万亿|万|亿)|[百千])"
"""Pattern of a scale behind digits."""
COUNTERS = "张块颗片卡台个节机柜步轮元"
"""First characters of what is counted in Chinese."""
_PART = rf"(\d[\d,_]*(?:\.\d+)?)\s?({SCALES})"
_SCALED = re.compile(rf"(?<![\d.,])(?:{_PART})+(?![零一二两三四五六七八九十百千万亿\d])")
_BARE = re.compile(rf"(?<![几数上近第零一二两三四五六七八九十百千万亿\d])(?P<numerals>{NUMERALS})(?=\s|$|[{COUNTERS}])")
"""Numerals in front of a counter or a blank: 百度 and 第一台 hold numerals, too, and 几十 and 近千 are not exact."""


def ascii_width(text: str) -> str:
    """Letters and digits of full width as those of ASCII; every character keeps its place.

    >>> ascii_width("１０亿")
    '10亿'
    """
    return _WIDE.sub(lambda found: " " if found[0] == "\u3000" else chr(ord(found[0]) - 0xFEE0), text)


def chinese_number(text: str) -> int | None:
    """Value of a number in Chinese numerals; None for any other text, as for 万一, which begins a clause.

    A last digit without a scale counts in the tenth of the scale before it: 两千五 is 2,500.

    >>> [chinese_number(text) for text in ("三十二", "两千五", "一万零五百", "千亿", "万一")]
    [32, 2500, 10500, 100000000000, None]
    """
    for myriad, scale in _MYRIADS.items():
        head, found, tail = text.rpartition(myriad)
        if found:
            above, below = chinese_number(head) if head else 1, chinese_number(tail) if tail else 0
            if above is None or below is None or below >= scale or myriad in head or (tail and not head):
                return None
            return above * scale + below * (scale // 10 if tail in _DIGITS else 1)
    section = _SECTION.fullmatch(text)
    if (
        section is None
        or not text
        or (text[-3:-2] not in _DIGITS and text[-2:-1] in ("千", "百") and text[-1] in _DIGITS)
    ):
        return None
    *tens, last = section.groups()
    parts = [_DIGITS.get(digit, 1) * ten for digit, ten in zip(tens, _TENS.values(), strict=True) if digit is not None]
    return sum(parts) + _DIGITS.get(last, 0) * (_TENS.get(text[-2:-1], 10) // 10)


def with_digits(text: str) -> str:
    """The text with its Chinese numbers in ASCII digits; what is not certainly a number stays as it is.

    >>> with_digits("１．５万张 H800"), with_digits("三十二台八卡 H100"), with_digits("100亿 tokens")
    ('15000张 H800', '32台8卡 H100', '10000000000 tokens')
    >>> with_digits("1亿2000万元"), with_digits("百度"), with_digits("几十张")
    ('120000000元', '百度', '几十张')
    """
    scaled = _SCALED.sub(lambda found: _summed(found[0]), ascii_width(text))
    return _BARE.sub(lambda found: _in_digits(found[0]), scaled)


def _in_digits(numerals: str) -> str:
    number = chinese_number(numerals)
    return numerals if number is None else str(number)


def _summed(text: str) -> str:
    """`1.5万` as `15000`, `1亿2000万` as `120000000`; the text itself where a scale is not below the one before it."""
    scales = [chinese_number(scale) or 1 for _, scale in re.findall(_PART, text)]
    numbers = [Fraction(re.sub("[,_]", "", number)) for number, _ in re.findall(_PART, text)]
    values = [number * scale for number, scale in zip(numbers, scales, strict=True)]
    if any(below >= above for above, below in zip(scales, values[1:], strict=False)):
        return text
    value = sum(values)
    return f"{value.numerator}" if value.denominator == 1 else f"{float(value)!r}"
