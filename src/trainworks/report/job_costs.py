"""What jobs held and cost, by month, user and team."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from trainworks.report.rendering.document import Document, Fact, Facts, Plot, Section, Table, Text, left, right
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.results import Result
from trainworks.units import format_count, format_usd

_FILLS = ("compute", "communication", "optimizer", "data", "checkpoint", "start", "restart", "lost", "other")
"""Colours of the first owners; all others share the last one."""


@dataclass(frozen=True, slots=True)
class HeldTime:
    """Time that the jobs of one owner and team held in one month; a sum keeps these of the first."""

    month: str = ""
    """`2026-11`, in which they held it (UTC); empty in a sum over months, as the names below."""
    owner: str = ""
    team: str = ""
    """`job.team`, else the account of Slurm or the queue of Kueue; empty without one."""
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


@dataclass(frozen=True, slots=True)
class Usage(Result):
    """What the jobs of the store held and cost."""

    held: tuple[HeldTime, ...]
    """Newest month first."""


to_json.register(Usage, lambda usage: {"held": [asdict(each) for each in usage.held]})


@build_document.register
def document(usage: Usage) -> Document:
    """A bar per month, where rows have one, and a row for each that was asked for."""
    held = usage.held
    total = sum(held, HeldTime())
    if not held:
        return Document("Costs", "costs", [Section("", [Text("No job has held a node yet.")])])
    figures = [
        Fact("jobs", f"{total.jobs:,}"),
        Fact("accelerator hours", format_count(total.accelerator_hours)),
        Fact("core hours", format_count(total.core_hours)),
        Fact("cost", format_usd(total.usd), "where run files give a price"),
    ]
    keys = [name for name in ("month", "owner", "team") if any(getattr(each, name) for each in held)]
    columns = [*left(*keys), *right("jobs", "accelerator hours", "core hours", "cost", "without a price")]
    rows = [
        [
            *(getattr(each, name) or "none" for name in keys),
            f"{each.jobs:,}",
            f"{each.accelerator_hours:,.1f}",
            f"{each.core_hours:,.1f}",
            format_usd(each.usd) if each.usd else "",
            f"{each.unpriced_hours:,.1f} h" if each.unpriced_hours else "",
        ]
        for each in held
    ]
    bars = [_bars(held, uses_accelerators=total.accelerator_hours > 0)] if "month" in keys else []
    return Document(
        "Costs",
        "costs",
        [
            Section("", [Facts(figures, figures=True)]),
            Section(f"By {', '.join(keys)}" if keys else "", [*bars, Table(columns, rows)]),
        ],
        notes=["Hours count in the month (UTC) in which nodes were held, and a job in that of its first start."],
    )


def _bars(held: Sequence[HeldTime], *, uses_accelerators: bool) -> Plot:
    """Hours by month, stacked by owner, or by team in a sum over owners: of accelerators, or of cores without any."""
    from trainworks.report.rendering.plots import Bar, Bars, Segment  # noqa: PLC0415, a sum of hours does without

    hours = {_holder(each): 0.0 for each in held}
    for each in held:
        hours[_holder(each)] += _hours(each, uses_accelerators)
    ranked = sorted(hours, key=hours.__getitem__, reverse=True)
    fills = dict(zip(ranked, (*_FILLS, *("idle" for _ in ranked)), strict=False))
    bars = []
    for month in dict.fromkeys(each.month for each in held):
        own = [each for each in held if each.month == month]
        segments = [
            Segment(
                _holder(each),
                _hours(each, uses_accelerators),
                f"{_hours(each, uses_accelerators):,.0f} h",
                fills[_holder(each)],
            )
            for each in sorted(own, key=lambda each: ranked.index(_holder(each)))
        ]
        bars.append(Bar(month, f"{sum(each.value for each in segments):,.0f} h", segments))
    return Bars(bars, is_compact=True)


def _holder(held: HeldTime) -> str:
    """The owner; the team in a sum over owners."""
    return held.owner or held.team or "all"


def _hours(held: HeldTime, uses_accelerators: bool) -> float:
    return held.accelerator_hours if uses_accelerators else held.core_hours
