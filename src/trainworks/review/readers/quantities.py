"""Quantities in prose: numbers with their units, in English and in Chinese, in base units.

`400 Gb/s`, `400Gbps`, `400GbE` and `400G 网卡` are 5e10 bytes/s, `50 GB/s` is the same, `四成` is 0.4, `1350 亿美元` is
1.35e11 in the currency of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from trainworks.numerals import NUMERALS, SCALES, chinese_number

Kind = Literal[
    "bytes/s", "flops/s", "bytes", "watts", "share", "factor", "hours", "money", "ranks", "nodes",
]  # fmt: skip
"""What a quantity counts; `ranks` are accelerators, or the processes on them."""

_WORDS = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "twelve": 12, "sixteen": 16, "a": 1, "an": 1, "single": 1, "单": 1, "双": 2,
}  # fmt: skip
_SCALES = {
    "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12,
}  # fmt: skip
_DIGITS = r"\d[\d,]*(?:\.\d+)?"
_LETTERS = (
    r"(?:[Oo]ne|[Tt]wo|[Tt]hree|[Ff]our|[Ff]ive|[Ss]ix|[Ss]even|[Ee]ight|[Nn]ine|[Tt]en|[Tt]welve|[Ss]ixteen|[Aa]n?"
    r"|[Ss]ingle)(?=[\s-])"
)
_NUMBER = (
    rf"(?<![A-Za-z0-9_.,几数])(?P<number>{_DIGITS}|{_LETTERS}|[单双]|{NUMERALS})"
    rf"(?:\s?(?:[-–~～至到]|to)\s?(?P<upper>{_DIGITS}|{_LETTERS}))?(?P<more>\s?(?:\+|多|余|以上|or more))?"
    rf"\s?(?P<scale>{SCALES}|[kKMB](?![A-Za-z/])|(?:thousand|million|billion|trillion)\b)?"
)
_END = r"(?![A-Za-z0-9/])"
_OF = (
    r"(?:(?:NVIDIA|Nvidia|英伟达|Mellanox|AMD|GPU|IB|InfiniBand|ConnectX-?\d|DGX|HGX|free|idle|compute|空闲的?|计算|物理|\d+\s?[x×]\s?[A-Z]+\d+[\w-]*)"
    r"\s*)*"
)
_NAMED_PART = r"(?=(?:[ABHV]\d{2,3}|GB[23]00|GH200|MI\d{3}|RTX))"
_LINK_FOLLOWS = r"(?=\s*(?:IB|InfiniBand|RoCE|RDMA|NDR|HDR|XDR|以太|网卡|网络|[Ee]thernet|per port|端口|带宽)(?![a-z]))"
_KILO, _KIBI = {"M": 1e6, "G": 1e9, "T": 1e12}, {"M": 2.0**20, "G": 2.0**30, "T": 2.0**40}
_UNITS: tuple[tuple[Kind, str, float], ...] = (
    *(("bytes/s", rf"{prefix}i?B(?:/s|ps|/秒|/sec){_END}", size) for prefix, size in _KILO.items()),
    *(("bytes/s", rf"{prefix}(?:b/s|bps|bit/s|bits/s){_END}", size / 8) for prefix, size in _KILO.items()),
    ("bytes/s", rf"G(?:bE|igE|E){_END}|G{_LINK_FOLLOWS}", 1e9 / 8),
    *(
        ("flops/s", rf"{prefix}(?:FLOPS|FLOPs|FLOP/s|flops){_END}", size)
        for prefix, size in (("G", 1e9), ("T", 1e12), ("P", 1e15))
    ),
    *(("bytes", rf"{prefix}B?(?![A-Za-z0-9/])", size) for prefix, size in _KILO.items()),
    *(("bytes", rf"{prefix}iB(?![A-Za-z0-9/])", size) for prefix, size in _KIBI.items()),
    ("watts", rf"W{_END}|瓦", 1.0),
    ("watts", rf"kW{_END}", 1e3),
    ("share", r"%|％|percent\b|per cent\b|个?百分点", 0.01),
    ("share", r"成(?![为本立功分])", 0.1),
    ("factor", r"倍|[x×](?![A-Za-z0-9×])|times\b|-?fold\b", 1.0),
    ("factor", "twice", 2.0),  # without a number
    ("factor", "乘以", 1.0),  # before the number
    ("share", r"(?:[Aa]|[Oo]ne)[- ]third\b|三分之一", 1 / 3),  # without a number, like the next
    ("share", r"[Tt]wo[- ]thirds\b|三分之二", 2 / 3),
    ("share", r"(?:[Aa]|[Oo]ne)[- ]quarter\b|四分之一", 0.25),
    ("share", r"[Tt]hree[- ]quarters\b|四分之三", 0.75),
    ("share", r"\b[Hh]alf\b|一半", 0.5),
    ("hours", r"(?:training |GPU[- ])?(?:hours?|hrs?|h)\b|(?:个)?小时", 1.0),
    ("money", r"(?:US )?(?:dollars?|USD)\b|美元", 1.0),
    ("money", "$", 1.0),  # before the number
    ("ranks", rf"(?:[张块个颗]|[x×*])?\s*{_OF}{_NAMED_PART}", 1.0),
    ("ranks", "behind the name", 1.0),
    ("ranks", rf"(?:[x×*张块个颗-])?\s*{_OF}(?:GPUs?|accelerators?|cards?)(?![A-Za-z])", 1.0),
    ("ranks", r"卡|张(?:显)?卡|块(?:显)?卡|个?进程|\s?processes\b", 1.0),
    ("nodes", rf"(?:[个台]|[x×*-])?\s*{_OF}(?:nodes?|servers?|machines?)(?![A-Za-z])", 1.0),
    ("nodes", rf"[个台]?\s*{_OF}(?:节点|服务器)|台|机(?![架柜器房])", 1.0),
)
_AFTER = r"(?P<after>\+|\s?(?:以上|起(?![点到])|or (?:more|newer)))?"
_NO_NUMBER = "(?P<number>)(?P<upper>)(?P<scale>)(?P<more>)(?P<after>)"
_TWICE = rf"\b(?:[Tt]wice|[Dd]ouble)\b{_NO_NUMBER}"
_AT_LEAST = re.compile(r"(?:>=|≥|\b[Aa]t least|\b[Mm]inimum(?: of)?|至少|不低于|不少于)\s*$")
_LOOSE = ("share", "factor", "ranks", "nodes", "hours")
"""Kinds whose number may be a word."""


@dataclass(frozen=True, slots=True)
class StatedQuantity:
    """A number with its unit, and its place in the sentence."""

    kind: Kind
    value: float
    """In base units; of a range the upper end."""
    start: int
    end: int
    text: str
    open_ended: bool = False
    """The text gives a lower bound: `90+`, `200 以上`, `or more`, `>= 90`."""

    @property
    def in_bytes(self) -> bool:
        """A rate that is written in bytes and not in bits."""
        return re.search(r"B(?:/|ps)", self.text) is not None


def quantities_in(text: str, kind: Kind) -> Iterator[StatedQuantity]:
    """Quantities of a kind in a sentence, from left to right.

    >>> [one.value for one in quantities_in("HDR 200 Gb/s，实测 24 GB/s", "bytes/s")]
    [25000000000.0, 24000000000.0]
    """
    found = [
        StatedQuantity(
            kind,
            value * size,
            match.start(),
            match.end(),
            match[0],
            bool(match["more"] or match["after"] or _AT_LEAST.search(text[: match.start()])),
        )
        for pattern, size in _patterns(kind)
        for match in pattern.finditer(text)
        if (value := _value(match["upper"] or match["number"] or "1", match["scale"] or "")) is not None
    ]
    yield from sorted(found, key=lambda one: one.start)


@cache
def _patterns(kind: Kind) -> tuple[tuple[re.Pattern[str], float], ...]:
    number = _NUMBER if kind in _LOOSE else _NUMBER.replace(f"|{_LETTERS}", "")
    special = {"$": rf"\$\s?{number}{_AFTER}", "乘以": rf"乘以\s?{number}{_AFTER}", "twice": _TWICE}
    special["behind the name"] = (
        rf"{_NAMED_PART}[\w-]+(?:\s\d+\s?GB?)?\s?[x×*]\s?(?P<number>\d+)(?![\w×])(?P<upper>)(?P<scale>)(?P<more>)(?P<after>)"
    )
    special |= {
        unit: rf"(?:{unit}){_NO_NUMBER}" for of, unit, _ in _UNITS if of == "share" and re.search("之|半", unit)
    }
    return tuple(
        (re.compile(special.get(unit, rf"{number}\s?(?:{unit}){_AFTER}")), size)
        for of, unit, size in _UNITS
        if of == kind
    )


def _value(number: str, scale: str) -> float | None:
    """A number times its scale; None for Chinese numerals that are not a number, as in 万一."""
    word = _WORDS.get(number.lower(), chinese_number(number))
    if word is None and not number[0].isdecimal():
        return None
    value = float(number.replace(",", "").rstrip(".")) if word is None else float(word)
    return value * (_SCALES.get(scale) or chinese_number(scale) or 1.0)
