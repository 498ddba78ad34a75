"""Watch a run to its end; Ctrl-C stops it."""

from __future__ import annotations

import signal
import time
from types import TracebackType

from rich.console import Console

from trainworks.cli.tail import RankLogs
from trainworks.cli.views import LineView, LiveView
from trainworks.host.clock import SystemClock
from trainworks.job.state import JobState
from trainworks.observe.progress import RunFollower
from trainworks.record.run_dir import RunDir
from trainworks.scheduler.local import LocalScheduler

__all__ = ["watch"]

_LOOK_S = 0.1


def watch(run_dir: RunDir, console: Console, *, num_steps: int | None, since: float) -> JobState:
    """Show a run until it has a final state. Ctrl-C asks it to stop; a second one ends it at once.

    Args:
        run_dir: of the run.
        console: for progress and events.
        num_steps: of a workload; None for a command, whose own output is shown instead.
        since: when it was launched; what an earlier launch left is not shown.
    """
    follower = RunFollower(run_dir)
    output = RankLogs(run_dir) if num_steps is None else None
    live = console.is_terminal and num_steps is not None
    view = LiveView(console, run_dir.run_id, num_steps) if live else LineView(console, num_steps)
    with _StopOnInterrupt(run_dir, console), view:
        while True:
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
