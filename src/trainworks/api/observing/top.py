"""Live runs, nodes and accelerators, as often as the caller looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from trainworks.api.nodes import backend_on
from trainworks.api.observing.watched_runs import RunWatcher, WatchedRun
from trainworks.errors import EnvironmentProblem
from trainworks.host.clock import SystemClock
from trainworks.host.machine_load import MachineLoad, machine_load
from trainworks.record.resolved import Plan
from trainworks.report.overview import LiveRun, Overview

__all__ = ["LiveRun", "LiveRuns", "MachineLoad", "Overview", "machine_load", "top"]

_ALL = 1_000_000


def top(folder: Path | str = "runs") -> Overview:
    """The runs of a folder that wait or run, the nodes of this machine's queue, and the machine itself, as of now.

    >>> import tempfile
    >>> top(tempfile.mkdtemp()).runs
    ()
    """
    return LiveRuns(folder).look()


class LiveRuns:
    """Follows the runs of a folder; each look reads what their records have gained.

    `submitted`, `with_waiting` and `most_runs` are those of `RunWatcher`: runs elsewhere, waiting ones, and a limit.
    """

    def __init__(
        self,
        folder: Path | str = "runs",
        submitted: Callable[[], Iterable[str]] = tuple,
        *,
        with_waiting: bool = True,
        most_runs: int = _ALL,
    ) -> None:
        self._watcher = RunWatcher(
            Path(folder), submitted, SystemClock(), with_waiting=with_waiting, keep_s=0.0, most_runs=most_runs
        )

    def runs(self) -> tuple[LiveRun, ...]:
        """The live runs, the one that began last at the end."""
        live = [_line(run) for run in reversed(self._watcher.watched())]
        return tuple(line for line in live if line is not None)

    def look(self) -> Overview:
        """What runs now."""
        return Overview(
            at=time.time(),
            runs=self.runs(),
            nodes=tuple(backend_on(None).nodes()),
            machine=machine_load(),
        )

    def follow(self, every_s: float) -> Iterator[Overview]:
        """A look every so many seconds, without end."""
        while True:
            yield self.look()
            SystemClock().sleep(every_s)


def _line(run: WatchedRun) -> LiveRun | None:
    """One run; None while it has ended."""
    progress, plan = run.look(), _plan(run)
    if progress.state.is_final:
        return None
    row = progress.latest
    return LiveRun(
        run=run.run_dir.run_id,
        state=str(progress.state),
        step=row["step"] if row else None,
        num_steps=plan.num_steps if plan else None,
        loss=row.get("loss") if row else None,
        step_s=progress.step_s,
        planned_step_s=plan.step_time.total_s if plan else None,
        anchored_step_s=progress.anchored.step_s if progress.anchored else None,
        tokens_per_s=progress.tokens_per_s,
        eta_s=progress.eta_s(plan.num_steps) if plan else None,
        last_step_age_s=max(0.0, time.time() - row["t"]) if row else None,
        message=progress.status.message,
    )


def _plan(run: WatchedRun) -> Plan | None:
    try:
        return run.run_dir.read_resolved().plan
    except EnvironmentProblem:  # being created, or written by another version
        return None
