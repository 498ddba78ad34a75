"""What the commands about jobs share: the store, a job by its name, and the backend that has it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trainworks.backends.backend import Backend
from trainworks.backends.local.backend import LocalBackend
from trainworks.backends.local.dispatcher_process import wake
from trainworks.backends.ownership import check_may_change, is_private
from trainworks.backends.registry import backend_for, backend_of_job, shares_files
from trainworks.backends.remote import follow_all, hand_over, hand_over_again, withdraw
from trainworks.backends.store_place import is_there_a_store, store_url
from trainworks.cli.watch import watch
from trainworks.config.load import load_run_file
from trainworks.config.run_file import RunFile
from trainworks.errors import EnvironmentProblem, UnknownRunError, UsageError
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.users import this_host
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.state import JobState, parse_state
from trainworks.jobs.store import JobRow, JobStore, open_store
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.report.printable import say

__all__ = [
    "JobArgument",
    "OnCluster",
    "backend_of",
    "backend_on",
    "backend_to_change",
    "find_job",
    "follow",
    "handle_of",
    "job_of_run",
    "jobs",
    "output_of",
    "retry_job",
    "run_of_job",
    "stop_job",
    "submit_job",
    "watch_job",
]

OnCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="WORD|RUN_FILE",
        help="Another cluster: `slurm`, or the cluster of a run file.",
        show_default=False,
    ),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Job number or run id.")]
_SHARED = (
    "note: other users can write this job store: they can change what it says of this job, but not what the job runs"
)
_LOOK_S = 0.2
_BACKEND_NOTICES_S = 30.0
"""How long a backend may take to end a job whose processes have ended."""


def jobs() -> JobStore:
    """The store of this user, as its backends see it now. A dispatcher that was killed is missed by whoever looks."""
    store = open_store(store_url())
    if any(not state.is_final for state in store.counts()):
        live = [state for state in JobState if not state.is_final]
        if store.search(states=live, engine=LocalBackend.name, uid=os.getuid(), host=this_host(), limit=1):
            wake()
        for error in follow_all(store, SystemClock()):
            say(f"warning: {error.message}", err=True)
    return store


def find_job(store: JobStore, wanted: str) -> JobRow:
    """The job that an argument names.

    Raises:
        UnknownRunError: naming some that there are.
    """
    row = store.find(wanted, uid=os.getuid())
    if row is None:
        known = ", ".join(f"{job.id} ({job.run_id})" for job in store.search(limit=5)) or "none"
        raise UnknownRunError(f"no job `{wanted}`", hint=f"the newest: {known}")
    return row


def job_of_run(run_dir: RunDir) -> JobRow | None:
    """The job of a run that was submitted; None for one that somebody ran himself."""
    return _row(str(run_dir.path.resolve()))


def run_of_job(wanted: str) -> RunDir | None:
    """The run of the job of that number or run, wherever it is."""
    row = _row(wanted)
    return RunDir(Path(row.run_dir)) if row else None


def _row(wanted: str) -> JobRow | None:
    return open_store(store_url()).find(wanted, uid=os.getuid()) if is_there_a_store() else None


def follow() -> None:
    """Ask the backends of all jobs that are not this machine's; one that does not answer is asked again later."""
    follow_all(open_store(store_url()), SystemClock())


def output_of(run_dir: RunDir, *, node: int | None, follow: bool) -> Iterator[str]:
    """What the backend of a run has of its output.

    Raises:
        UsageError: it has not got the job yet.
    """
    store = jobs()
    row = store.find(str(run_dir.path.resolve()))
    if row is None:
        raise UsageError(f"run {run_dir.run_id} was not submitted", hint=f"trainworks resume -b {run_dir.run_id}")
    if row.handle is None:
        hint = f"see `trainworks ps`, then: trainworks logs -f {run_dir.run_id}"
        raise UsageError(f"{row.engine} has not confirmed job {row.id} ({row.run_id}) yet", hint=hint)
    return backend_of(row, store).output(row.handle, node=node, follow=follow)


def backend_of(row: JobRow, store: JobStore) -> Backend:
    """The backend that has a job.

    Raises:
        EnvironmentProblem: the run directory, which names it, is gone.
    """
    if row.engine == LocalBackend.name:
        return LocalBackend(store)
    backend = backend_of_job(row, store=store)
    if backend is None:
        raise EnvironmentProblem(f"`{row.run_dir}` does not say any more where job {row.id} was submitted to")
    return backend


def backend_to_change(row: JobRow, store: JobStore) -> Backend:
    """The backend that has a job, for a user who may change the job.

    Raises:
        NotOwnerError: it belongs to another user.
        EnvironmentProblem: as `backend_of`.
    """
    check_may_change(row)
    return backend_of(row, store)


