"""Accelerators in a sentence, as rows of the catalogue, and which of them a figure is about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from trainworks.catalog.catalog import accelerator, names
from trainworks.catalog.facts import Accelerator
from trainworks.errors import UsageError
from trainworks.review.readers.prose import WORD_END
from trainworks.review.readers.statements import Statement

_FORM = re.compile(r"-(?:SXM|PCIE|NVL)?(?:-?\d+GB)?$")
_LEAST_DIGITS = 3
"""Digits of the name of a family, such as A100; a T4 or an L4 is also something else."""
_JOINS = re.compile(r"(?:\s*[(（]?\d+\s*GB?[)）]?)?\s*(?:[/、,，和或及]|(?:and|or)(?: the)?\b|以及)?\s*(?:NVIDIA)?\s*")
"""What stands between two accelerators that a figure behind them is about."""


@dataclass(frozen=True, slots=True, eq=False)
class PartMention:
    """An accelerator that a sentence names."""

    family: str
    """Name in the catalogue, without memory and form: `A100`, `RTX-4090`."""
    rows: tuple[Accelerator, ...]
    """The variants that fit the memory and the form behind the name."""
    start: int
    end: int

    @property
    def usual(self) -> Accelerator:
        """The variant that the name of the family stands for, if it fits; else the last one."""
        return next((row for row in self.rows if row.name == _usual(self.family)), self.rows[-1])


@cache
def _usual(family: str) -> str | None:
    try:
        return accelerator(family).name
    except UsageError:
        return None


@cache
def families() -> dict[str, tuple[Accelerator, ...]]:
    """Variants of each accelerator that a name with three digits identifies, by family."""
    found: dict[str, list[Accelerator]] = {}
    for name in names("accelerators"):
        family = _FORM.sub("", name)
        try:
            row = accelerator(name)
        except UsageError:
            continue
        if len(re.findall(r"\d", family)) >= _LEAST_DIGITS or family in ("H20",):
            found.setdefault(family, []).append(row)
    return {family: tuple(rows) for family, rows in found.items()}


@cache
def _pattern() -> re.Pattern[str]:
    longest = sorted(families(), key=len, reverse=True)
    names_of = "|".join(re.escape(family).replace(r"\-", r"[- ]?") for family in longest)
    form = rf"(?:[- ]?(?P<form>SXM\d?|PCIe|PCIE|NVL){WORD_END})?"
    return re.compile(
        # 8xA100 has no end of a word before the name
        rf"(?:(?<![A-Za-z0-9])|(?<=\d[xX×]))(?P<family>{names_of})s?(?![0-9A-Za-z]|-[A-Z]?\d{{3}})"
        rf"{form}(?:[- ]?(?P<size>\d{{2,3}})\s?GB?{WORD_END})?{form.replace('form', 'form2')}"
    )


@lru_cache(maxsize=4096)
def parts_in(statement: Statement) -> tuple[PartMention, ...]:
    """The accelerators of a sentence, from left to right."""
    found = []
    for match in _pattern().finditer(statement.text):
        family = re.sub(" ", "-", match["family"])
        rows = families().get(family) or next(
            rows for name, rows in families().items() if name.replace("-", "") == family.replace("-", "")
        )
        form = (match["form"] or match["form2"] or "").upper()[:3]
        fits = [row for row in rows if not form or f"-{form}" in row.name.upper()]
        if match["size"]:
            fits = [row for row in fits if re.search(rf"-{match['size']}GB", row.name)] or fits
        found.append(PartMention(family, tuple(fits) or rows, match.start(), match.end()))
    return tuple(found)


def subjects_of(statement: Statement, at: int, reach: int = 60) -> tuple[PartMention, ...]:
    """The accelerators that a figure at an offset is about: the nearest before it, with those it is listed with.

    `A100/H100 (80 GB)` is about both. Without one before it is the only one directly behind. In a row of a table it is
    that of the first cell, or of its own.
    """
    mentions = parts_in(statement)
    if statement.text.startswith("|"):
        cells = [found.start() for found in re.finditer(r"\|", statement.text)]
        own = max(cell for cell in cells if cell <= at)
        mentions = tuple(
            one for one in mentions if one.start > own or one.end <= min([*cells[1:2], len(statement.text)])
        )
    before = [one for one in mentions if one.end <= at]
    if not before:
        behind = [one for one in mentions if one.start >= at]
        return tuple(behind[:1]) if behind and behind[0].start - at <= reach // 2 else ()
    group = [before[-1]]
    for one in reversed(before[:-1]):
        if not _JOINS.fullmatch(statement.text[one.end : group[0].start]):
            break
        group.insert(0, one)
    return tuple(group) if at - group[-1].end <= reach else ()


def only_part(mentions: Sequence[PartMention]) -> Accelerator | None:
    """The accelerator of sentences that name one family alone: its usual variant."""
    return mentions[0].usual if len({one.family for one in mentions}) == 1 else None
