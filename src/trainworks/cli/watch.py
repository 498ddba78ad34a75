"""Start a run and watch it to its end; Ctrl-C stops it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console

from trainworks.backends.local.attached import AttachedBackend, stop_supervisor
from trainworks.cli.following import following
from trainworks.cli.tail import RankLogs
from trainworks.cli.views import LineView, LiveView
from trainworks.host.clock import SystemClock
from trainworks.jobs.job_spec import spec_of_run
from trainworks.jobs.state import JobState
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.report.run_progress import RunFollower

__all__ = ["submit_and_watch", "watch"]

_LOOK_S = 0.1


def submit_and_watch(
    run_dir: RunDir, resolved: ResolvedRun, console: Console, *, since: float, lock: int | None = None
) -> JobState:
    """Start a run that ends with this process, and show it until it has a final state.

    Ctrl-C asks it to stop; a second one ends it at once. One that comes while the run is being submitted is kept until
    there is a supervisor to tell.

    Args:
        run_dir: of the run.
        resolved: the run; the output of a command is shown as it comes.
        console: for progress and events.
        since: when it was launched; what an earlier launch left is not shown.
        lock: the run's, where the caller has taken it.
    """
    backend = AttachedBackend(resolved, lock=lock)

    def start() -> None:
        backend.submit(backend.render(spec_of_run(resolved), run_dir), run_dir)

    def stop(reason: str) -> bool:
        return stop_supervisor(run_dir, reason)

    return watch(run_dir, resolved, console, since=since, start=start, stop=stop)


def watch(
    run_dir: RunDir,
    resolved: ResolvedRun,
    console: Console,
    *,
    since: float,
    start: Callable[[], None],
    stop: Callable[[str], bool],
) -> JobState:
    """Start a run, and show it until it has a final state; Ctrl-C as in `submit_and_watch`.

    Args:
        run_dir: of the run.
        resolved: the run.
        console: for progress and events.
        since: what an earlier launch left is not shown.
        start: starts it.
        stop: asks it to stop, for a reason; False as long as there is nobody to ask.
    """
    num_steps = resolved.plan.num_steps if resolved.plan else None
    follower = RunFollower(run_dir)
    output = RankLogs(run_dir) if num_steps is None else None
    live = console.is_terminal and num_steps is not None
    unit = resolved.run_file.workload.unit if resolved.run_file.workload else "tokens"
    view = LiveView(console, run_dir.run_id, num_steps, unit) if live else LineView(console, num_steps, unit)
    with _StopOnInterrupt(stop, console) as interrupts, view:
        start()
        ask_its_backend = following(run_dir)
        while True:
            interrupts.pass_on()
            ask_its_backend()
            snapshot = follower.look(since=since)
            if output is not None:
                output.print_new(everything=snapshot.state.is_final)
            view.show(snapshot, time.time())
            if snapshot.state.is_final:
                return snapshot.state
            SystemClock().sleep(_LOOK_S)


class _StopOnInterrupt:
    """While active, Ctrl-C, a closed terminal and SIGTERM stop the run instead of leaving it alone."""

    _SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, stop: Callable[[str], bool], console: Console) -> None:
        self._stop = stop
        self._console = console
        self._asked = 0
        self._reasons: list[str] = []

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._ask) for number in self._SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_on(self) -> None:
        """Tell the supervisor what it has not been told yet."""
        while self._reasons and self._stop(self._reasons[0]):
            del self._reasons[0]

    def _ask(self, number: int, frame: object) -> None:
        self._reasons.append(signal.Signals(number).name)
        self._asked += 1
        words = "stopping; once more to end at once" if self._asked == 1 else "ending at once"
        self._console.print(words, style="yellow")
