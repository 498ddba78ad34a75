"""TW80x and TW85x: what texts say of accelerators, held against the catalogue, in English and in Chinese."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from trainworks.catalog.facts import Precision
from trainworks.catalog.software import AS_OF
from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers.hardware import PartMention, families, parts_in, subjects_of
from trainworks.review.readers.quantities import Kind, StatedQuantity
from trainworks.review.readers.statements import Statement
from trainworks.review.rule import rule
from trainworks.units import format_quantity

CATALOG = "trainworks catalog show {}"
hardware_rule = partial(rule, source=CATALOG.format("PART"), file="hardware.md")
_MEMORY_KIND = re.compile(r"(?<![A-Za-z0-9])(?:HBM\d?e?|GDDR\dX?)(?![A-Za-z0-9])", re.IGNORECASE)
_PRECISIONS: Mapping[Precision, re.Pattern[str]] = {
    "fp32": re.compile(r"(?<![A-Z])FP32|单精度|float32", re.IGNORECASE),
    "tf32": re.compile(r"TF32", re.IGNORECASE),
    "fp16": re.compile(r"FP16|半精度|half precision", re.IGNORECASE),
    "bf16": re.compile(r"BF16|bfloat16", re.IGNORECASE),
    "fp8": re.compile(r"FP8", re.IGNORECASE),
    "fp4": re.compile(r"FP4", re.IGNORECASE),
}
_SPARSE = 2.0
"""Ratio of the rates that data sheets print with and without structured sparsity."""
_TOLERANCE = 1.1
"""Data sheets of variants and vendors' tables differ by a few percent."""
_SOLD_WITH_MORE = frozenset({"GH200"})
"""Families with variants whose memory the catalogue lacks."""
_GIB = 2**30 / 1e9
_REACH = 40
"""Characters between an accelerator and the word that calls it the best."""
_NEW_YEARS = 2
"""Years after a launch in which a sentence that names the accelerator is about today's choice."""
_OLD_YEARS = 5
"""Years after its launch in which an accelerator is not the best any more."""


def about_parts(
    file: ReviewedFile, kind: Kind, *concepts: str, without: Sequence[str] = ()
) -> Iterator[tuple[Statement, StatedQuantity, PartMention]]:
    """Quantities of sentences that name one of the concepts near them, with each accelerator that they are about."""
    for statement in file.naming(("accelerator",)):
        if statement.is_denied or not statement.names(*concepts) or statement.names(*without):
            continue
        count = max((one.value for one in statement.quantities("ranks")), default=1.0)
        for quantity in statement.quantities(kind):
            if (count > 1 and quantity.value % count == 0) or not _is_near(statement, quantity, concepts):
                continue  # of all of them together
            for part in subjects_of(statement, quantity.start):
                yield statement, quantity, _together(part, statement)


def _together(part: PartMention, statement: Statement) -> PartMention:
    """An accelerator with the variants of all others of its sentence: a figure that one of them has is right of it."""
    others = [row for other in parts_in(statement) if other.family != part.family for row in other.rows]
    return replace(part, rows=(*part.rows, *others)) if others else part


def _is_near(statement: Statement, quantity: StatedQuantity, concepts: Sequence[str], reach: int = 16) -> bool:
    """A word for a concept is within a few characters of a quantity, with no comma between them."""
    for concept in concepts:
        for found in statement.mentions(concept):
            between = statement.text[min(found.end(), quantity.end) : max(found.start(), quantity.start)]
            if len(between) <= reach and not re.search(r"[,，、;；|/]|和|and", between):
                return True
    return False


