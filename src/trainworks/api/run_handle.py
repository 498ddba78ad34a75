"""A run that exists: find it, follow it, stop it, report it. Reading a run needs neither a database nor torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Self

from trainworks.agent.current_state import current_status
from trainworks.api.notices import Notify, warn
from trainworks.backends.registry import cluster_of, is_copied, shares_files
from trainworks.errors import EnvironmentProblem, TrainworksError, UnknownRunError, UsageError
from trainworks.files import closing_handle, take_lock
from trainworks.host.clock import Clock, SystemClock
from trainworks.jobs.job_spec import is_array_id
from trainworks.jobs.state import JobState, parse_state
from trainworks.record.events.job import StateEvent
from trainworks.record.events.log import of_kind, read_events
from trainworks.record.events.training import CheckpointCopiedEvent
from trainworks.record.manifest import complete_checkpoints
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import find_run as find_run_dir
from trainworks.record.status import RunStatus
from trainworks.record.usage import others_share
from trainworks.report.runs.outcome import failure_of, resume_command
from trainworks.report.runs.run_progress import Progress, RunFollower

if TYPE_CHECKING:
    from trainworks.api.jobs import Job
    from trainworks.report.artifacts import MetricTable
    from trainworks.report.runs.summary import Report

__all__ = [
    "JobState",
    "Progress",
    "Run",
    "RunDir",
    "as_run",
    "backend_poller",
    "find_run",
    "find_runs",
    "resume_command",
]

_BACKEND_POLL_S = 3.0
_NOT_SUBMITTED = "not submitted: the job store does not have it"


class Run:
    """A run: its record, and what can be done with it."""

    def __init__(self, path: Path | RunDir, notify: Notify = warn) -> None:
        self.notify = notify
        self.run_dir = path if isinstance(path, RunDir) else RunDir(Path(path))

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.state})"

    def _repr_html_(self) -> str:
        rows = {"run": self.id, "state": str(self.state), "folder": str(self.path), "message": self.status.message}
        cells = (f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows.items() if text)
        return f"<table>{''.join(cells)}</table>"

    @property
    def id(self) -> str:
        """Id of the run: the name of its directory."""
        return self.run_dir.run_id

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.run_dir.path

    @property
    def resolved(self) -> ResolvedRun:
        """The resolved run: ranks, layout and the plan, which is the prediction."""
        return self.run_dir.read_resolved()

    @property
    def status(self) -> RunStatus:
        """The last status written, with the cause and message of a failure; LOST if its supervisor was killed."""
        return current_status(self.run_dir.read_status())

    @property
    def state(self) -> JobState:
        """State of the run; LOST if its supervisor died without writing a final state, and no queue has the run."""
        return self._said_by_its_queue(parse_state(self.status.state))

    def _said_by_its_queue(self, state: JobState) -> JobState:
        """The state of a run whose supervisor is gone: what its queue says, which decides whether it starts again."""
        if state is not JobState.LOST:
            return state
        try:
            job = self.job
        except EnvironmentProblem:  # no queue can be asked
            return state
        if job is None:
            _record_loss(self.run_dir)
            return state
        found = job.state if job.state.is_final else job.refresh()
        return found if found.is_final or found.waits else JobState.RECOVERING

    @property
    def job(self) -> Job | None:
        """The job of a submitted run; None for a run started by `run`."""
        from trainworks.api.jobs import job_of_run  # noqa: PLC0415 - imports the database

        return job_of_run(self.run_dir, notify=self.notify)

    @property
    def has_remote_output(self) -> bool:
        """True if the nodes of the run write no logs into the run directory."""
        cluster = cluster_of(self.path)
        return cluster is not None and not shares_files(cluster.engine)

    def standing(self) -> tuple[JobState, str | None]:
        """The state, and a note. A waiting run that is not in the job store was never submitted: CREATED."""
        state = self.state
        if not state.waits:
            return state, None
        try:
            return (state, None) if self.job is not None else (JobState.CREATED, _NOT_SUBMITTED)
        except EnvironmentProblem as problem:
            return state, problem.message

    def follow(self, *, since: float = 0.0, poll_s: float = 0.2) -> Iterator[Progress]:
        """Snapshots of the run whenever it has something new, until it has ended; the last one has the final state.

        Each row of its metrics is in `new_rows` of one snapshot, and each event in `new_events` of one.

        Args:
            since: leave out rows and events before this time (seconds since the epoch).
            poll_s: time between two looks at the record.

        Raises:
            EnvironmentProblem: the run directory was deleted.
        """
        before: JobState | None = None
        for progress in self.poll(since=since, poll_s=poll_s):
            if progress.new_rows or progress.new_events or progress.state is not before:
                yield progress
            before = progress.state

    def poll(self, *, since: float = 0.0, poll_s: float = 0.2) -> Iterator[Progress]:
        """Snapshots as those of `follow`, also of a look that has found nothing new: for what is done meanwhile."""
        follower, poll_backend = RunFollower(self.run_dir), backend_poller(self.run_dir)
        while True:
            poll_backend()
            progress = follower.look(since=since)
            progress.state = self._said_by_its_queue(progress.state)
            yield progress
            if progress.state.is_final:
                return
            if not self.path.is_dir():
                raise EnvironmentProblem(f"the run directory `{self.path}` was deleted", hint="its job: trainworks ps")
            SystemClock().sleep(poll_s)

    def others_share(self) -> float | None:
        """Share of the cores' time, 0 to 1, of other programs on the busiest node of the run; None if unknown."""
        usages = {node: self.run_dir.read_usage(node) for node in range(self.resolved.processes.nodes)}
        return others_share({node: usage for node, usage in usages.items() if usage is not None}, {})

    def pending_copies(self) -> list[str]:
        """Places of `checkpoint.copies` that lack the newest checkpoint; a process of the run still copies it."""
        complete = complete_checkpoints(self.run_dir)
        copies = self.resolved.run_file.checkpoint.copies
        if not copies or not complete:
            return []
        newest = complete[-1][0].step
        events = of_kind(read_events(self.run_dir.events_file), CheckpointCopiedEvent)
        made = {event["to"]: event["step"] for event in events}
        return [address for copy in copies if made.get(address := copy.address(self.id)) != newest]

    def wait(self) -> JobState:
        """Wait for the end of the run; returns its final state."""
        state = self.state
        for progress in self.poll():
            state = progress.state
        return state

    def check(self) -> Run:
        """Raise if the run failed.

        Raises:
            RunFailedError: the first failed rank, its log, and how to resume.
        """
        if (error := failure_of(self.run_dir, self.state)) is not None:
            raise error
        return self

    def stop(self, *, at_once: bool = False) -> None:
        """Ask for a clean end, in which a workload saves a checkpoint; returns without waiting for the end.

        Args:
            at_once: end the run without a checkpoint.

        Raises:
            UsageError: the run is not running.
            NotOwnerError: the run belongs to another user.
        """
        job = self.job
        if job is not None and not job.state.is_final:
            job.stop(at_once=at_once)
            return
        state = self.state if job is None else job.state  # the queue may have ended a run that it could not write to
        if state.is_final or self.status.supervisor_pid is None:
            raise UsageError(f"run {self.id} is not running: {state}")
        from trainworks.backends.local.attached import AttachedBackend  # noqa: PLC0415, as in `signal_stop`

        AttachedBackend(self.resolved).stop(str(self.path), at_once=at_once)

    def signal_stop(self, reason: str) -> bool:
        """Signal the supervisor of a run on this machine; False if no supervisor runs yet."""
        from trainworks.backends.local.attached import stop_supervisor  # noqa: PLC0415, a look at a run does without

        return stop_supervisor(self.run_dir, reason)

    def output(self, *, node: int | None = None, follow: bool = False) -> Iterator[str]:
        """Lines that remote nodes printed; see `has_remote_output`.

        Raises:
            UsageError: the run was not submitted, or its backend has not confirmed the job yet.
        """
        job = self.job
        if job is None:
            raise UsageError(f"run {self.id} was not submitted", hint=f"trainworks resume -b {self.id}")
        job.refresh()
        return job.output(node=node, follow=follow)

    def with_record(self) -> Self:
        """This run, with state and record of a submitted one whose nodes share no files; that takes seconds.

        `notify` says if that cannot be.
        """
        job = self.job if self.has_remote_output else None
        if job is not None and job.row.handle is not None:
            is_over = job.refresh().is_final
            states = of_kind(read_events(self.run_dir.events_file), StateEvent)
            has_end = bool(states) and parse_state(states[-1]["state"]).is_final
            try:
                if not (has_end and is_over and states[-1].get("t", 0.0) >= (job.row.started_at or 0.0)):
                    job.fetch()
            except TrainworksError as problem:
                self.notify(f"the record of run {self.id} may be older than the job: {problem.message}")
        return self

    @property
    def metrics(self) -> MetricTable:
        """Columns of the steps so far, each step once: `pandas.DataFrame(run.metrics)` and `run.metrics["loss"]`."""
        from trainworks.report.artifacts import read_metric_table  # noqa: PLC0415 - imports numpy

        return read_metric_table(self.with_record().run_dir)

    def report(self) -> Report:
        """What was planned and what happened; also of a run that is not over. Fetches its record first."""
        from trainworks.report.runs.summary import build_report  # noqa: PLC0415 - imports numpy

        self.with_record()
        return build_report(self.run_dir, time.time(), state=self.state)


