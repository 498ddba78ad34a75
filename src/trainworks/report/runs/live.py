"""View of a running run: a table that stays in place on a terminal, plain lines anywhere else."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from trainworks.record.events import Event
from trainworks.record.faults import describe_fault
from trainworks.record.manifest import describe_damage
from trainworks.record.metrics import STEP_PARTS, EvaluationResult, MetricsRow
from trainworks.recover.failures import is_consequence
from trainworks.report.data import chat_line, tokenizing_line
from trainworks.report.runs import run_progress as observed
from trainworks.units import format_bytes, format_count, format_duration

_LINE_S = 5.0


class LineView:
    """One line now and then, for log files."""

    def __init__(self, console: Console, num_steps: int | None, unit: str = "tokens") -> None:
        self._console = console
        self._unit = unit
        self._num_steps = num_steps
        self._shown_at = 0.0
        self._shown_step = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, snapshot: observed.Progress, now: float) -> None:
        """Print what is new, at most one line of figures every five seconds."""
        for event in snapshot.new_events:
            if (line := event_line(event)) is not None:
                self._console.print(line, highlight=False, markup=False)
        row = snapshot.latest
        due = now - self._shown_at >= _LINE_S or snapshot.state.is_final
        if due and 0 < snapshot.data_done_bytes < snapshot.data_total_bytes:
            self._shown_at = now
            done, total = map(format_bytes, (snapshot.data_done_bytes, snapshot.data_total_bytes))
            self._console.print(f"tokenized {done} of {total}", highlight=False, markup=False)
        if row is None or row["step"] == self._shown_step or not due:
            return
        self._shown_at, self._shown_step = now, row["step"]
        figures = _figures(snapshot, row, self._num_steps, self._unit, now)
        text = " | ".join(f"{name} {value}" for name, value in figures.items())
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class LiveView:
    """A progress bar and a table that stay in place; events scroll by above them."""

    def __init__(self, console: Console, run_id: str, num_steps: int | None, unit: str = "tokens") -> None:
        self._console = console
        self._unit = unit
        self._num_steps = num_steps
        self._bar = Progress(
            TextColumn(f"[bold]{run_id}"),
            TextColumn("{task.fields[state]}"),
            BarColumn(bar_width=None),
            _Done(),
            console=console,
        )
        self._task = self._bar.add_task("run", total=num_steps, state="")
        self._live = Live(console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, snapshot: observed.Progress, now: float) -> None:
        """Print new events above, and bring the table up to date."""
        for event in snapshot.new_events:
            if (line := event_line(event)) is not None:
                self._console.print(line, highlight=False, markup=False)
        self._live.update(self._table(snapshot, now))

    def _table(self, snapshot: observed.Progress, now: float) -> RenderableType:
        if snapshot.data_total_bytes:
            share = snapshot.data_done_bytes / snapshot.data_total_bytes
            self._bar.update(self._task, state="tokenizing", total=100, completed=round(100 * share))
            return self._bar
        step = snapshot.latest["step"] if snapshot.latest else 0
        self._bar.update(self._task, state=snapshot.state.lower(), total=self._num_steps, completed=step)
        if snapshot.latest is None:
            return self._bar
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, text in _figures(snapshot, snapshot.latest, self._num_steps, self._unit, now).items():
            table.add_row(Text(name, style="bold"), text)
        return Group(self._bar, table)


class _Done(ProgressColumn):
    def render(self, task: Task) -> Text:
        total = f"/{task.total:,.0f}" if task.total else ""
        return Text(f"{task.completed:,.0f}{total}")


def _figures(
    snapshot: observed.Progress, row: MetricsRow, num_steps: int | None, unit: str, now: float
) -> dict[str, str]:
    """What both views show, by name."""
    of = f"/{num_steps:,}" if num_steps else ""
    eta = snapshot.eta_s(num_steps) if num_steps else None
    figures = {
        "step": f"{row['step']:,}{of}",
        "loss": f"{row['loss']:.4f}",
        "throughput": f"{format_count(snapshot.tokens_per_s or 0)} {unit}/s",
        "step time": f"{format_duration(snapshot.step_s or 0)} = {_parts(snapshot.recent)}",
        "memory": format_bytes(snapshot.memory_peak_bytes or 0),
        "checkpoint": _checkpoint_age(snapshot, now),
    }
    if snapshot.evaluation is not None:
        figures["held-out"] = _held_out(*snapshot.evaluation)
    if eta is not None:
        figures["ETA"] = format_duration(eta)
    return figures


def _held_out(step: int, found: EvaluationResult) -> str:
    accuracy = f", accuracy {found['accuracy']:.2%}" if "accuracy" in found else ""
    return f"loss {found['loss']:.4f}{accuracy} at step {step:,}"


def _parts(rows: list[MetricsRow]) -> str:
    means = [(name, sum(row.get(name, 0.0) for row in rows) / len(rows)) for name in STEP_PARTS]  # type: ignore[misc]
    return " + ".join(f"{name.removesuffix('_s')} {format_duration(mean)}" for name, mean in means if mean >= 5e-5)


def _checkpoint_age(snapshot: observed.Progress, now: float) -> str:
    if snapshot.checkpoint_at is None:
        return "none yet"
    age = format_duration(max(0.0, now - snapshot.checkpoint_at))
    return f"of step {snapshot.checkpoint_step:,}, {age} ago"


def event_line(event: Event) -> str | None:
    """An event of the run in one line; None for those that a reader need not know."""
    line = None
    match event["kind"]:
        case "data_progress" | "data_ready":
            line = _data_line(event)
        case "attempt" if event["resumed_from_step"]:
            line = f"attempt {event['attempt']}: resumed from step {event['resumed_from_step']:,}"
        case "failure" | "restart_refused":
            line = _failure_line(event)
        case "skipped" | "rollback":
            line = describe_fault(event)
        case "profile" | "profile_refused":
            line = _profile_line(event)
        case "idle" | "busy":
            line = _idle_line(event)
        case "checkpoint_damaged" | "checkpoint_failed":
            line = _checkpoint_line(event)
    return line


def _data_line(event: Event) -> str | None:
    if event["kind"] == "data_progress":
        return None if event["done_bytes"] else tokenizing_line(event["total_bytes"])
    if event["cached"]:
        return None
    line = f"tokenized {format_count(event['num_tokens'])} tokens in {format_duration(event['seconds'])}"
    line += f": {chat_line(event['chats'])}" if event.get("chats") else ""
    return f"{line}; chat template {event['template']}" if event.get("template") else line


def _failure_line(event: Event) -> str | None:
    if event["kind"] == "restart_refused":
        return f"not restarted: {event['message']}"
    if is_consequence(event):
        return None
    rank = f"rank {event['rank']} on " if event.get("rank") is not None else ""
    return f"{rank}node {event.get('node')}: {event.get('message')}"


def _checkpoint_line(event: Event) -> str:
    if event["kind"] == "checkpoint_failed":
        return f"checkpoint of step {event['step']:,} failed: {event['message']}"
    return f"{describe_damage(event)}\n  --> {event['folder']}"


def _profile_line(event: Event) -> str:
    steps = f"steps {event['first_step']:,} to {event['last_step']:,}"
    if event["kind"] == "profile":
        return f"profiled {steps}: {event['folder']}"
    return f"{steps} were not profiled: {event['message']}"


def _idle_line(event: Event) -> str:
    if event["kind"] == "busy":
        return f"busy again after {format_duration(event['idle_for_s'])}"
    share = event["accelerator"]
    used = [f"{share:.0%} of the accelerators"] if share is not None else []
    used.append(f"{event['cpu_cores']:.2g} cores")
    return f"idle for {format_duration(event['t'] - event['since'])}: it uses {' and '.join(used)}"