@hardware_rule(
    "TW804",
    "Another kind of memory",
    why="The data sheet of the accelerator names another kind of memory, with another bandwidth.",
    fix="Take the memory from the data sheet: `trainworks catalog show PART`.",
    bad="Each node has 8 A100 80GB HBM3.\n",
    good="Each node has 8 A100 80GB HBM2e.\n",
)
def wrong_memory(file: ReviewedFile) -> Iterator[Problem]:
    """A kind of memory that no variant of its accelerator has, in a sentence without one that it has."""
    for statement in file.naming(("accelerator",)):
        stated = list(_MEMORY_KIND.finditer(statement.text))
        if not stated or statement.is_denied:
            continue
        subjects = {kind: subjects_of(statement, kind.start()) for kind in stated}
        named = [part for parts in subjects.values() for part in parts]
        beside = _kinds([part for part in parts_in(statement) if part not in named])
        for part in dict.fromkeys(named):
            about = [kind for kind in stated if part in subjects[kind]]
            has = _kinds([part])
            known = has | beside  # HBM alone stands for every generation of it, and HBM2 for HBM2e
            if has and not any(
                each.lower().startswith(kind[0].lower().rstrip("x")) for kind in about for each in known
            ):
                yield statement.problem(
                    about[0].start(), "{part} has {has}, not {stated}", part=part.family,
                    has=" / ".join(sorted(has)), stated=about[0][0],
                )  # fmt: skip


def _kinds(parts: Sequence[PartMention]) -> set[str]:
    """Kinds of memory of accelerators, without those that are sold with others than the catalogue has."""
    rows = [row for part in parts if part.family not in _SOLD_WITH_MORE for row in part.rows]
    return {row.memory_type for row in rows if row.memory_type}


@hardware_rule(
    "TW808",
    "The ratio of two peak rates",
    why="The data sheets give both rates, dense and in the same precision; their ratio is arithmetic.",
    fix="Divide the two figures: `trainworks catalog show PART`.",
    bad="The A100 has 312 TFLOPS (FP16), 3x the V100.\n",
    good="The A100 has 312 TFLOPS (FP16), 2.5x the V100.\n",
)
def wrong_ratio(file: ReviewedFile) -> Iterator[Problem]:
    """Two accelerators, a word for the peak rate, and a factor that is the ratio of their rates in no precision."""
    for statement in file.naming(("accelerator",)):
        factors = [one for one in statement.quantities("factor") if 1 < one.value < 100]
        parts = {part.family: part for part in parts_in(statement)}
        peak = statement.names("peak rate") or statement.quantities("flops/s")
        if len(parts) != 2 or len(factors) != 1 or not peak or statement.is_denied or statement.names("measured work"):
            continue
        first, second = parts.values()
        stated = [name for name, pattern in _PRECISIONS.items() if pattern.search(statement.text)]
        ratios = _ratios(first, second, stated or list(_PRECISIONS))
        factor = factors[0].value
        if not _compares(statement, factors[0], (first, second)):
            continue
        if ratios and not any(1 / 1.15 <= factor / ratio <= 1.15 for ratio in ratios):
            yield statement.problem(
                factors[0].start,
                "{first} has {ratio} times the peak rate of {second}, not {factor}",
                part=second.family,
                first=first.family,
                second=second.family,
                ratio=ratios[0],
                factor=factor,
            )


def _compares(statement: Statement, factor: StatedQuantity, parts: tuple[PartMention, PartMention]) -> bool:
    """The factor is between the two: `A100 is 3x the V100`, or behind a comparison: `A100 相比 V100 提升 3 倍`."""
    first, second = parts
    if first.end <= factor.start and factor.end <= second.start:
        between = statement.text[factor.end : second.start]
        return len(between) <= _REACH and not re.search(r"[,，、;；]|\bbut\b|而", between)
    before = statement.text[first.end : second.start]
    compared = statement.names("comparison") or "的" in statement.text[second.end : second.end + 2]
    near = len(before) <= _REACH or len(statement.quantities("flops/s")) > 0
    return second.end <= factor.start <= second.end + 24 and compared and near


