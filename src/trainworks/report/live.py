"""View of a running run: a table that stays in place on a terminal, and plain lines anywhere else."""

from __future__ import annotations

import io
import sys
from collections import deque
from collections.abc import Callable
from importlib import import_module
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table as RichTable
from rich.text import Text as RichText

from trainworks.measure.worker_tasks import tokenizing_line
from trainworks.record.events.job import BusyEvent, FailureEvent, IdleEvent, RestartRefusedEvent
from trainworks.record.events.log import Event
from trainworks.record.events.training import DataProgressEvent, DataReadyEvent, ProfileEvent, ProfileRefusedEvent
from trainworks.record.faults import describe_fault
from trainworks.record.manifest import describe_damage
from trainworks.record.metrics import STEP_PARTS, MetricsRow, named_figures
from trainworks.record.resolved import ResolvedRun
from trainworks.recover.failures import is_consequence
from trainworks.report.data import chat_line
from trainworks.report.rendering.console import SafeConsole
from trainworks.report.rendering.printable import printable
from trainworks.report.runs import run_progress as observed
from trainworks.units import format_bytes, format_count, format_duration

_LINE_S, _CELL_S = 5.0, 0.5
_MOST_EVENTS = 5
"""Events in a cell."""


class LineView:
    """One line now and then, for log files."""

    def __init__(self, console: Console, num_steps: int | None, unit: str = "tokens") -> None:
        self._console, self._num_steps, self._unit = console, num_steps, unit
        self._shown_at = 0.0
        self._shown_step = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def _print_new(self, snapshot: observed.Progress) -> None:
        for event in snapshot.new_events:
            if (line := event_line(event)) is not None:
                self._console.print(line, highlight=False, markup=False)

    def show(self, snapshot: observed.Progress, now: float) -> None:
        """Print what is new, at most one line of figures every five seconds."""
        self._print_new(snapshot)
        row = snapshot.latest
        due = now - self._shown_at >= _LINE_S or snapshot.state.is_final
        if due and 0 < snapshot.data_done_bytes < snapshot.data_total_bytes:
            self._shown_at = now
            done, total = map(format_bytes, (snapshot.data_done_bytes, snapshot.data_total_bytes))
            self._console.print(f"tokenized {done} of {total}", highlight=False, markup=False)
        if row is None or row["step"] == self._shown_step or not due or snapshot.is_printed:
            return
        self._shown_at, self._shown_step = now, row["step"]
        figures = _figures(snapshot, row, self._num_steps, self._unit, now)
        text = " | ".join(f"{name} {value}" for name, value in figures.items())
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class LiveView(LineView):
    """A progress bar and a table that stay in place; events scroll by above them."""

    def __init__(self, console: Console, run_id: str, num_steps: int | None, unit: str = "tokens") -> None:
        super().__init__(console, num_steps, unit)
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
        self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._live.stop()

    def show(self, snapshot: observed.Progress, now: float) -> None:
        """Print new events above, and bring the table up to date."""
        self._print_new(snapshot)
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
        table = RichTable(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, text in _figures(snapshot, snapshot.latest, self._num_steps, self._unit, now).items():
            table.add_row(RichText(name, style="bold"), text)
        return Group(self._bar, table)


class CellView(LineView):
    """The figures and the last events at one place in the output of a cell, which stores the last of them alone."""

    def __init__(self, display: Callable[..., Any], run_id: str, num_steps: int | None, unit: str = "tokens") -> None:
        super().__init__(SafeConsole(file=io.StringIO()), num_steps, unit)
        self._display, self._run_id = display, run_id
        self._events: deque[str] = deque(maxlen=_MOST_EVENTS)

    def __enter__(self) -> Self:
        self._place = self._display(_plain(self._run_id), raw=True, display_id=True)
        return self

    def show(self, snapshot: observed.Progress, now: float) -> None:
        """Replace what was shown, at most twice a second."""
        self._events.extend(line for event in snapshot.new_events if (line := event_line(event)) is not None)
        if now - self._shown_at < _CELL_S and not snapshot.state.is_final:
            return
        self._shown_at, row = now, snapshot.latest
        figures = {} if row is None else _figures(snapshot, row, self._num_steps, self._unit, now)
        facts = [f"{self._run_id} {snapshot.state}", *(f"{name} {value}" for name, value in figures.items())]
        self._place.update(_plain("\n".join([*self._events, " | ".join(facts)])), raw=True)


def view_of(resolved: ResolvedRun, console: Console) -> LineView:
    """The view of a run: in place in a notebook, or on a terminal where its steps are planned; else lines."""
    num_steps = resolved.plan.num_steps if resolved.plan and resolved.is_workload else None
    unit = resolved.run_file.workload.unit if resolved.run_file.workload else "tokens"
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None:
        return CellView(import_module("IPython.display").display, resolved.run_id, num_steps, unit)
    if console.is_terminal and num_steps is not None:
        return LiveView(console, resolved.run_id, num_steps, unit)
    return LineView(console, num_steps, unit)


def _plain(text: str) -> dict[str, str]:
    return {"text/plain": printable(text)}


class _Done(ProgressColumn):
    def render(self, task: Task) -> RichText:
        total = f"/{task.total:,.0f}" if task.total else ""
        return RichText(f"{task.completed:,.0f}{total}")


def _figures(
    snapshot: observed.Progress, row: MetricsRow, num_steps: int | None, unit: str, now: float
) -> dict[str, str]:
    """What both views show, by name."""
    of = f"/{num_steps:,}" if num_steps else ""
    eta = snapshot.eta_s(num_steps) if num_steps else None
    means = [(name, sum(each.get(name, 0.0) for each in snapshot.recent) / len(snapshot.recent)) for name in STEP_PARTS]  # type: ignore[misc]
    parts = [f"{name.removesuffix('_s')} {format_duration(mean)}" for name, mean in means if mean >= 5e-5]
    figures = {
        "step": f"{row['step']:,}{of}",
        **({"loss": f"{row['loss']:.4f}"} if "loss" in row else {}),
        **{name: f"{value:.4g}" for name, value in snapshot.figures.items()},
        **({"throughput": f"{format_count(rate)} {unit}/s"} if (rate := snapshot.tokens_per_s) is not None else {}),
        **({"step time": f"{format_duration(snapshot.step_s or 0)} = {' + '.join(parts)}"} if parts else {}),
        **({"memory": format_bytes(peak)} if (peak := snapshot.memory_peak_bytes) is not None else {}),
    }
    if parts or snapshot.checkpoint_at is not None:  # a script saves where only it knows
        figures["checkpoint"] = _checkpoint_age(snapshot, now)
    if snapshot.evaluation is not None:
        at_step, found = snapshot.evaluation
        parts = [f"loss {found['loss']:.4f}"] if "loss" in found else []
        parts += [f"accuracy {found['accuracy']:.2%}"] if "accuracy" in found else []
        parts += [f"{name} {value:.4g}" for name, value in named_figures(found).items()]
        figures["held-out"] = f"{', '.join(parts)} at step {at_step:,}"
    if eta is not None:
        anchored = snapshot.anchored_eta_s(num_steps) if num_steps else None
        by = "" if anchored is None else f", {format_duration(anchored)} by the anchored step"
        figures["ETA"] = f"{format_duration(eta)}{by}"
    return figures


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
        case "attempt" if event.get("resumed_from_step"):
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
            line = (
                f"checkpoint of step {event['step']:,} failed: {event['message']}"
                if event["kind"] == "checkpoint_failed"
                else f"{describe_damage(event)}\n  --> {event['folder']}"
            )
    return line


def _data_line(event: DataProgressEvent | DataReadyEvent) -> str | None:
    if event["kind"] == "data_progress":
        return None if event["done_bytes"] else tokenizing_line(event["total_bytes"])
    if event["cached"]:
        return None
    line = f"tokenized {format_count(event['num_tokens'])} tokens in {format_duration(event['seconds'])}"
    line += f": {chat_line(chats)}" if (chats := event.get("chats")) else ""
    return f"{line}; chat template {event['template']}" if event.get("template") else line


def _failure_line(event: FailureEvent | RestartRefusedEvent) -> str | None:
    if event["kind"] == "restart_refused":
        return f"not restarted: {event['message']}"
    if is_consequence(event):
        return None
    rank = f"rank {event['rank']} on " if event.get("rank") is not None else ""
    return f"{rank}node {event.get('node')}: {event.get('message')}"


def _profile_line(event: ProfileEvent | ProfileRefusedEvent) -> str:
    steps = f"steps {event['first_step']:,} to {event['last_step']:,}"
    if event["kind"] == "profile":
        return f"profiled {steps}: {event['folder']}"
    return f"{steps} were not profiled: {event['message']}"


def _idle_line(event: IdleEvent | BusyEvent) -> str:
    if event["kind"] == "busy":
        return f"busy again after {format_duration(event['idle_for_s'])}"
    share = event["accelerator"]
    used = [f"{share:.0%} of the accelerators"] if share is not None else []
    used.append(f"{event['cpu_cores']:.2g} cores")
    return f"idle for {format_duration(event['t'] - event['since'])}: it uses {' and '.join(used)}"
