"""Use cases of jobs: list, describe, stop, hold, release and retry them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainworks.api.notices import Notify, warn
from trainworks.backends.local.wake import wake
from trainworks.backends.ownership import check_may_change
from trainworks.backends.store_place import is_there_a_store, store_folder, store_url
from trainworks.backends.submission import check_waits
from trainworks.errors import EnvironmentProblem, TrainworksError, UnknownRunError, UsageError
from trainworks.host.clock import SystemClock
from trainworks.host.users import this_host
from trainworks.host.users import user_name as current_user
from trainworks.jobs.job_row import Attempt, JobRow
from trainworks.jobs.job_spec import JobSpec, is_array_id
from trainworks.jobs.state import JobState, parse_state
from trainworks.jobs.store import JobStore, open_store
from trainworks.record.events.log import read_events
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import find_run as find_run_dir
from trainworks.recover.restarts import Life, lives_of
from trainworks.system import user_id
from trainworks.units import Money

if TYPE_CHECKING:
    from trainworks.backends.backend import Backend
    from trainworks.config.run_file import RunFile
    from trainworks.record.resolved import KeptCode

__all__ = [
    "Attempt",
    "Job",
    "JobRow",
    "JobState",
    "current_user",
    "describe",
    "find_job",
    "hold",
    "is_array_id",
    "job_of_run",
    "jobs",
    "jobs_of_array",
    "refresh_jobs",
    "refresh_remote_jobs",
    "release",
    "retry",
    "stop",
    "this_host",
]

_LOCAL = "local"
_POLL_S = 0.2
_BACKEND_DELAY_S = 30.0
"""Longest time between the end of a job's processes and the end its backend reports."""


