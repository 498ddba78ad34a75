"""Runs for many readers: each record is read once, and of one that grows only what is new."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainworks.agent.current_state import current_state
from trainworks.api.jobs import Job
from trainworks.api.observing.job_board import JobBoard
from trainworks.api.run_handle import Run
from trainworks.config.spec import is_run_id
from trainworks.errors import TrainworksError, UnknownRunError
from trainworks.record.events.log import Event, read_events_from
from trainworks.record.history import returns_of
from trainworks.record.metric_columns import CURVES, Mask, MetricColumns, Steps, thinned, trailing_mean
from trainworks.report.pages.run_tabs import SavedCheckpoint
from trainworks.report.runs.run_comparison import RunComparison, compare_reports
from trainworks.report.runs.summary import Report, build_report

__all__ = [
    "CURVES",
    "RunComparison",
    "RunView",
    "RunViews",
    "SavedCheckpoint",
    "compare_reports",
]

_MOST_VIEWS = 64
_MOST_ROWS = 4_000_000
"""Rows that all views keep together."""
_REPORT_SHARE = 1 / 20
"""Share of the time that the reports of a live run may take."""


class RunView:
    """One run, as pages show it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.job: Job | None = None
        """The job of a submitted run, as of the last visit."""
        self._lock = threading.RLock()
        self._columns = MetricColumns(run.run_dir.metrics_file)
        self._events: list[Event] = []
        self._events_offset = 0
        self._report_lock = threading.Lock()
        self._report: Report | None = None
        self._report_of: object = None
        self._report_due = 0.0
        self._lost: _LostRows | None = None

    def __len__(self) -> int:
        """Rows of metrics that it keeps."""
        return len(self._columns)

    def stamp(self) -> tuple[object, ...]:
        """Changes with the record, when the supervisor of the run dies, and when an old report may be made again."""
        row = self.job.row if self.job else None
        waiting = (row.version, row.reason, row.detail, row.position) if row else ()
        record = self._record()
        return (*record, waiting, record != self._report_of and time.monotonic() >= self._report_due)

    def _record(self) -> tuple[object, ...]:
        """What a report was made of."""
        run_dir = self.run.run_dir
        files = (
            run_dir.status_file,
            run_dir.events_file,
            run_dir.metrics_file,
            run_dir.anchor_file,
            run_dir.resolved_file,
        )
        return (*map(_size_and_time, files), str(current_state(run_dir.read_status())))

    def events(self) -> list[Event]:
        """All events so far."""
        with self._lock:
            new, self._events_offset = read_events_from(self.run.run_dir.events_file, self._events_offset)
            self._events += new
            return list(self._events)

    def report(self) -> Report:
        """The report of all steps; of a long record that grows, a while old, and while one is made that of before.

        Raises:
            EnvironmentProblem: the resolved run is missing or was written by another format.
        """
        if not self._report_lock.acquire(blocking=self._report is None) and self._report is not None:
            return self._report
        try:
            record, metrics, start_s = self._record(), self.all_metrics(), time.monotonic()
            if self._report is None or (record != self._report_of and start_s >= self._report_due):
                state = str(self.run.state)  # it may ask a cluster for seconds
                self._report = build_report(self.run.run_dir, time.time(), state=state, metrics=metrics)
                self._report_of = record
                self._report_due = time.monotonic() + (time.monotonic() - start_s) / _REPORT_SHARE
            return self._report
        finally:
            self._report_lock.release()

    def all_metrics(self) -> MetricColumns:
        """The metrics, read to their end: a million steps take seconds at the first visit."""
        with self._lock:
            self._columns.look()
            return self._columns

    def checkpoints(self) -> list[SavedCheckpoint]:
        """Every checkpoint that was completed, the oldest first; some may have been deleted since."""
        return [
            SavedCheckpoint(int(event["step"]), float(event["t"]), event.get("bytes"), event.get("stall_s"))
            for event in self.events()
            if event["kind"] == "checkpoint"
        ]

    def metrics(
        self,
        names: tuple[str, ...],
        *,
        points: int,
        first: int = 0,
        last: int | None = None,
        lost: bool = False,
        mean: int = 1,
    ) -> dict[str, list[float]]:
        """Some of `CURVES` over the steps, thinned so that the first of them keeps its spikes; `step` comes first.

        Args:
            names: of the curves.
            points: most values of each.
            first: first step.
            last: last step; the newest one when None.
            lost: the steps that a restart threw away, instead of those that count.
            mean: each value is the mean of so many, that of its own step the last.
        """
        steps, is_lost = self._steps()
        limit = np.inf if last is None else last
        step = steps["step"]
        wanted = steps.where((is_lost == lost) & (step <= limit))  # a mean may begin before the first step
        values = {name: trailing_mean(wanted.curve(name), mean) if mean > 1 else wanted.curve(name) for name in names}
        inside = np.flatnonzero(wanted["step"] >= first)
        kept = inside[thinned(values[names[0]][inside], points)]
        return {"step": wanted["step"][kept].tolist(), **{name: one[kept].tolist() for name, one in values.items()}}

    def curves(self, names: tuple[str, ...], *, points: int) -> dict[str, list[tuple[float, float]]]:
        """Step and value of each curve over all steps that count, thin enough to draw; none without a value."""
        found = {}
        for name in names:
            columns = self.metrics((name,), points=points)
            found[name] = list(zip(columns["step"], columns[name], strict=True))
        return {name: curve for name, curve in found.items() if curve}

    def _steps(self) -> tuple[Steps, Mask]:
        """All rows, and for each whether a restart threw it away; kept, because zooming asks again and again."""
        with self._lock:
            steps, returns = self.all_metrics().steps(), returns_of(self.events())
            if self._lost is None or self._lost.returns != returns or not self._lost.precedes(steps):
                self._lost = _LostRows(steps, returns)
            return steps, self._lost.of(steps)