def handle_of(row: JobRow) -> str:
    """What its backend calls a job.

    Raises:
        UsageError: the backend has not got it yet.
    """
    if row.handle is None and row.engine != LocalBackend.name:
        raise UsageError(f"{row.engine} has not confirmed job {row.id} ({row.run_id}) yet", hint="trainworks ps")
    return row.handle or str(row.id)


def backend_on(cluster: str | None) -> Backend:
    """The backend that an option names: this machine's when it is left out.

    Raises:
        UsageError: it names none.
        RunFileError: a problem in the run file.
    """
    if cluster is None:
        return LocalBackend()
    if cluster.endswith((".yaml", ".yml")):
        return backend_for(load_run_file(Path(cluster))[0].cluster)
    return backend_for(RunFile.model_validate({"name": "any", "run": "true", "cluster": cluster}).cluster)


def submit_job(backend: Backend, spec: JobSpec, run_dir: RunDir) -> None:
    """Put a run into the queue of a backend.

    Raises:
        TrainworksError: the job was not accepted, and the run directory is as it was.
    """
    if not is_private(store_url()):
        say(_SHARED, err=True)
    if isinstance(backend, LocalBackend):
        backend.submit(backend.render(spec, run_dir), run_dir)
        return
    row = hand_over(open_store(store_url()), backend, spec, run_dir, SystemClock())
    if row.handle is None:
        warning = f"{row.reason or f'{row.engine} did not answer'}; job {row.id} ({row.run_id}) is accepted"
        say(f"warning: {warning}, and `trainworks ps` finds it there or submits it, once", err=True)


def stop_job(row: JobRow, *, at_once: bool) -> None:
    """Ask its backend for a clean end, or for any."""
    store = jobs()
    row = store.get(row.id) or row
    backend, clock = backend_to_change(row, store), SystemClock()
    if row.state.is_final:
        return
    if isinstance(backend, LocalBackend):
        backend.stop(str(row.id), at_once=at_once)
    elif row.handle is None:
        withdraw(store, row, clock)
    else:
        backend.stop(row.handle, at_once=at_once or row.asked_to_end == "stop")
        store.change(row.id, now=clock.now(), asked_to_end="kill" if at_once else "stop", asked_by=os.getuid())


def retry_job(row: JobRow, spec: JobSpec | None = None) -> None:
    """Put it back into its engine's queue, with another job spec if there is one."""
    store, clock = jobs(), SystemClock()
    backend, run_dir = backend_to_change(row, store), RunDir(Path(row.run_dir))
    row = _once_it_is_over(store, run_dir, store.get(row.id) or row, clock)
    if isinstance(backend, LocalBackend):
        backend.retry(backend.render(spec or row.spec, run_dir), run_dir, str(row.id))
    else:
        hand_over_again(store, backend, row, clock, spec)


def _once_it_is_over(store: JobStore, run_dir: RunDir, row: JobRow, clock: Clock) -> JobRow:
    """A run says that it has failed a moment before its backend does; no other job is waited for."""
    deadline = clock.now() + _BACKEND_NOTICES_S
    while not row.state.is_final and parse_state(run_dir.read_status().state).is_final and clock.now() < deadline:
        clock.sleep(_LOOK_S)
        follow_all(store, clock)
        row = store.get(row.id) or row
    return row


def watch_job(
    run_dir: RunDir, resolved: ResolvedRun, console: Console, *, since: float, start: Callable[[], None]
) -> JobState:
    """`watch` for a run that waits in a queue: `start` puts it there, and Ctrl-C asks its backend to stop it.

    What far nodes print is printed here until the job has ended, whoever ended it.
    """

    def stop(reason: str) -> bool:
        if (job := job_of_run(run_dir)) is None:
            return False
        stop_job(job, at_once=False)
        return True

    if not shares_files(resolved.run_file.cluster.engine):
        return _watch_far(run_dir, start)
    return watch(run_dir, resolved, console, since=since, start=start, stop=stop)


def _watch_far(run_dir: RunDir, start: Callable[[], None]) -> JobState:
    start()
    for stops in (False, True):
        try:
            for line in output_of(run_dir, node=None, follow=True):
                typer.echo(line)
            break
        except KeyboardInterrupt:
            job = job_of_run(run_dir)
            if stops or job is None:
                raise
            say("stopping; once more to leave it to itself", err=True)
            stop_job(job, at_once=False)
    while True:
        ended = find_job(jobs(), str(run_dir.path.resolve())).state
        if ended.is_final:
            return ended
        SystemClock().sleep(0.5)