class Job:
    """A submitted job."""

    def __init__(self, store: JobStore, row: JobRow, notify: Notify = warn) -> None:
        self._store = store
        self._notify = notify
        self.row = row

    def __repr__(self) -> str:
        return f"Job({self.row.id}, {self.row.run_id!r}, {self.row.state})"

    @property
    def id(self) -> int:
        """Number of the job."""
        return self.row.id

    @property
    def run_id(self) -> str:
        """Id of its run."""
        return self.row.run_id

    @property
    def run_dir(self) -> RunDir:
        """Directory of its run."""
        return RunDir(Path(self.row.run_dir))

    @property
    def state(self) -> JobState:
        """State at the last refresh."""
        return self.row.state

    def refresh(self) -> JobState:
        """Poll the backend and return the state."""
        refresh_jobs(self._store, self._notify, awaited=self.id)
        self.row = self._store.get(self.row.id) or self.row
        return self.row.state

    def attempts(self) -> list[Attempt]:
        """Every start of the job."""
        return self._store.attempts(self.row.id)

    def lives(self) -> list[Life]:
        """Every life of the job, as its record has them: allocations, and restarts in place; none if not readable."""
        with suppress(OSError, EnvironmentProblem):
            return lives_of(read_events(self.run_dir.events_file))
        return []

    def stop(self, *, at_once: bool = False) -> None:
        """Ask for a clean end, or end the job at once; returns without waiting for the end.

        Raises:
            NotOwnerError: the job belongs to another user.
        """
        self.refresh()
        backend, clock, row = self._changeable_backend(), SystemClock(), self.row
        if row.state.is_final:
            return
        if backend.name == _LOCAL:
            backend.stop(str(row.id), at_once=at_once)
        elif row.handle is None:
            from trainworks.backends.remote import withdraw  # noqa: PLC0415, as in `_follow`

            withdraw(self._store, row, clock)
        else:
            backend.stop(row.handle, at_once=at_once or row.asked_to_end == "stop")
            end = "kill" if at_once else "stop"
            self._store.change(row.id, now=clock.now(), asked_to_end=end, asked_by=user_id())

    def hold(self) -> None:
        """Keep the waiting job from starting; it keeps its place in the queue.

        Raises:
            UsageError: the job does not wait.
        """
        backend, handle = self._changeable_backend(), self._handle()
        check_waits(self.row, "hold")
        backend.hold(handle)

    def release(self) -> None:
        """Let a held job start.

        Raises:
            UsageError: the job does not wait.
        """
        backend, handle = self._changeable_backend(), self._handle()
        check_waits(self.row, "release")
        backend.release(handle)

    def edit(self, change: Callable[[RunFile], RunFile]) -> tuple[RunFile, RunFile]:
        """Change the run file of the waiting job, and return it before and after; see `editing.edit_job`."""
        from trainworks.backends.editing import edit_job  # noqa: PLC0415, as in `_follow`

        backend, handle = self._changeable_backend(), self._handle()
        edited = edit_job(self._store, backend, self.row, handle, change, SystemClock())
        self.refresh()  # wakes the dispatcher, too
        return edited

    def retry(self, spec: JobSpec | None = None, *, extends: bool = False) -> None:
        """Queue a failed or stopped job again, with another spec if given; a workload resumes from its newest
        checkpoint. A job that has succeeded is queued, too, if `extends`: its run has more steps now.

        Raises:
            UsageError: it has not ended, or it has succeeded.
        """
        self.refresh()
        backend = self._changeable_backend()
        self._wait_for_backend()
        if self.row.state is JobState.SUCCEEDED and not extends:
            hint = "retry one that failed or was stopped"
            raise UsageError(f"job {self.row.id} ({self.row.run_id}) is {self.row.state}", hint=hint)
        if backend.name == _LOCAL:
            backend.retry(backend.render(spec or self.row.spec, self.run_dir), self.run_dir, str(self.row.id))
        else:
            from trainworks.backends.remote import hand_over_again  # noqa: PLC0415, as in `_follow`

            hand_over_again(self._store, backend, self.row, SystemClock(), spec)

    def _wait_for_backend(self) -> None:
        """Wait until the backend reports the end of a job whose run has ended."""
        clock = SystemClock()
        deadline = clock.now() + _BACKEND_DELAY_S
        has_ended = parse_state(self.run_dir.read_status().state).is_final
        while has_ended and not self.row.state.is_final and clock.now() < deadline:
            clock.sleep(_POLL_S)
            _follow(self._store, awaited=self.id)
            self.row = self._store.get(self.row.id) or self.row

    def output(self, *, node: int | None = None, follow: bool = False) -> Iterator[str]:
        """Lines the job printed, from a backend whose nodes do not share files with this machine.

        Raises:
            UsageError: the backend has not confirmed the job yet.
        """
        from trainworks.backends.kept_output import with_kept_output  # noqa: PLC0415, as in `_follow`

        lines = self.backend().output(self._handle(f"trainworks logs -f {self.run_id}"), node=node, follow=follow)
        is_whole = node is None and self.row.state.is_final
        return with_kept_output(lines, self.run_dir) if is_whole else lines

    def fetch(self) -> None:
        """Bring the record that the nodes of the job have written into the run directory, if they do not share files.

        Raises:
            UsageError: the backend cannot read it.
            UnreachableError: the backend does not answer.
        """
        self.backend().fetch([self.run_dir])

    def enter(self, command: Sequence[str], *, node: int = 0, terminal: bool = False) -> list[str]:
        """Argument vector of a program that runs a command in the job; see `Backend.enter`."""
        backend, handle = self._changeable_backend(), self._handle()
        return backend.enter(self.run_dir, handle, command, node=node, terminal=terminal)

    def forward(self, port: int, local_port: int, *, node: int = 0) -> list[str] | None:
        """Argument vector of a program that forwards a port to the job; see `Backend.forward`."""
        backend, handle = self._changeable_backend(), self._handle()
        return backend.forward(self.run_dir, handle, port, local_port, node=node)

    def backend(self) -> Backend:
        """The backend that runs the job.

        Raises:
            EnvironmentProblem: the run directory, which names the backend, is gone.
        """
        from trainworks.backends.registry import backend_of_job, local_backend  # noqa: PLC0415, as in `_follow`

        if self.row.engine == _LOCAL:
            return local_backend(self._store)
        backend = backend_of_job(self.row, store=self._store)
        if backend is None:
            missing = self.run_dir.resolved_file
            raise EnvironmentProblem(f"cannot tell which backend runs job {self.row.id}: `{missing}` is missing")
        return backend

    def _changeable_backend(self) -> Backend:
        check_may_change(self.row)
        return self.backend()

    @property
    def hour_price(self) -> Money | None:
        """Price of an accelerator hour in the run file, if it gives one."""
        from trainworks.backends.registry import cluster_of_job  # noqa: PLC0415, as in `_follow`

        return cluster.hour_price if (cluster := cluster_of_job(self.row)) else None

    @property
    def kept_code(self) -> KeptCode | None:
        """The copy of the code that `job.keep_code` made; None without one, or if the run directory is not readable."""
        if self.row.spec.keep_code:
            with suppress(OSError, EnvironmentProblem):
                return self.run_dir.read_resolved().code
        return None

    def _handle(self, then: str | None = None) -> str:
        row = self.row
        if row.handle is None and row.engine != _LOCAL:
            hint = f"see `trainworks ps`, then: {then}" if then else "trainworks ps"
            raise UsageError(f"{row.engine} has not confirmed job {row.id} ({row.run_id}) yet", hint=hint)
        return row.handle or str(row.id)


def _follow(store: JobStore, *, awaited: int | None = None) -> list[TrainworksError]:
    """Poll the backends of jobs that are not of this machine's queue, with the memory of those that were silent."""
    # a list of this machine's jobs does without backends, which take as long to import as all else that it needs
    from trainworks.backends.asking import Silence  # noqa: PLC0415
    from trainworks.backends.remote import follow_all  # noqa: PLC0415

    clock = SystemClock()
    return follow_all(store, clock, silence=Silence(store_folder() / "silent", clock), awaited=awaited)


def refresh_jobs(store: JobStore, notify: Notify, *, awaited: int | None = None) -> None:
    """Update the store from every backend; restart the local dispatcher if it has died.

    A backend that does not answer within its patience keeps its jobs as they were, and is not asked for a while.
    `notify` receives the names of silent backends. The backend of the job of number `awaited` is asked, and waited for,
    in any case.
    """
    queues = store.live_queues(user_id())
    if (_LOCAL, this_host()) in queues:
        wake()
    if any(engine != _LOCAL for engine, _ in queues):
        for error in _follow(store, awaited=awaited):
            notify(error.message)