class _LostRows:
    """The rows that a restart threw away, by a mask; of rows that only add steps the new ones alone are looked at."""

    def __init__(self, steps: Steps, returns: Sequence[tuple[float, int]]) -> None:
        self.returns = returns
        self._mask = steps.is_lost(returns)
        self._take(steps)

    def _take(self, steps: Steps) -> None:
        self._last_at = steps.where(slice(-1, None))["t"].tolist()
        self._top_step = float(steps["step"].max()) if len(steps) else -np.inf

    def precedes(self, steps: Steps) -> bool:
        """Whether the rows begin with those of before, and no new one is a step that was done before."""
        num_rows = len(self._mask)
        last = steps.where(slice(max(0, num_rows - 1), num_rows))
        new = steps.where(slice(num_rows, None))
        is_same = len(steps) >= num_rows and last["t"].tolist() == self._last_at
        return is_same and (len(new) == 0 or bool(new["step"].min() > self._top_step))

    def of(self, steps: Steps) -> Mask:
        """The mask of rows that these precede."""
        if len(steps) > len(self._mask):
            new = steps.where(slice(len(self._mask), None))
            self._mask = np.append(self._mask, new.is_lost(self.returns))
            self._take(new)
        return self._mask


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


class RunViews:
    """Views of the runs that were looked at last, of those in a folder that were started without a queue, and of
    submitted ones.
    """

    def __init__(self, folder: Path, board: JobBoard) -> None:
        self._folder = folder
        self._board = board
        self._views: OrderedDict[Path, RunView] = OrderedDict()
        self._lock = threading.Lock()

    def view(self, name: str) -> RunView:
        """The run of a job's number, of a run id, or of a folder's name below the folder of runs; never of a path.

        Raises:
            UnknownRunError: no such run.
        """
        if not is_run_id(name):
            raise UnknownRunError("this is not the name of a run")
        job = self._job(name)
        path = Path(job.row.run_dir) if job else self._folder_of(name)
        with self._lock:
            view = self._views.pop(path, None) or RunView(Run(path))
            view.job = job
            self._views[path] = view
            while len(self._views) > _MOST_VIEWS or (
                len(self._views) > 1 and sum(map(len, self._views.values())) > _MOST_ROWS
            ):
                self._views.popitem(last=False)
        return view

    def _job(self, name: str) -> Job | None:
        try:
            return self._board.job(name)
        except TrainworksError:  # no such job, or a store that does not answer
            return None

    def _folder_of(self, name: str) -> Path:
        path = (self._folder / name).resolve()
        if path.parent == self._folder.resolve() and (path / "logs").is_dir():
            return path
        raise UnknownRunError(f"no run `{name}`", hint="see the list of jobs, or the folder of runs")