def find_run(name: str | None = None, folder: Path | str = "runs", *, notify: Notify = warn) -> Run:
    """The run of an id or a path, or the run of a job by its number; the newest of the folder when None.

    The record of a job that writes it elsewhere is fetched first; `notify` tells if its backend does not answer.

    Raises:
        UnknownRunError: no such run.

    Examples:
        >>> import tempfile, trainworks
        >>> folder = tempfile.mkdtemp()
        >>> started = trainworks.run(["true"], folder=folder)
        >>> find_run(started.id, folder).id == started.id
        True
    """
    try:
        found = Run(find_run_dir(Path(folder), name), notify)
    except UnknownRunError:
        from trainworks.api.jobs import job_of_run  # noqa: PLC0415

        job = job_of_run(name) if name else None
        if job is None:
            raise
        found = Run(job.run_dir, notify)
    if is_copied(found.path):
        from trainworks.api.jobs import refresh_remote_jobs  # noqa: PLC0415

        for problem in refresh_remote_jobs(found.run_dir):
            notify(f"the record of run {found.id} may be older than the job: {problem.message}")
    return found


def find_runs(
    names: Sequence[str], folder: Path | str = "runs", *, live: bool = False, notify: Notify = warn
) -> list[Run]:
    """The runs that `find_run` finds, and those of arrays; the newest run without a name.

    Args:
        names: ids, paths or numbers of runs, or ids of arrays.
        folder: folder of all runs.
        live: leave out runs of an array that have ended, unless all have.
        notify: receives warnings.

    Raises:
        UnknownRunError: no such run or array.

    Examples:
        >>> import tempfile, trainworks
        >>> folder = tempfile.mkdtemp()
        >>> [trainworks.run(["true"], folder=folder).id for _ in range(2)] == [
        ...     run.id for run in find_runs(["true-1", "true-2"], folder)
        ... ]
        True
    """
    if not names:
        return [find_run(None, folder, notify=notify)]
    found: list[Run] = []
    for name in names:
        is_array = is_array_id(name)
        found += _runs_of_array(name, notify, live=live) if is_array else [find_run(name, folder, notify=notify)]
    return found