def _ratios(first: PartMention, second: PartMention, precisions: Sequence[Precision]) -> list[float]:
    """Ratios of the dense rates of any two variants, and with sparsity of the newer one, that are above 1."""
    found = [
        mine.peak_flops_per_s[precision] / other.peak_flops_per_s[precision]
        for precision in sorted(precisions, key=lambda one: one != "fp16")
        for mine in first.rows
        for other in second.rows
        if precision in mine.peak_flops_per_s and precision in other.peak_flops_per_s
    ]
    up = [max(ratio, 1 / ratio) for ratio in found]
    return [*up, *(ratio * _SPARSE for ratio in up)] if found else []


@hardware_rule(
    "TW810",
    "More than the memory carries",
    why="The data sheet of the accelerator names a lower bandwidth of its memory, which no program exceeds.",
    fix="Take the bandwidth from the data sheet: `trainworks catalog show PART`.",
    bad="The A100 has HBM2e memory with 4.8 TB/s.\n",
    good="The H200 has HBM3e memory with 4.8 TB/s.\n",
)
def rate_above_memory(file: ReviewedFile) -> Iterator[Problem]:
    """A bandwidth of the memory of one accelerator that is above that of every variant of it."""
    for statement, rate, part in about_parts(file, "bytes/s", "device memory", without=("several devices",)):
        most = max(row.memory_bytes_per_s for row in part.rows)
        if rate.in_bytes and rate.value > _TOLERANCE * most:
            yield _above(statement, rate, part, most, "bytes/s")


@hardware_rule(
    "TW851",
    "More than the peak rate",
    why="The data sheet names a lower peak in this precision, even with structured sparsity, which doubles it.",
    fix="Take the rate of this precision from the data sheet: `trainworks catalog show PART`.",
    bad="An A100 reaches 1,250 TFLOPS in BF16.\n",
    good="An A100 reaches 312 TFLOPS in BF16.\n",
)
def rate_above_peak(file: ReviewedFile) -> Iterator[Problem]:
    """A rate of one accelerator above its peak in the precision that stands nearest, sparsity included."""
    for statement in file.naming(("accelerator",)):
        if statement.is_denied or statement.names("several devices"):
            continue
        for rate in statement.quantities("flops/s"):
            precision = _precision_near(statement, rate)
            for part in (_together(each, statement) for each in subjects_of(statement, rate.start)):
                peaks = [row.peak_flops_per_s.get(precision) for row in part.rows] if precision else []
                known = [peak for peak in peaks if peak]
                dense = re.search(r"dense|稠密", statement.text) is not None
                most = max(known, default=0.0) * (1.0 if dense else _SPARSE)
                if known and rate.value > _TOLERANCE * most:
                    yield _above(statement, rate, part, most, "FLOP/s")


def _precision_near(statement: Statement, rate: StatedQuantity) -> Precision | None:
    """The only precision shortly before a rate, else directly behind it with no comma between them."""
    behind = re.match(r"[^,，、;；。|/]{0,16}", statement.text[rate.end :])
    for near in (statement.text[max(0, rate.start - _REACH) : rate.start], behind[0] if behind else ""):
        found: list[Precision] = [name for name, pattern in _PRECISIONS.items() if pattern.search(near)]
        if found:
            return found[0] if len(found) == 1 else None
    return None


@hardware_rule(
    "TW852",
    "More than its power limit",
    "warning",
    why="The data sheet names a lower power of the board.",
    fix="Take the power from the data sheet: `trainworks catalog show PART`.",
    bad="An A100 has a TDP of 700 W.\n",
    good="An H100 SXM has a TDP of 700 W.\n",
)
def power_above_limit(file: ReviewedFile) -> Iterator[Problem]:
    """A power of one accelerator above that of every variant of it."""
    for statement, power, part in about_parts(file, "watts", "board power", without=("several devices", "machine")):
        limits = [row.power_w for row in part.rows if row.power_w]
        if limits and power.value > _TOLERANCE * max(limits):
            yield _above(statement, power, part, max(limits), "W")


