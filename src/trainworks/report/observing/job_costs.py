"""What jobs held and cost, by month, owner and team."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainworks.report.rendering.document import Document, Fact, Facts, Section, Table, Text, left, right
from trainworks.report.rendering.plots import Bar, Bars, Segment
from trainworks.units import format_count, format_usd

_FILLS = ("compute", "communication", "optimizer", "data", "checkpoint", "start", "restart", "lost", "other")
"""Colours of the first owners; all others share the last one."""


@dataclass(frozen=True, slots=True)
class HeldTime:
    """Time that the jobs of one owner and team held in one month; a sum keeps these of the first."""

    month: str = ""
    """`2026-11`, of the start of an attempt."""
    owner: str = ""
    team: str = ""
    """Account of Slurm or queue of Kueue; empty without one."""
    jobs: int = 0
    accelerator_hours: float = 0.0
    core_hours: float = 0.0
    usd: float = 0.0
    unpriced_hours: float = 0.0
    """Accelerator hours of jobs whose run file gives no price."""

    def __add__(self, other: HeldTime) -> HeldTime:
        return HeldTime(
            self.month,
            self.owner,
            self.team,
            self.jobs + other.jobs,
            self.accelerator_hours + other.accelerator_hours,
            self.core_hours + other.core_hours,
            self.usd + other.usd,
            self.unpriced_hours + other.unpriced_hours,
        )


def document(held: Sequence[HeldTime]) -> Document:
    """A bar per month, and a row per month, owner and team."""
    total = sum(held, HeldTime())
    if not held:
        return Document("Costs", "costs", [Section("", [Text("No job has held a node yet.")])])
    figures = [
        Fact("jobs", f"{total.jobs:,}"),
        Fact("accelerator hours", format_count(total.accelerator_hours)),
        Fact("core hours", format_count(total.core_hours)),
        Fact("cost", format_usd(total.usd), "where run files give a price"),
    ]
    has_teams = any(each.team for each in held)
    who = ["owner", "team"] if has_teams else ["owner"]
    columns = [*left("month", *who), *right("jobs", "accelerator hours", "core hours", "cost", "without a price")]
    rows = [
        [
            each.month,
            each.owner,
            *([each.team] if has_teams else []),
            f"{each.jobs:,}",
            f"{each.accelerator_hours:,.1f}",
            f"{each.core_hours:,.1f}",
            format_usd(each.usd) if each.usd else "",
            f"{each.unpriced_hours:,.1f} h" if each.unpriced_hours else "",
        ]
        for each in held
    ]
    return Document(
        "Costs",
        "costs",
        [
            Section("", [Facts(figures, figures=True)]),
            Section("By month", [_bars(held, uses_accelerators=total.accelerator_hours > 0), Table(columns, rows)]),
        ],
        notes=["A job counts in the month in which each of its attempts started, until the attempt gave up its nodes."],
    )


def _bars(held: Sequence[HeldTime], *, uses_accelerators: bool) -> Bars:
    """Hours by month, stacked by owner: of accelerators, or of cores where no job has any."""
    by_owner = {each.owner: 0.0 for each in held}
    for each in held:
        by_owner[each.owner] += _hours(each, uses_accelerators)
    ranked = sorted(by_owner, key=by_owner.__getitem__, reverse=True)
    fills = dict(zip(ranked, (*_FILLS, *("idle" for _ in ranked)), strict=False))
    bars = []
    for month in dict.fromkeys(each.month for each in held):
        own = [each for each in held if each.month == month]
        segments = [
            Segment(
                each.owner,
                _hours(each, uses_accelerators),
                f"{_hours(each, uses_accelerators):,.0f} h",
                fills[each.owner],
            )
            for each in sorted(own, key=lambda each: ranked.index(each.owner))
        ]
        bars.append(Bar(month, f"{sum(each.value for each in segments):,.0f} h", segments))
    return Bars(bars, is_compact=True)


def _hours(held: HeldTime, uses_accelerators: bool) -> float:
    return held.accelerator_hours if uses_accelerators else held.core_hours
