"""Two runs side by side: what was configured, planned and measured differently, and their losses at the same steps.

Convention: relative difference = (second - first) / first, so that + means that the second run has more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence

from trainworks.catalog.exchange import usd_of
from trainworks.record.resolved import ResolvedRun
from trainworks.report.runs.comparison import Comparison, Unit
from trainworks.report.runs.curves import Point
from trainworks.report.runs.part import ReportPart, format_amount, printable
from trainworks.report.runs.summary import Report
from trainworks.results import Result
from trainworks.units import HOUR_S

_LOSS_ROWS = 6
_CLOSE = 0.02
"""Relative difference of the step times below which two runs count as equally fast."""

_MEASURED: tuple[tuple[str, str, Unit], ...] = (
    ("tokens_per_s", "throughput", "per_s"),
    ("mfu", "MFU", "ratio"),
    ("memory", "memory peak", "bytes"),
)
"""Measured figures of a report's comparison: field, name and unit."""


class ComparedSetting(ReportPart):
    """One setting that differs."""

    name: str
    """Dotted: `workload.optimizer.lr`."""
    first: str | None
    second: str | None
    """None where this run does not set it."""


class ComparedFigure(ReportPart):
    """One figure of both runs."""

    name: str
    unit: Unit
    first: float | None
    second: float | None
    is_term: bool = False
    """True for a part of the figure above it."""

    @property
    def relative(self) -> float | None:
        """(second - first) / first; None where one is missing or the first is zero."""
        if not self.first or self.second is None:
            return None
        return (self.second - self.first) / self.first


class RunComparison(Result, ReportPart):
    """The differences between two runs."""

    format_version: int = 1
    runs: tuple[str, str]
    states: tuple[str, str]
    finding: str
    """The step times of both runs in one sentence, with the term that differs most."""
    settings: tuple[ComparedSetting, ...]
    figures: tuple[ComparedFigure, ...]
    usd: tuple[float | None, float | None]
    """Price of the accelerators for the held time; None without a price in the run file."""
    losses: tuple[tuple[int, float, float], ...]
    """Step and both losses, at steps that both runs recorded."""
    curves: tuple[tuple[Point, ...], tuple[Point, ...]]
    """Step and loss of the effective steps of each run."""


def compare_reports(runs: Sequence[tuple[ResolvedRun, Report]]) -> RunComparison:
    """Compare two runs, in the order to show them, by what they were resolved to and what they report."""
    (one, first), (other, second) = runs
    curves = (losses_of(first), losses_of(second))
    figures = tuple(_figures(first, second))
    return RunComparison(
        runs=(first.run_id, second.run_id),
        states=(first.state, second.state),
        finding=_finding(figures, first.run_id, second.run_id),
        settings=tuple(_settings(one, other)),
        figures=figures,
        usd=(_usd(one, first), _usd(other, second)),
        losses=_losses_at_common_steps(*curves),
        curves=curves,
    )


def settings_of(resolved: ResolvedRun) -> dict[str, str]:
    """What was wanted and what was found, by dotted name; secrets as fingerprints."""
    return _flat(_configured(resolved))


def _settings(one: ResolvedRun, other: ResolvedRun) -> Iterator[ComparedSetting]:
    first, second = settings_of(one), settings_of(other)
    for name in dict.fromkeys([*first, *second]):
        if first.get(name) != second.get(name):
            yield ComparedSetting(name=name, first=first.get(name), second=second.get(name))


def _configured(resolved: ResolvedRun) -> Mapping[str, object]:
    """What was wanted and what was found: the run file, the layout, the ranks, the machine and its software."""
    host = resolved.host
    written = resolved.run_file.model_dump(mode="json", exclude_unset=True, exclude={"layout"})
    layout = resolved.plan.layout if resolved.plan else resolved.run_file.layout
    secrets = resolved.run_file.written_secrets
    for envs in [each["envs"] for each in (written, *written.get("roles", {}).values()) if "envs" in each]:
        for name in envs.keys() & set(secrets):  # a fingerprint, which differs between two secrets
            if envs[name]:
                envs[name] = f"*** ({hashlib.sha256(envs[name].encode()).hexdigest()[:4]})"
    return {
        **written,
        "layout": layout.model_dump(mode="json") if layout else None,
        "processes": resolved.processes.model_dump(mode="json"),
        "host": {"name": host.hostname, "processor": host.processor, "cores": host.num_cores, "python": host.python},
        "accelerators": sorted({item.name for item in host.accelerators}),
        "packages": host.packages,
        "trainworks": resolved.trainworks,
    }


