"""Live runs, nodes and accelerators, as often as the caller looks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from trainworks.api.jobs import nodes
from trainworks.api.run_handle import Run, runs
from trainworks.errors import EnvironmentProblem
from trainworks.host.clock import SystemClock
from trainworks.host.machine_load import MachineLoad, machine_load
from trainworks.record.resolved import Plan
from trainworks.report.runs.overview import LiveRun, Overview
from trainworks.report.runs.run_progress import RunFollower

__all__ = ["LiveRuns", "MachineLoad", "Overview", "machine_load", "top"]


def top(folder: Path | str = "runs") -> Overview:
    """The runs of a folder that wait or run, the nodes of this machine's queue, and the machine itself, as of now.

    Args:
        folder: folder of all runs.

    >>> import tempfile
    >>> top(tempfile.mkdtemp()).runs
    ()
    """
    return LiveRuns(folder).look()


class LiveRuns:
    """Follows the runs of a folder; each look reads what their records have gained.

    Args:
        folder: folder of all runs.
    """

    def __init__(self, folder: Path | str = "runs") -> None:
        self._folder = folder
        self._followers: dict[str, RunFollower] = {}
        self._over: dict[str, int | None] = {}
        """Ended runs -> time of their status; a resume changes it."""

    def look(self) -> Overview:
        """What runs now."""
        live = [self._line(run) for run in runs(self._folder)]
        return Overview(
            at=time.time(),
            runs=tuple(line for line in live if line is not None),
            nodes=tuple(nodes()),
            machine=machine_load(),
        )

    def follow(self, every_s: float) -> Iterator[Overview]:
        """A look every so many seconds, without end."""
        while True:
            yield self.look()
            SystemClock().sleep(every_s)

    def _line(self, run: Run) -> LiveRun | None:
        """One run; None while it has ended."""
        changed_ns = _changed_ns(run)
        if run.id in self._over and self._over[run.id] == changed_ns:
            return None
        if run.state.is_final:
            self._over[run.id] = changed_ns
            self._followers.pop(run.id, None)
            return None
        follower = self._followers.setdefault(run.id, RunFollower(run.run_dir))
        progress, plan = follower.look(), _plan(run)
        row, state = progress.latest, str(progress.state)
        return LiveRun(
            run=run.id,
            state=state,
            step=row["step"] if row else None,
            num_steps=plan.num_steps if plan else None,
            loss=row["loss"] if row else None,
            step_s=progress.step_s,
            planned_step_s=plan.step_time.total_s if plan else None,
            tokens_per_s=progress.tokens_per_s,
            eta_s=progress.eta_s(plan.num_steps) if plan else None,
            last_step_age_s=max(0.0, time.time() - row["t"]) if row else None,
            message=progress.status.message,
        )


def _changed_ns(run: Run) -> int | None:
    try:
        return run.run_dir.status_file.stat().st_mtime_ns
    except OSError:  # never launched
        return None


def _plan(run: Run) -> Plan | None:
    try:
        return run.resolved.plan
    except EnvironmentProblem:  # being created, or written by another version
        return None
