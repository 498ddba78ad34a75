"""Runs for many readers: each record is read once, and of one that grows only what is new."""

from __future__ import annotations

import multiprocessing
import os
import re
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

from trainworks.api.jobs import Job
from trainworks.api.observing.job_board import JobBoard
from trainworks.api.run_handle import Run
from trainworks.errors import TrainworksError, UnknownRunError
from trainworks.record.events import Event, read_lines_from
from trainworks.record.metric_columns import COLUMNS, MetricColumns, thinned
from trainworks.record.run_dir import RunDir
from trainworks.report.runs.curves import curves_of_columns
from trainworks.report.runs.run_progress import current_state
from trainworks.report.runs.summary import Report, build_report

__all__ = ["COLUMNS", "RunView", "RunViews"]

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_MOST_VIEWS = 64
_MOST_ROWS = 8_000_000
"""Rows that all views keep together, of about 70 bytes each."""
_LARGE_BYTES = 16 << 20
"""Size of metrics from which another process reads them for the report."""
_REPORT_SHARE = 1 / 20
"""Share of the time that the reports of a live run may take."""
_GOES_ON_FROM = {"attempt": "resumed_from_step", "rollback": "to_step"}
"""Events after which training continues from an earlier step, and their field that names it."""


class RunView:
    """One run, as pages show it.

    Args:
        run: the run.
        elsewhere: runs the report of a large record; shared by all views.
    """

    def __init__(self, run: Run, elsewhere: ProcessPoolExecutor) -> None:
        self.run = run
        self.job: Job | None = None
        """The job of a submitted run, as of the last visit."""
        self._elsewhere = elsewhere
        self._lock = threading.RLock()
        self.columns = MetricColumns(run.run_dir.metrics_file)
        self._events: list[Event] = []
        self._events_offset = 0
        self._report: Report | None = None
        self._report_of: object = None
        self._report_due = 0.0
        self._coming: Future[Report] | None = None
        self._catching_up: threading.Thread | None = None

    def stamp(self) -> tuple[object, ...]:
        """Changes with the record, and when the supervisor of the run dies."""
        run_dir = self.run.run_dir
        files = (run_dir.status_file, run_dir.events_file, run_dir.metrics_file, run_dir.resolved_file)
        row = self.job.row if self.job else None
        waiting = (row.version, row.reason, row.detail, row.position) if row else ()
        read = (len(self.columns), self._coming is not None and self._coming.done()) if self.is_reading else ()
        return (*map(_size_and_time, files), str(current_state(run_dir.read_status())), waiting, read)

    @property
    def is_reading(self) -> bool:
        """True while a large record is being read, so that curves end early or figures are missing."""
        return self._coming is not None or (self._catching_up is not None and self._catching_up.is_alive())

    def events(self) -> list[Event]:
        """All events so far."""
        with self._lock:
            new, self._events_offset = read_lines_from(self.run.run_dir.events_file, self._events_offset)
            self._events += new
            return list(self._events)

    def report(self) -> Report:
        """The report with the present curves; its other figures are a while old where they take long to compute.

        Raises:
            EnvironmentProblem: the resolved run is missing or was written by another format.
        """
        with self._lock:
            self._look()
            self._update_report()
            assert self._report is not None
            if not len(self.columns):
                return self._report
            return self._report.model_copy(update={"curves": curves_of_columns(self.columns, self._returns())})

    def metrics(self, names: tuple[str, ...], *, points: int, first: int, last: int | None) -> dict[str, list[float]]:
        """Columns of the steps that count, thinned so that the first of them keeps its spikes.

        Args:
            names: of columns; `step` comes first anyway.
            points: most values per column.
            first: first step.
            last: last step; the newest when None.
        """
        with self._lock:
            self._look()
            step = self.columns.column("step")
            wanted = ~self.columns.lost(self._returns()) & (step >= first)
            wanted &= step <= last if last is not None else True
            chosen = {name: self.columns.column(name)[wanted] for name in ("step", *names)}
        kept = thinned(chosen[names[0]], points)
        return {name: [float(value) for value in values[kept]] for name, values in chosen.items()}

    def _look(self) -> None:
        """Read what was added; of a large file the beginning now, and the rest in the background."""
        if not self.columns.look() and (self._catching_up is None or not self._catching_up.is_alive()):
            self._catching_up = threading.Thread(target=self._catch_up, daemon=True)
            self._catching_up.start()

    def _catch_up(self) -> None:
        is_done = False
        while not is_done:
            with self._lock:
                is_done = self.columns.look()

    def _returns(self) -> list[tuple[float, int]]:
        return [
            (float(event["t"]), int(event.get(_GOES_ON_FROM[event["kind"]]) or 0))
            for event in self.events()
            if event.get("kind") in _GOES_ON_FROM
        ]

    def _update_report(self) -> None:
        """Build the report again if the record has changed, as often as its cost allows."""
        run_dir, state = self.run.run_dir, str(self.run.state)
        changed = (*map(_size_and_time, (run_dir.metrics_file, run_dir.events_file, run_dir.resolved_file)), state)
        if self._coming is not None:
            if self._coming.done():
                if self._coming.exception() is None:
                    self._report = self._coming.result()
                self._coming = None
            return
        if changed == self._report_of or (self._report is not None and time.monotonic() < self._report_due):
            return
        self._report_of = changed
        if _size_and_time(run_dir.metrics_file)[0] > _LARGE_BYTES:
            self._coming = self._elsewhere.submit(_report_elsewhere, run_dir.path, state)
            if self._report is None:
                self._report = build_report(run_dir, time.time(), state=state, with_steps=False)
            return
        start_s = time.monotonic()
        self._report = build_report(run_dir, time.time(), state=state)
        now_s = time.monotonic()
        self._report_due = now_s + (now_s - start_s) / _REPORT_SHARE


def _end_with_parent(parent: int) -> None:
    """Let this process end soon after the server, also when the server is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            threading.Event().wait(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _report_elsewhere(path: Path, state: str) -> Report:
    os.nice(10)
    return build_report(RunDir(path), time.time(), state=state)


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


class RunViews:
    """Views of the runs that were looked at last.

    Args:
        folder: of runs that were started without a queue.
        board: knows the directories of submitted runs.
    """

    def __init__(self, folder: Path, board: JobBoard) -> None:
        self._folder = folder
        self._board = board
        self._views: OrderedDict[Path, RunView] = OrderedDict()
        self._lock = threading.Lock()
        context = multiprocessing.get_context("spawn")
        self._elsewhere = ProcessPoolExecutor(1, context, initializer=_end_with_parent, initargs=(os.getpid(),))

    def close(self) -> None:
        """End the process that reads large records."""
        self._elsewhere.shutdown(wait=False, cancel_futures=True)

    def view(self, name: str) -> RunView:
        """The run of a job's number, of a run id, or of a folder's name below the folder of runs; never of a path.

        Raises:
            UnknownRunError: no such run.
        """
        if not _RUN_NAME.fullmatch(name):
            raise UnknownRunError("this is not the name of a run")
        job = self._job(name)
        path = Path(job.row.run_dir) if job else self._folder_of(name)
        with self._lock:
            view = self._views.pop(path, None) or RunView(Run(path), self._elsewhere)
            view.job = job
            self._views[path] = view
            while len(self._views) > _MOST_VIEWS or (len(self._views) > 1 and self._num_rows() > _MOST_ROWS):
                self._views.popitem(last=False)
        return view

    def _num_rows(self) -> int:
        return sum(len(view.columns) for view in self._views.values())

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