def _flat(value: object, name: str = "") -> dict[str, str]:
    """Dotted names of all values; None is left out."""
    if isinstance(value, Mapping):
        parts = (_flat(part, f"{name}.{key}" if name else str(key)) for key, part in value.items())
        return {key: text for part in parts for key, text in part.items()}
    return {} if value is None else {name: printable(value if isinstance(value, str) else json.dumps(value))}


def _figures(first: Report, second: Report) -> Iterator[ComparedFigure]:
    a, b = first.comparison, second.comparison
    yield ComparedFigure(name="planned step", unit="s", first=_planned(a), second=_planned(b))
    one, other = (each.anchor.anchored if each and each.anchor else None for each in (a, b))
    if one or other:
        steps = (each.step_s if each else None for each in (one, other))
        yield ComparedFigure(name="anchored step", unit="s", first=next(steps), second=next(steps))
    yield ComparedFigure(name="step time", unit="s", first=_step(first), second=_step(second))
    mine, others = _terms(a), _terms(b)
    for name in dict.fromkeys([*mine, *others]):
        yield ComparedFigure(name=name, unit="s", first=mine.get(name), second=others.get(name), is_term=True)
    for field, name, unit in _MEASURED:
        one, other = (getattr(each, field).measured if each else None for each in (a, b))
        yield ComparedFigure(name=name, unit=unit, first=one, second=other)
    mine_held_out, others_held_out = _held_out(first), _held_out(second)
    for name in dict.fromkeys([*mine_held_out, *others_held_out]):
        yield ComparedFigure(
            name=f"held-out {name}", unit="value", first=mine_held_out.get(name), second=others_held_out.get(name)
        )
    mine_own, others_own = _own(first), _own(second)
    for name in dict.fromkeys([*mine_own, *others_own]):
        yield ComparedFigure(name=name, unit="value", first=mine_own.get(name), second=others_own.get(name))
    yield ComparedFigure(name="wall clock", unit="s", first=first.wall_clock_s, second=second.wall_clock_s)
    yield ComparedFigure(
        name="runtime goodput", unit="ratio", first=first.runtime_goodput, second=second.runtime_goodput
    )


def _held_out(report: Report) -> dict[str, float | None]:
    """Loss and accuracy of the last evaluation, and its named figures."""
    if (found := report.evaluations) is None:
        return {}
    return {"loss": found.last.loss, "accuracy": found.last.accuracy, **found.last.figures}


def _own(report: Report) -> dict[str, float]:
    """What a command last said beside its loss."""
    return {name: points[-1][1] for name, points in report.curves.figures.items() if points} if report.curves else {}


def _planned(comparison: Comparison | None) -> float | None:
    return comparison.step_time.planned if comparison else None


def _step(report: Report) -> float | None:
    if report.comparison:
        return report.comparison.step_time.measured
    return report.training.step_s if report.training else None


def _terms(comparison: Comparison | None) -> dict[str, float | None]:
    return {term.name: term.measured for term in comparison.step_time_terms} if comparison else {}


def _finding(figures: Sequence[ComparedFigure], first: str, second: str) -> str:
    step = next(figure for figure in figures if figure.name == "step time")
    if step.relative is None:
        return "at least one of the runs has no measured step"
    if abs(step.relative) < _CLOSE:
        return f"the steps of both runs take the same time within {_CLOSE:.0%}"
    terms = [figure for figure in figures if figure.is_term]
    longer = "longer" if step.relative > 0 else "shorter"
    whole = f"a step of {second} takes {abs(step.relative):.0%} {longer} than one of {first}"
    if not terms:
        return whole
    # The term that moved furthest in the direction in which the whole step moved.
    cause = max(terms, key=lambda term: ((term.second or 0.0) - (term.first or 0.0)) * (1 if step.relative > 0 else -1))  # type: ignore[operator]
    change = f"{format_amount(cause.first, 's')} and {format_amount(cause.second, 's')}"
    return f"{whole}; most by {cause.name}: {change}"


def _usd(resolved: ResolvedRun, report: Report) -> float | None:
    if resolved.hour_price is None or report.ledger is None:
        return None
    return usd_of(resolved.hour_price) * report.ledger.held_s / HOUR_S


def losses_of(report: Report) -> tuple[Point, ...]:
    """Step and loss of the effective steps of a run."""
    lines = report.curves.loss if report.curves else ()
    return tuple(point for line in lines if not line.lost for point in line.points)


def _losses_at_common_steps(first: Sequence[Point], second: Sequence[Point]) -> tuple[tuple[int, float, float], ...]:
    """Losses at evenly spread steps that both have, the last one included."""
    other = dict(second)
    common = [(step, loss, other[step]) for step, loss in first if step in other]
    if len(common) <= _LOSS_ROWS:
        return tuple(common)
    last = len(common) - 1
    return tuple(common[round(index * last / (_LOSS_ROWS - 1))] for index in range(_LOSS_ROWS))
