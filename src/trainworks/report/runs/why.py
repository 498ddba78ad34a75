"""A diagnosis as a document: the causes of lost time in a table, then each with its evidence and remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from trainworks.observe.diagnosis.lost_time import Diagnosis, LostTime
from trainworks.report.rendering.document import (
    FULL_BLOCK,
    Block,
    Bullets,
    Column,
    Document,
    Fact,
    Facts,
    Preformatted,
    Section,
    Styled,
    Table,
    Text,
    right,
)
from trainworks.report.runs.part import printable
from trainworks.report.runs.wording import format_amount, format_percent
from trainworks.units import format_duration

_BAR_WIDTH = 20


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The whole diagnosis."""
    content: dict[str, Any] = json.loads(diagnosis.model_dump_json())
    return content


def document(diagnosis: Diagnosis) -> Document:
    """The causes in order of the seconds that they cost."""
    causes = diagnosis.causes
    heading: list[Block] = [Text(_headline(diagnosis), "bold"), Facts(_figures(diagnosis), figures=True)]
    if causes:
        heading.append(Table([Column("cause"), *right("lost", "share"), Column("", only="text")], _rows(diagnosis)))
    return Document(
        f"Why {diagnosis.run_id} is slow",
        "diagnosis",
        [
            Section("", heading),
            *(Section(f"{number}. {cause.title}", [*_cause(cause)]) for number, cause in enumerate(causes, start=1)),
        ],
        notes=diagnosis.notes,
        badge=Styled(diagnosis.state),
    )


def _headline(diagnosis: Diagnosis) -> str:
    if not diagnosis.causes:
        return "No cause cost 1 % of the time or more."
    first = diagnosis.causes[0]
    share = format_percent(first.lost_s / diagnosis.held_s)
    return f"{first.title}: {format_duration(first.lost_s)}, {share} of the time."


def _figures(diagnosis: Diagnosis) -> list[Fact]:
    return [
        Fact("held", format_duration(diagnosis.held_s), "time that the accelerators were held"),
        Fact("lost", format_duration(diagnosis.lost_s), "to the causes below"),
        Fact("runtime goodput", format_percent(diagnosis.runtime_goodput), "productive / held time"),
        Fact("step", format_amount(diagnosis.step_s, "s"), f"median, {diagnosis.num_steps:,} steps"),
    ]


def _rows(diagnosis: Diagnosis) -> list[list[str]]:
    lost_s: dict[str, float] = {cause.name: cause.lost_s for cause in diagnosis.causes}
    if diagnosis.small_s > 0:
        lost_s["smaller causes"] = diagnosis.small_s
    whole = diagnosis.held_s
    return [
        [name, format_duration(lost), format_percent(lost / whole), FULL_BLOCK * round(_BAR_WIDTH * lost / whole)]
        for name, lost in lost_s.items()
    ]


def _cause(cause: LostTime) -> Iterator[Block]:
    yield Bullets([printable(each) for each in cause.evidence])
    gain = "" if not cause.saves_s else f" Predicted gain: {format_duration(cause.saves_s)} of the recorded time."
    yield Text(f"{cause.remedy}{gain}")
    if cause.setting:
        yield Preformatted(f"  {cause.setting}")
