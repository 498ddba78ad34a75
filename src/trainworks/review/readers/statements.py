"""The sentences of a text, with the concepts that they name and the quantities that they give.

`vocabulary.txt` has the words of each concept in English and Chinese, as regular expressions. A pattern of concepts
says what a sentence has to state:

    cloud & utilisation & [share 0.9..]     all of them, in any order
    network > such as > NCCL                each closely behind the one before
    NCCL >> is >> network                   each at once behind the one before
    NVMe | SSD & cheap                      one of the alternatives, and the other
    GPU & network @ 40                      within 40 characters; without a number within 90

A quantity in brackets has a kind of `readers.quantities`, and a range of values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

from trainworks.numerals import ascii_width
from trainworks.review.finding import Problem
from trainworks.review.readers.prose import prose_lines
from trainworks.review.readers.quantities import Kind, StatedQuantity, quantities_in

Language = Literal["en", "zh"]

_VOCABULARY = Path(__file__).parents[1] / "vocabulary.txt"
_SENTENCE_END = re.compile(r"[。；！]|(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\betc)[.!](?=\s|$)")
"""A question does not end a sentence: its answer speaks of what it names."""
_LONGEST_SENTENCE = 600
"""Characters of a sentence that are read; a longer one is data."""
_WITHIN = 90
_ADDRESS = re.compile(r"(?:https?|ftp|s3|file)://[^\s)>\]\u4e00-\u9fff]+")
_LATIN = re.compile(r"[A-Za-z0-9(]|\[A-Z")
_CLOSE, _AT_ONCE = 40, 3
"""Characters between two parts of a chain, at most."""
_CHINESE = re.compile("[\u4e00-\u9fff]")
_SOFT_BREAK = 50
"""Characters of a line, at least, that the next one may continue."""


def language_of(text: str) -> Language:
    """Chinese if a text has a Chinese character for every three Latin words at least; else English.

    >>> language_of("A100 的显存为 HBM2e"), language_of("The A100 has HBM2e")
    ('zh', 'en')
    """
    chinese = len(_CHINESE.findall(text))
    return "zh" if chinese and 3 * chinese >= len(re.findall(r"[A-Za-z]{2,}", text)) else "en"


@dataclass(frozen=True, eq=False)
class Statement:
    """A sentence."""

    text: str
    """Its characters, those of full width as ASCII."""
    places: Sequence[tuple[int, int, int]]
    """Where its parts begin: offset in the sentence, line and column in the file."""
    _found: dict[str, tuple[re.Match[str], ...]] = field(default_factory=dict, repr=False)
    _counted: dict[Kind, tuple[StatedQuantity, ...]] = field(default_factory=dict, repr=False)

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of a character."""
        start, line, column = next(place for place in reversed(self.places) if place[0] <= offset)
        return line, column + offset - start

    def mentions(self, concept: str) -> tuple[re.Match[str], ...]:
        """The words for a concept, from left to right."""
        if concept not in self._found:
            self._found[concept] = tuple(vocabulary()[concept].finditer(self.text))
        return self._found[concept]

    def names(self, *concepts: str) -> bool:
        """True if the sentence has a word for one of the concepts."""
        return any(self.mentions(concept) for concept in concepts)

    @cached_property
    def is_denied(self) -> bool:
        """The sentence denies, corrects or doubts what it names."""
        return self.names("denial")

    def problem(self, offset: int, message: str, *, part: str = "", **values: object) -> Problem:
        """A problem at a character; `{name}` in the message stands for a value, `{part}` for a row of the catalogue."""
        texts = {name: f"{value:.3g}" if isinstance(value, float) else str(value) for name, value in values.items()}
        texts["part"] = part
        line, column = self.place(offset)
        return Problem(line, column, message.format_map(texts), values=texts, part=part)

    def quantities(self, kind: Kind) -> tuple[StatedQuantity, ...]:
        """Its quantities of a kind."""
        if kind not in self._counted:
            self._counted[kind] = tuple(quantities_in(self.text, kind))
        return self._counted[kind]


@cache
def vocabulary() -> Mapping[str, re.Pattern[str]]:
    """The words of each concept."""
    lines = _VOCABULARY.read_text(encoding="utf-8").splitlines()
    rows = (line.split(": ", 1) for line in lines if line and not line.startswith("#"))
    return {name: _compile(words.split(" | ")) for name, words in rows}


def _compile(words: Sequence[str]) -> re.Pattern[str]:
    r"""Any of the words, Latin ones between the ends of Latin words; `\b` sees none at a Chinese character.

    A word in capitals, such as FC, is another one in small letters.
    """
    latin = [f"(?-i:{word})" if re.fullmatch("[A-Z]{2,4}", word) else word for word in words if _LATIN.match(word)]
    bounded = rf"(?<![A-Za-z0-9_])(?:{'|'.join(latin)})(?![A-Za-z0-9_])"
    return re.compile(
        "|".join([bounded] * bool(latin) + [word for word in words if not _LATIN.match(word)]), re.IGNORECASE
    )