def _store(notify: Notify) -> JobStore:
    store = open_store(store_url())
    refresh_jobs(store, notify)
    return store


def jobs(
    *,
    states: Sequence[JobState] | None = None,
    name: str | None = None,
    mine: bool = False,
    limit: int | None = None,
    array: str | None = None,
    one_per_array: bool = False,
    notify: Notify = warn,
) -> list[Job]:
    """Submitted jobs, newest first.

    Args:
        states: only jobs in these states; all states when None.
        name: only jobs of this name.
        mine: only jobs of this user.
        limit: largest number of jobs.
        array: only jobs of the array of this id.
        one_per_array: only the newest of these jobs of each array; `array_states` counts the others.
        notify: receives warnings.
    """
    store = _store(notify)
    rows = store.search(
        states=states,
        name=name,
        uid=user_id() if mine else None,
        limit=limit,
        array=array,
        one_per_array=one_per_array,
    )
    return [Job(store, row, notify) for row in rows]


def jobs_of_array(name: str, *, notify: Notify = warn) -> list[Job]:
    """Jobs of the array of an id, oldest first.

    Raises:
        UnknownRunError: no job belongs to it.
    """
    found = jobs(array=name, notify=notify)
    if not found:
        raise UnknownRunError(f"no job of the array `{name}`", hint="see `trainworks ps --all`")
    return found[::-1]


def find_job(name: str, folder: Path | str = "runs", *, notify: Notify = warn) -> Job:
    """The job of the run that `find_run` finds in the folder of all runs, or in the job store.

    Raises:
        UnknownRunError: no such job.

    Examples:
        >>> import tempfile, trainworks
        >>> submitted = trainworks.submit(["true"], folder=tempfile.mkdtemp())
        >>> find_job(str(submitted.path)).run_id == submitted.id
        True
    """
    store = _store(notify)
    try:
        row = _row(store, find_run_dir(Path(folder), name)) or store.find(name, uid=user_id())
    except UnknownRunError:
        row = _row(store, name)
    if row is None:
        newest = ", ".join(f"{job.id} ({job.run_id})" for job in store.search(limit=5)) or "none"
        raise UnknownRunError(f"no job `{name}`", hint=f"the newest: {newest}")
    return _job(store, row, notify)


def _row(store: JobStore, run: str | RunDir) -> JobRow | None:
    """The job of a run by its directory, id or number, or the newest of its name, this user's first."""
    uid = user_id()
    if isinstance(run, RunDir):
        return store.find(str(run.path.resolve()), uid=uid)
    if (row := store.find(run, uid=uid)) is not None or run.isdecimal():  # a number is that of a job
        return row
    return next(iter(store.search(name=run, uid=uid, limit=1) or store.search(name=run, limit=1)), None)


def _job(store: JobStore, row: JobRow, notify: Notify) -> Job:
    from trainworks.backends.editing import finish_interrupted_edit  # noqa: PLC0415, as in `_follow`

    finish_interrupted_edit(store, row)
    return Job(store, row, notify)


def job_of_run(run: str | RunDir, *, notify: Notify = warn) -> Job | None:
    """The job of a run by its directory, id, number or name, without polling; None for a run started by `run`."""
    if not is_there_a_store():
        return None
    store = open_store(store_url())
    row = _row(store, run)
    return None if row is None else _job(store, row, notify)


def describe(name: str, folder: Path | str = "runs", *, notify: Notify = warn) -> tuple[Job, list[Attempt]]:
    """A job and its attempts; see `find_job`."""
    job = find_job(name, folder, notify=notify)
    return job, job.attempts()


def stop(name: str, folder: Path | str = "runs", *, at_once: bool = False) -> Job:
    """Stop a job; see `find_job` and `Job.stop`."""
    job = find_job(name, folder)
    job.stop(at_once=at_once)
    return job


def hold(name: str, folder: Path | str = "runs", *, notify: Notify = warn) -> Job:
    """Keep a waiting job from starting; see `find_job` and `Job.hold`."""
    job = find_job(name, folder, notify=notify)
    job.hold()
    return job


def release(name: str, folder: Path | str = "runs", *, notify: Notify = warn) -> Job:
    """Let a held job start; see `find_job` and `Job.release`."""
    job = find_job(name, folder, notify=notify)
    job.release()
    return job


def retry(name: str, folder: Path | str = "runs", *, notify: Notify = warn) -> Job:
    """Queue a failed or stopped job again; see `find_job` and `Job.retry`."""
    job = find_job(name, folder, notify=notify)
    job.retry()
    return job


def refresh_remote_jobs(run_dir: RunDir) -> list[TrainworksError]:
    """Poll the backends of all remote jobs, and wait for that of a run; returns the errors of those that are silent."""
    store = open_store(store_url())
    row = _row(store, run_dir)
    return _follow(store, awaited=row.id if row else None)