@hardware_rule(
    "TW853",
    "More than the links of the accelerator carry",
    why="All scale-up links of one accelerator together carry less, both directions added.",
    fix="Take the links from the data sheet: `trainworks catalog show PART`.",
    bad="The A100 has NVLink at 900 GB/s.\n",
    good="The A100 has NVLink at 600 GB/s, both directions added.\n",
)
def rate_above_scale_up(file: ReviewedFile) -> Iterator[Problem]:
    """A rate of NVLink that is above both directions of all links of every variant of its accelerator."""
    for statement, rate, part in about_parts(
        file, "bytes/s", "scale-up link", without=("several devices", "newer link")
    ):
        most = 2 * max(row.scale_up_bytes_per_s for row in part.rows)
        if most and rate.in_bytes and rate.value > _TOLERANCE * most:
            yield _above(statement, rate, part, most, "bytes/s")


@hardware_rule(
    "TW854",
    "Another size of memory",
    why="No variant of the accelerator has this memory.",
    fix="Take the memory from the data sheet: `trainworks catalog show PART`.",
    bad="Each H100 has 192 GB of HBM3.\n",
    good="Each H100 has 80 GB of HBM3.\n",
)
def wrong_size(file: ReviewedFile) -> Iterator[Problem]:
    """A size of the memory of one accelerator above that of every variant of it."""
    for statement, size, part in about_parts(file, "bytes", "device memory", without=("several devices",)):
        most = max(row.memory_bytes for row in (*part.rows, *families()[part.family]))
        several = any(
            round(size.value / row.memory_bytes * unit, 2) % 1 == 0 for row in part.rows for unit in (1, _GIB)
        )
        if size.value > 1.15 * most and not several and part.family not in _SOLD_WITH_MORE:
            yield _above(statement, size, part, most, "bytes")


@hardware_rule(
    "TW855",
    "Not the newest any more",
    "note",
    why="Later generations of the vendor have followed; the catalogue has the year of each launch.",
    fix="Name the generation of today, or why this one is the choice: `trainworks catalog list accelerators`.",
    bad="The A100 is the gold standard for training.\n",
    good="The A100 is still good value for training.\n",
)
def old_best(file: ReviewedFile) -> Iterator[Problem]:
    """An accelerator of five years ago that is called the best one."""
    for statement in file.naming(("accelerator",)):
        best = list(statement.mentions("best"))
        if statement.names("large models") and not statement.names("at least"):
            best += statement.mentions("recommends")
        if not best or statement.is_denied or statement.names("past", "measured work of others"):
            continue
        newest = max((row.launched for part in parts_in(statement) for row in part.rows), default=0)
        for part in parts_in(statement) if int(AS_OF[:4]) - newest > _NEW_YEARS else ():
            launched = min(row.launched for row in part.rows)
            if int(AS_OF[:4]) - launched >= _OLD_YEARS and any(_calls(statement, found, part) for found in best):
                yield statement.problem(
                    part.start, "{part} was launched in {launched}; newer generations followed", part=part.family,
                    launched=launched,
                )  # fmt: skip
                break


def _calls(statement: Statement, best: re.Match[str], part: PartMention) -> bool:
    """A word for the best is said of an accelerator: joined to it by a verb or a colon, or directly before it."""
    start, end = (part.end, best.start()) if part.end <= best.start() else (best.end(), part.start)
    between = statement.text[start:end]
    joined = (
        re.search(r"\b(?:is|are|as|remains?|the|for|we|GPUs?|cards?)\b|[是为属选用：:的]|推荐|代表|GPU|卡", between)
        is not None
    )
    return len(between) <= _REACH and (joined or len(between) <= 3)


def _above(statement: Statement, stated: StatedQuantity, part: PartMention, most: float, unit: str) -> Problem:
    return statement.problem(
        stated.start,
        "{stated}: {part} has at most {limit}",
        part=part.family,
        stated=stated.text.strip(),
        limit=format_quantity(most, unit),
    )
