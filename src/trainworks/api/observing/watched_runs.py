"""Runs that are live, and for a while those that have ended; of their records only what is new is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from trainworks.agent.current_state import current_state
from trainworks.errors import TrainworksError
from trainworks.host.clock import Clock
from trainworks.jobs.state import JobState
from trainworks.observe.metrics.runs import RunSnapshot
from trainworks.record.events.log import Event
from trainworks.record.history import read_history
from trainworks.record.ledger import Ledger, build_ledger, first_start_s
from trainworks.record.metric_columns import read_columns
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import run_dirs
from trainworks.record.status import RunStatus
from trainworks.record.usage import NodeUsage, others_share
from trainworks.report.runs.run_progress import Progress, RunFollower
from trainworks.report.runs.summary import energy_of

_LEDGER_EVERY_S = 30.0
_MOST_TIME_FOR_LEDGER = 1 / 400
"""Share of the time that reading whole records for time ledgers may take, over all runs."""


class WatchedRun:
    """One run. The ledger needs its whole record, and is made again less often."""

    def __init__(self, run_dir: RunDir, clock: Clock) -> None:
        self.run_dir = run_dir
        self._clock = clock
        self._follower = RunFollower(run_dir)
        self._attempt_at: float | None = None
        self._attempts = self._failed_checkpoints = 0
        self._failures: set[object] = set()
        self._checkpoint_bytes: int | None = None
        self._ledger: Ledger | None = None
        self._first_start_s = 0.0
        self._nodes: int | None = None
        """Number of nodes that the run is on now; None where its events do not say."""
        self._usage: dict[int, NodeUsage] = {}
        self._usage_before: dict[int, NodeUsage] = {}
        self._ledger_due = 0.0

    def look(self) -> Progress:
        """The run as it stands now."""
        progress = self._follower.look()
        for event in progress.new_events:
            self._take(event)
        return progress

    def facts(self, label: str, *, ledger_share: float = _MOST_TIME_FOR_LEDGER) -> RunSnapshot:
        """The run as metrics show it under a label. Reading its whole record may take `ledger_share` of the time.

        Raises:
            EnvironmentProblem: the resolved run is missing or was written by another format.
        """
        resolved = self.run_dir.read_resolved()
        progress = self.look()
        self._update_ledger(resolved.created_at, progress.state, ledger_share)
        ledger = self._ledger
        return RunSnapshot(
            run=label,
            state=progress.state,
            resolved=resolved,
            deadline_at=progress.deadline_at(resolved.run_file.goal),
            attempt_at=self._attempt_at,
            attempts=self._attempts,
            failures=len(self._failures),
            recent=tuple(progress.recent),
            step_s=progress.step_s,
            tokens_per_s=progress.tokens_per_s,
            eta_s=progress.eta_s(resolved.plan.num_steps) if resolved.plan else None,
            anchored=progress.anchored,
            slowest=progress.slowest,
            evaluation=progress.evaluation,
            figures=dict(progress.figures),
            memory_peak_bytes=progress.memory_peak_bytes,
            checkpoint_step=progress.checkpoint_step,
            checkpoint_at=progress.checkpoint_at,
            checkpoint_bytes=self._checkpoint_bytes,
            failed_checkpoints=self._failed_checkpoints,
            goodput=ledger.runtime_goodput if ledger else None,
            energy_j=energy_of(self.run_dir, resolved.processes),
            spent_s=ledger.by_category() if ledger else {},
            first_start_s=self._first_start_s,
            others_share=self._others(self._nodes or resolved.processes.nodes),
        )

    def _others(self, nodes: int) -> float | None:
        """Share of the cores of the busiest node that other programs used between the last two samples."""
        now = {node: usage for node in range(nodes) if (usage := self.run_dir.read_usage(node)) is not None}
        for node, usage in now.items():
            before = self._usage.get(node)
            self._usage[node] = usage
            if before is not None and before != usage:
                self._usage_before[node] = before
        return others_share(now, self._usage_before)

    def _take(self, event: Event) -> None:
        if event["kind"] == "submitted" or event["kind"] == "resized":
            self._nodes = event["nodes"]
        elif event["kind"] == "attempt":
            self._attempts += 1
            self._attempt_at = event["t"]
        elif event["kind"] == "failure":
            self._failures.add((self._attempts, event.get("rendezvous")))
        elif event["kind"] == "checkpoint":
            self._checkpoint_bytes = event.get("bytes")
        elif event["kind"] == "checkpoint_failed":
            self._failed_checkpoints += 1

    def _update_ledger(self, created_at: float, state: JobState, share: float) -> None:
        now = self._clock.now()
        if now < self._ledger_due:
            return
        start_s = time.perf_counter()
        metrics = read_columns(self.run_dir.metrics_file)
        history = read_history(self.run_dir, created_at=created_at, now=now, state=str(state), metrics=metrics)
        self._ledger = build_ledger(history) if len(metrics) else None
        self._first_start_s = first_start_s(history)
        took_s = time.perf_counter() - start_s
        self._ledger_due = now + max(_LEDGER_EVERY_S, took_s / share)


class RunWatcher:
    """Finds the runs to look at: those that hold nodes, and those that ended a short time ago.

    `submitted` returns run directories of unfinished jobs elsewhere. Runs that wait in a queue count, too, if
    `with_waiting`. An ended run stays for `keep_s`, so that its end is seen. Of more than `most_runs` the newest count.
    """

    def __init__(
        self,
        folder: Path,
        submitted: Callable[[], Iterable[str]],
        clock: Clock,
        *,
        with_waiting: bool = False,
        keep_s: float = 600.0,
        most_runs: int = 200,
    ) -> None:
        self._folder, self._submitted, self._clock = folder, submitted, clock
        self._with_waiting, self._keep_s, self._most_runs = with_waiting, keep_s, most_runs
        self._watched: dict[Path, WatchedRun] = {}
        self._over: dict[Path, int] = {}
        """Runs that ended long ago -> time of their status; another launch changes it."""
        self._labels: dict[Path, str] = {}
        """A run keeps its name while its folder is there: counters of two runs under one name would seem to jump."""
        self.unreadable = self.left_out = 0

    def watched(self) -> list[WatchedRun]:
        """All runs to look at now, the newest first."""
        found = sorted(self._present(), reverse=True)
        kept = [path for _, path in found[: self._most_runs]]
        self.left_out, self.unreadable = len(found) - len(kept), 0
        self._watched = {path: self._watched.get(path) or WatchedRun(RunDir(path), self._clock) for path in kept}
        return list(self._watched.values())

    def facts(self) -> list[RunSnapshot]:
        """All of them as metrics show them."""
        found = self.watched()
        facts, share = [], _MOST_TIME_FOR_LEDGER / max(1, len(found))
        for watched in found:
            path = watched.run_dir.path
            if path not in self._labels:
                self._labels[path] = str(path) if path.name in self._labels.values() else path.name
            try:
                facts.append(watched.facts(self._labels[path], ledger_share=share))
            except (
                TrainworksError,
                OSError,
                KeyError,
                TypeError,
                ValueError,
            ):  # of another version, or removed
                self.unreadable += 1
        return facts

    def _present(self) -> Iterable[tuple[float, Path]]:
        """Time of the status and folder of every run to look at."""
        paths = {run.path.resolve() for run in run_dirs(self._folder)} | {Path(path) for path in self._submitted()}
        paths |= self._watched.keys()  # an ended job is no longer among the submitted ones
        self._over = {path: at for path, at in self._over.items() if path in paths}
        self._labels = {path: label for path, label in self._labels.items() if path in paths}
        for path in paths:
            run_dir = RunDir(path)
            try:
                changed_ns = run_dir.status_file.stat().st_mtime_ns
            except OSError:  # never launched
                continue
            if self._over.get(path) == changed_ns:
                continue
            status = run_dir.read_status()
            state = current_state(status)
            is_wanted = self._with_waiting if state.waits else state is not JobState.CREATED
            if state.is_final and _ended_at(run_dir, state, status) < self._clock.now() - self._keep_s:
                self._over[path] = changed_ns
            elif is_wanted:
                yield status.updated_at, path


def _ended_at(run_dir: RunDir, state: JobState, status: RunStatus) -> float:
    """Time of the end; of the last sign of life where no supervisor was left to write the end."""
    files = (run_dir.events_file, run_dir.metrics_file, run_dir.usage_file(0)) if state is JobState.LOST else ()
    return max([status.updated_at, *map(_modified_at, files)])


def _modified_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