def _runs_of_array(name: str, notify: Notify, *, live: bool) -> list[Run]:
    from trainworks.api.jobs import jobs_of_array  # noqa: PLC0415

    members = jobs_of_array(name, notify=notify)
    kept = [job for job in members if not (live and job.state.is_final)]
    return [Run(job.run_dir, notify) for job in kept or members]


def as_run(run: Run | str | None, folder: Path | str = "runs") -> Run:
    """A run as it is, or the run that `find_run` finds.

    Raises:
        UnknownRunError: no such run.
    """
    return run if isinstance(run, Run) else find_run(run, folder)


def backend_poller(run_dir: RunDir, clock: Clock | None = None) -> Callable[[], None]:
    """A function for a loop that waits for a run: polls the backend of a remote run every three seconds."""
    cluster = cluster_of(run_dir.path)
    if cluster is None or cluster.engine == "local":
        return lambda: None
    clock = clock or SystemClock()
    polled_at = 0.0

    def poll() -> None:
        nonlocal polled_at
        from trainworks.api.jobs import refresh_remote_jobs  # noqa: PLC0415

        if clock.now() - polled_at > _BACKEND_POLL_S:
            refresh_remote_jobs(run_dir)
            polled_at = clock.now()

    return poll


def _record_loss(run_dir: RunDir) -> None:
    """Write the loss of a run that is in no queue, so that programs which only read status.json see it.

    The time of its last sign of life stays. Without effect for a run that has started again, or of another user.
    """
    with suppress(OSError, TrainworksError):
        if (lock := take_lock(run_dir.lock_file)) is None:
            return
        with closing_handle(lock):
            status = run_dir.read_status()
            if (now := current_status(status)) != status:
                run_dir.write_status(now)
