"""A run as a live page: its report, what happened in the order of time, and its logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from trainworks.record.events import Event
from trainworks.report.rendering.document import Block, Cell, Document, Preformatted, Section, Styled, Table, Text, left
from trainworks.report.runs.live import event_line
from trainworks.report.runs.run_report import document as report_document
from trainworks.report.runs.summary import Report
from trainworks.units import format_duration

_MOST_EVENTS = 60


def document(
    report: Report,
    events: Sequence[Event],
    *,
    job: Sequence[Section] = (),
    logs: Sequence[tuple[str, str]],
) -> Document:
    """The report with more sections.

    Args:
        report: of the run.
        events: of the run, in order.
        job: sections about the job of a submitted run.
        logs: name and address of every log.
    """
    whole = report_document(report)
    links: list[Cell] = []
    for name, address in logs:
        links += [Styled(name, href=address), "  "]
    return replace(
        whole,
        sections=[
            *whole.sections,
            *(Section("Job", section.blocks) for section in job),
            Section("Events", _story(events)),
            Section("Logs", [Text(links)] if links else []),
        ],
    )


def _story(events: Sequence[Event]) -> list[Block]:
    """The newest events first, as a reader wants to hear of them."""
    told = [(float(event["t"]), text) for event in events if (text := _told(event))]
    if not told:
        return []
    began = told[0][0]
    rows = [
        [f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}", f"+{format_duration(at - began)}", text]
        for at, text in reversed(told[-_MOST_EVENTS:])
    ]
    caption = f"The last {_MOST_EVENTS} of {len(told):,}." if len(told) > _MOST_EVENTS else ""
    return [Table([*left("time (UTC)", "since the start"), *left("event", wrap=True)], rows, caption=caption)]


def _told(event: Event) -> str | None:
    tell = _TOLD.get(str(event.get("kind")), event_line)
    try:
        return tell(event) or event_line(event)
    except (KeyError, TypeError, ValueError):  # of another version
        return None


def _state(event: Event) -> str:
    return ": ".join(str(event[key]) for key in ("state", "message") if event.get(key))


def _attempt(event: Event) -> str | None:
    return None if event["resumed_from_step"] else f"attempt {event['attempt']}: {event['world_size']} ranks have met"


def _end(event: Event) -> str:
    return f"{event['kind']} after step {event['step']:,}"


_TOLD: Mapping[str, Callable[[Event], str | None]] = {
    "submitted": lambda event: f"submitted: {event['nodes']} x {event['processes_per_node']} ranks",
    "state": _state,
    "attempt": _attempt,
    "finished": _end,
    "stopped": _end,
    "stop_requested": lambda event: f"stop requested: {event['reason']}",
}
"""Kinds of events that a terminal leaves out, because it shows them otherwise."""


def log_document(run: str, log: str, lines: Sequence[str], *, text: str, level: str, is_cut: bool) -> Document:
    """The last lines of a log, those with a text or from a level on if these were wanted."""
    conditions = [f"with `{text}`"] if text else []
    conditions += [f"of level {level} or above"] if level else []
    found = f"{len(lines):,} lines {' and '.join(conditions)}" if conditions else f"The last {len(lines):,} lines"
    blocks: list[Block] = [Text(f"{found}{'; earlier ones are left out' if is_cut else ''}.", "dim")]
    if lines:
        blocks.append(Preformatted("\n".join(lines)))
    return Document(f"{run}: {log}", "log", [Section("", blocks)])
