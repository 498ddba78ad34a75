"""Watch a run in the terminal: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import signal
import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from trainworks.host.clock import SystemClock
from trainworks.job.state import JobState
from trainworks.observe import progress as observed
from trainworks.record.events import Event
from trainworks.record.metrics import MetricsRow
from trainworks.record.run_dir import RunDir
from trainworks.scheduler.local import LocalScheduler
from trainworks.units import format_bytes, format_count, format_duration

__all__ = ["watch"]

_LOOK_S = 0.1
_LINE_S = 5.0
_PARTS = (
    ("compute", "compute_s"),
    ("communication", "communication_s"),
    ("optimizer", "optimizer_s"),
    ("data", "data_s"),
    ("checkpoint", "checkpoint_s"),
    ("other", "other_s"),
)


def watch(run_dir: RunDir, console: Console, *, num_steps: int | None) -> JobState:
    """Show a run until it has a final state. Ctrl-C asks it to stop; a second one ends it at once."""
    follower = observed.RunFollower(run_dir)
    view = _LiveView(console, run_dir.run_id, num_steps) if console.is_terminal else _LineView(console, num_steps)
    with _StopOnInterrupt(run_dir, console), view:
        while True:
            snapshot = follower.look()
            view.show(snapshot, time.time())
            if snapshot.state.is_final:
                return snapshot.state
            SystemClock().sleep(_LOOK_S)


class _StopOnInterrupt:
    """While active, Ctrl-C, a closed terminal and SIGTERM stop the run instead of leaving it alone."""

    _SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, run_dir: RunDir, console: Console) -> None:
        self._run_dir = run_dir
        self._console = console
        self._asked = 0

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._ask) for number in self._SIGNALS}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: object) -> None:
        self._asked += 1
        LocalScheduler().stop(self._run_dir, reason=signal.Signals(number).name)
        words = "stopping; once more to end at once" if self._asked == 1 else "ending at once"
        self._console.print(words, style="yellow")


class _LineView:
    """One line now and then, for log files."""

    def __init__(self, console: Console, num_steps: int | None) -> None:
        self._console = console
        self._num_steps = num_steps
        self._shown_at = 0.0
        self._shown_step = 0

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, snapshot: observed.Progress, now: float) -> None:
        for event in snapshot.new_events:
            if (line := _event_line(event)) is not None:
                self._console.print(line, highlight=False, markup=False)
        row = snapshot.latest
        due = now - self._shown_at >= _LINE_S or snapshot.state.is_final
        if row is None or row["step"] == self._shown_step or not due:
            return
        self._shown_at, self._shown_step = now, row["step"]
        text = " | ".join(_figures(snapshot, row, self._num_steps, now).values())
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class _LiveView:
    """A progress bar and a table that stay in place; events scroll by above them."""

    def __init__(self, console: Console, run_id: str, num_steps: int | None) -> None:
        self._console = console
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

    def __enter__(self) -> None:
        self._live.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, snapshot: observed.Progress, now: float) -> None:
        for event in snapshot.new_events:
            if (line := _event_line(event)) is not None:
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
        for name, text in _figures(snapshot, snapshot.latest, self._num_steps, now).items():
            table.add_row(Text(name, style="bold"), text)
        return Group(self._bar, table)


class _Done(ProgressColumn):
    def render(self, task: Task) -> Text:
        total = f"/{task.total:,.0f}" if task.total else ""
        return Text(f"{task.completed:,.0f}{total}")


def _figures(snapshot: observed.Progress, row: MetricsRow, num_steps: int | None, now: float) -> dict[str, str]:
    """What both views show, by name."""
    of = f"/{num_steps:,}" if num_steps else ""
    eta = snapshot.eta_s(num_steps) if num_steps else None
    figures = {
        "step": f"step {row['step']:,}{of}",
        "loss": f"loss {row['loss']:.4f}",
        "throughput": f"{format_count(snapshot.tokens_per_s or 0)} tokens/s",
        "step time": f"step {format_duration(snapshot.step_s or 0)} = {_parts(snapshot.recent)}",
        "memory": f"memory {format_bytes(snapshot.memory_peak_bytes or 0)}",
        "checkpoint": _checkpoint_age(snapshot, now),
    }
    if eta is not None:
        figures["eta"] = f"ETA {format_duration(eta)}"
    return figures


def _parts(rows: list[MetricsRow]) -> str:
    means = [(name, sum(row[key] for row in rows) / len(rows)) for name, key in _PARTS]  # type: ignore[literal-required]
    return " + ".join(f"{name} {format_duration(mean)}" for name, mean in means if mean >= 5e-5)


def _checkpoint_age(snapshot: observed.Progress, now: float) -> str:
    if snapshot.checkpoint_at is None:
        return "no checkpoint yet"
    age = format_duration(max(0.0, now - snapshot.checkpoint_at))
    return f"checkpoint of step {snapshot.checkpoint_step:,}, {age} ago"


def _event_line(event: Event) -> str | None:
    """What a person wants to hear of, in one line; None for the rest."""
    match event["kind"]:
        case "data_ready" if not event["cached"]:
            return f"tokenized {format_count(event['num_tokens'])} tokens in {format_duration(event['seconds'])}"
        case "attempt" if event["resumed_from_step"]:
            return f"attempt {event['attempt']}: resumed from step {event['resumed_from_step']:,}"
        case "failure" if event.get("cause") != "peer_lost":
            return f"failure of rank {event.get('rank')} on node {event.get('node')}: {event.get('message')}"
        case "agent_lost":
            return f"node {event['node']} lost (code {event['exit_code']})"
        case "checkpoint_failed":
            return f"checkpoint of step {event['step']:,} failed: {event['message']}"
        case _:
            return None