@dataclass(frozen=True, slots=True)
class PatternPart:
    """One place of a pattern: concepts of which a sentence has one, or a quantity in a range."""

    concepts: tuple[str, ...] = ()
    kind: Kind | None = None
    low: float = 0.0
    high: float = float("inf")
    reach: int = _CLOSE
    """Characters between the part before it in a chain and this one, at most."""

    def spans(self, statement: Statement) -> list[tuple[int, int]]:
        """Where the sentence has it."""
        if self.kind is None:
            return sorted(found.span() for concept in self.concepts for found in statement.mentions(concept))
        quantities = statement.quantities(self.kind)
        return [(one.start, one.end) for one in quantities if self.low <= one.value <= self.high]


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a sentence has to state: chains of parts, one behind the other, and the chains in any order."""

    chains: tuple[tuple[PatternPart, ...], ...]
    within: int
    rarest: tuple[str, ...]
    """Concepts of the part with the fewest words: most sentences that lack the pattern lack it."""

    def find(self, statement: Statement) -> tuple[int, int] | None:
        """Span of the first and the last character of the parts in the sentence; None if it does not state them."""
        found: list[list[tuple[int, int]]] = []
        for chain in self.chains:
            found.append(_chained(chain, statement))
            if not found[-1]:
                return None
        for start, end in found[0]:
            around = [(start, end)]
            for spans in found[1:]:
                around.append(min(spans, key=lambda span: max(span[0] - end, start - span[1], 0)))
            first, last = min(span[0] for span in around), max(span[1] for span in around)
            if last - first <= self.within:
                return first, last
        return None


def _chained(chain: Sequence[PatternPart], statement: Statement) -> list[tuple[int, int]]:
    """Spans of the chain in a sentence, each part closely behind the one before."""
    spans = chain[0].spans(statement)
    for part in chain[1:]:
        following = part.spans(statement) if spans else []
        joined = []
        for start, end in spans:
            joined += [(start, span[1]) for span in following if 0 <= span[0] - end <= part.reach]
        spans = joined
    return spans


def read_pattern(text: str) -> Pattern:
    """Parse a pattern of concepts.

    Raises:
        KeyError: the vocabulary lacks a concept.
    """
    body, _, within = text.partition("@")
    chains = tuple(
        tuple(_part(part.strip(), at_once=sign == ">>") for sign, part in re.findall(r"(^|>>?)([^>]+)", chain))
        for chain in body.split("&")
    )
    named = [part.concepts for chain in chains for part in chain if part.concepts]
    rarest = min(named, key=lambda concepts: sum(len(vocabulary()[concept].pattern) for concept in concepts))
    return Pattern(chains, int(within or _WITHIN), rarest)


def _part(text: str, *, at_once: bool) -> PatternPart:
    quantity = re.fullmatch(r"\[(\S+) ([\d.e]*)\.\.([\d.e]*)\]", text)
    if quantity:
        kind: Kind = quantity[1]  # type: ignore[assignment]
        return PatternPart((), kind, float(quantity[2] or 0), float(quantity[3] or "inf"))
    reach = _AT_ONCE if at_once else _CLOSE
    concepts = tuple(concept.strip() for concept in text.split("|"))
    for concept in concepts:
        vocabulary()[concept]
    return PatternPart(concepts, reach=reach)


def statements_in(text: str, *, whole: bool = False) -> Iterator[Statement]:
    """The sentences of a text, without its fenced code; a line of a table is one, and so is an item of a list.

    `whole` leaves paragraphs and items undivided.
    """
    for lines in _paragraphs(text):
        joined, starts = "", []
        for number, line in lines:
            indent = len(line) - len(line.lstrip())
            joined += " " if joined else ""
            starts.append((len(joined), number, indent + 1))
            joined += line.strip()
        yield from _sentences(_ADDRESS.sub(lambda found: "/" * len(found[0]), ascii_width(joined)), starts, whole=whole)


def _sentences(text: str, starts: Sequence[tuple[int, int, int]], *, whole: bool) -> Iterator[Statement]:
    at = 0
    ends = [] if whole or text.startswith("|") else [found.end() for found in _SENTENCE_END.finditer(text)]
    for end in [*ends, len(text)]:
        if text[at:end].strip() and end - at <= _LONGEST_SENTENCE:
            start = max((one for one in starts if one[0] <= at), default=starts[0])
            inner = [(offset - at, line, column) for offset, line, column in starts if at < offset < end]
            yield Statement(text[at:end], [(0, start[1], start[2] + at - start[0]), *inner])
        at = end


def _paragraphs(text: str) -> Iterator[list[tuple[int, str]]]:
    """Lines that belong together: a line, and those that continue its English sentence."""
    lines: list[tuple[int, str]] = []
    for number, line in prose_lines(text):
        continues = (
            lines
            and lines[-1][0] == number - 1
            and len(lines[-1][1]) >= _SOFT_BREAK
            and re.search(r"[a-z,]\s*$", lines[-1][1])
            and re.match(r"\s*[a-zA-Z0-9`(]", line)
            and not lines[-1][1].lstrip().startswith(("|", "#"))
        )
        if lines and not continues:
            yield lines
            lines = []
        lines.append((number, line))
    if lines:
        yield lines
