"""The record of a run in the tabs of a site: each is a document of the sections on one subject."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from trainworks.record.events.log import Event
from trainworks.report.live import event_line
from trainworks.report.pages.seed_chart import metric_chart
from trainworks.report.rendering.document import (
    Block,
    Cell,
    Document,
    Preformatted,
    Section,
    Styled,
    Table,
    Text,
    left,
    right,
)
from trainworks.report.rendering.plots import Chart, LiveChart
from trainworks.report.rendering.renderer import build_document
from trainworks.report.runs.summary import Report
from trainworks.units import format_bytes, format_duration

Tab = Literal["overview", "curves", "plan", "time", "events", "logs", "checkpoints"]
TABS: Mapping[Tab, str] = {
    "overview": "Overview",
    "curves": "Curves",
    "plan": "Plan and measured",
    "time": "Time",
    "events": "Events",
    "logs": "Logs",
    "checkpoints": "Checkpoints",
}
"""Tab -> its title."""
_SECTIONS: Mapping[str, tuple[Tab, ...]] = {
    "Loss": ("overview", "curves"),
    "Evaluation": ("curves",),
    "Figures": ("curves",),
    "Throughput": ("curves",),
    "Planned and measured": ("plan",),
    "Memory": ("plan",),
    "Where the time went": ("time",),
    "Profile": ("time",),
    "Checkpoints": ("checkpoints",),
}
"""Title of a section of the report -> tabs that show it; the overview shows all others."""
_EMPTY: Mapping[Tab, str] = {
    "curves": "The run has recorded no step yet.",
    "plan": "The run has no plan, or too few steps to hold against one.",
    "time": "The run has not held any node yet.",
    "events": "The run has recorded no event yet.",
    "logs": "No log of the run is on the server's machine.",
    "checkpoints": "The run has saved no checkpoint yet.",
}
MORE_METRICS: Mapping[str, tuple[str, str]] = {
    "grad_norm": ("Gradient norm", "Norm of the gradient before clipping, over optimizer steps."),
    "lr": ("Learning rate", "Learning rate of each optimizer step."),
    "step_s": ("Step time", "Seconds of each optimizer step, over optimizer steps."),
    "memory_peak_bytes": ("Peak memory", "Bytes at the peak of the fullest rank, over optimizer steps."),
}
"""Metrics that a report has no section for -> title and text."""
_MOST_EVENTS = 500


@dataclass(frozen=True, slots=True)
class LogLink:
    """A log of a run, and the page that shows it."""

    name: str
    href: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that was written completely."""

    step: int
    at: float
    """Seconds since the epoch."""
    size_bytes: int | None
    stall_s: float | None
    """Time for which it held up the step."""


@dataclass(frozen=True, slots=True)
class RunPage:
    """What the tabs of a run show."""

    name: str
    """The run in addresses of the API."""
    report: Report
    events: Sequence[Event] = ()
    job: Sequence[Section] = ()
    logs: Sequence[LogLink] = ()
    checkpoints: Sequence[SavedCheckpoint] = ()
    metrics: Mapping[str, Sequence[tuple[float, float]]] | None = None
    """Step and value of `MORE_METRICS`, thin enough to draw."""

    def document(self, tab: Tab) -> Document:
        """One tab as a document; what the run has not recorded yet is said in a sentence."""
        whole = build_document(self.report)
        logs: list[list[Cell]] = [[Styled(log.name, href=log.href), format_bytes(log.num_bytes)] for log in self.logs]
        sections = [section for section in whole.sections if tab in _SECTIONS.get(section.title, ("overview",))]
        sections = [*map(self._interactive, sections)] if tab == "curves" else sections
        more: Mapping[Tab, Sequence[Section]] = {
            "overview": [Section("Job", section.blocks) for section in self.job],
            "curves": [*self._more_curves()],
            "events": [Section("", _story(self.events))],
            "logs": [Section("", [Table([*left("log"), *right("size")], logs)] if logs else [])],
            "checkpoints": [Section("", self._checkpoint_blocks())],
        }
        sections = [*sections, *more.get(tab, ())]
        if not any(section.blocks for section in sections):
            sections = [Section("", [Text(_EMPTY[tab], "dim")])]
        return replace(whole, kind=TABS[tab].lower(), sections=sections)

    def _interactive(self, section: Section) -> Section:
        blocks: list[Block] = [
            LiveChart(block, [self.name], block.metric) if isinstance(block, Chart) and block.metric else block
            for block in section.blocks
        ]
        return replace(section, blocks=blocks)

    def _more_curves(self) -> Iterator[Section]:
        for metric, (title, text) in MORE_METRICS.items():
            if points := (self.metrics or {}).get(metric):
                chart = metric_chart(title, [("line", self.name, points)])
                yield Section(title, [Text(text, "dim"), LiveChart(chart, [self.name], metric)])

    def _checkpoint_blocks(self) -> list[Block]:
        rows = [
            [
                f"{saved.step:,}",
                date_text(saved.at),
                "" if saved.size_bytes is None else format_bytes(saved.size_bytes),
                "" if saved.stall_s is None else format_duration(saved.stall_s),
            ]
            for saved in reversed(self.checkpoints)
        ]
        columns = [*right("step"), *left("written (UTC)"), *right("size", "held up the step for")]
        return [Table(columns, rows)] if rows else []


def date_text(at: float) -> str:
    """A time as `2026-11-30 17:04:05`, in UTC, which a heading says."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def _story(events: Sequence[Event]) -> list[Block]:
    """The newest events first, as sentences."""
    lines = []
    for event in events:
        with suppress(KeyError, TypeError, ValueError):  # of another version
            if text := _sentence(event) or event_line(event):
                lines.append((float(event["t"]), text))
    if not lines:
        return []
    began = lines[0][0]
    rows = [[date_text(at), f"+{format_duration(at - began)}", text] for at, text in reversed(lines[-_MOST_EVENTS:])]
    caption = f"The last {_MOST_EVENTS} of {len(lines):,}." if len(lines) > _MOST_EVENTS else ""
    return [Table([*left("time (UTC)", "since the start"), *left("event", wrap=True)], rows, caption=caption)]


def _sentence(event: Event) -> str | None:
    """An event that a terminal leaves out, because it shows it otherwise."""
    match event["kind"]:
        case "submitted":
            return f"submitted: {event['nodes']} x {event['processes_per_node']} ranks"
        case "state":
            return ": ".join(filter(None, (event["state"], event.get("message"))))
        case "attempt" if not event.get("resumed_from_step"):
            return f"attempt {event['attempt']}: {event['world_size']} ranks have met"
        case "finished" | "stopped":
            return f"{event['kind']} after step {event['step']:,}"
        case "stop_requested":
            return f"stop requested: {event['reason']}"
    return None


def log_document(run: str, log: str, lines: Sequence[str], *, text: str, level: str, is_cut: bool) -> Document:
    """The last lines of a log, those with a text or from a level on if these were wanted."""
    conditions = [f"with `{text}`"] if text else []
    conditions += [f"of level {level} or above"] if level else []
    found = f"{len(lines):,} lines {' and '.join(conditions)}" if conditions else f"The last {len(lines):,} lines"
    blocks: list[Block] = [Text(f"{found}{'; earlier ones are left out' if is_cut else ''}.", "dim")]
    if lines:
        blocks.append(Preformatted("\n".join(lines)))
    return Document(f"{run}: {log}", "log", [Section("", blocks)])
