"""Runs for many readers: each record is read once, and of one that grows only what is new; and two runs compared."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np

from trainworks.agent.current_state import current_state
from trainworks.api.jobs import Job
from trainworks.api.observing.job_board import JobBoard
from trainworks.api.run_handle import Run, as_run
from trainworks.config.spec import is_run_id
from trainworks.errors import TrainworksError, UnknownRunError
from trainworks.record.events.log import Event, read_events_from
from trainworks.record.history import returns_of
from trainworks.record.metric_columns import COLUMNS, MetricColumns, thinned
from trainworks.report.runs.run_comparison import RunComparison, compare_reports
from trainworks.report.runs.summary import Report, build_report

__all__ = ["COLUMNS", "RunComparison", "RunView", "RunViews", "compare", "compare_reports"]

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
        self._report: Report | None = None
        self._report_of: object = None
        self._report_due = 0.0

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
        """The report of all steps; of a long record that grows, a while old.

        Raises:
            EnvironmentProblem: the resolved run is missing or was written by another format.
        """
        with self._lock:
            record, metrics, start_s = self._record(), self.all_metrics(), time.monotonic()
            if self._report is None or (record != self._report_of and start_s >= self._report_due):
                state = str(self.run.state)  # it may ask a cluster for seconds
                self._report = build_report(self.run.run_dir, time.time(), state=state, metrics=metrics)
                self._report_of = record
                self._report_due = time.monotonic() + (time.monotonic() - start_s) / _REPORT_SHARE
            return self._report

    def all_metrics(self) -> MetricColumns:
        """The metrics, read to their end: a million steps take seconds at the first visit."""
        with self._lock:
            self._columns.look()
            return self._columns

    def metrics(self, names: tuple[str, ...], *, points: int, first: int, last: int | None) -> dict[str, list[float]]:
        """Columns of the steps that count, thinned so that the first of them keeps its spikes.

        Of the columns, `step` comes first anyway. Each has at most so many points. The last step is the newest when
        None.
        """
        with self._lock:
            steps, returns = self.all_metrics().steps(), returns_of(self.events())
        limit = np.inf if last is None else last
        chosen = steps.where(~steps.is_lost(returns) & (steps["step"] >= first) & (steps["step"] <= limit))
        kept = chosen.where(thinned(chosen[names[0]], points))
        return {name: kept[name].tolist() for name in ("step", *names)}


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


def compare(first: Run | str, second: Run | str, *, folder: Path | str = "runs") -> RunComparison:
    """Show what two runs were given, planned and measured differently.

    Args:
        first: a run, or its id or path, or the number of its job.
        second: the other one; differences are relative to the first.
        folder: folder of all runs.

    Raises:
        UnknownRunError: no such run.

    >>> import tempfile, trainworks
    >>> one, other = (trainworks.run(["true"], folder=tempfile.mkdtemp(), name=name) for name in ("one", "other"))
    >>> [setting.name for setting in compare(one, other).settings]
    ['name']
    """
    runs = [as_run(each, folder) for each in (first, second)]
    return compare_reports([(run.resolved, run.report()) for run in runs])
