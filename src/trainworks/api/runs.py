"""Use cases of runs: run, submit and resume."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainworks.agent.environments.files import changed_since
from trainworks.agent.launch import supervised, take_run
from trainworks.api.launching.prepared_run import NODE_PLANNER, PreparedRun, prepare
from trainworks.api.notices import Notify, warn
from trainworks.api.observing.observers import observers_of, watch_queue
from trainworks.api.proving.review import refuse_to_start, review_launch
from trainworks.api.resuming.changes import UNCHANGED, ResumeChanges, RunChange, changed_run
from trainworks.api.run_handle import Run, find_run
from trainworks.api.run_request import RunRequest, RunTarget, Turn, jobs_of, read_request, read_run
from trainworks.backends.local.attached import AttachedBackend
from trainworks.backends.ownership import is_private
from trainworks.backends.registry import backend_of_run
from trainworks.backends.store_place import store_url
from trainworks.config.load import NO_SETTINGS, Settings
from trainworks.errors import TrainworksError, UsageError
from trainworks.host.clock import SystemClock
from trainworks.host.copies.bringing import bring_newest, places
from trainworks.host.copies.record_copy import record_of
from trainworks.jobs.job_spec import Dependency
from trainworks.jobs.spec_of_run import spec_of_run
from trainworks.jobs.state import JobState
from trainworks.measure.planning import AS_USUAL, Planning
from trainworks.record.events.job import ChangedEvent, SettingChange
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir

if TYPE_CHECKING:
    from trainworks.backends.backend import Backend
    from trainworks.jobs.job_spec import JobSpec
    from trainworks.report.runs.summary import Report

_RESUME_TAKES_S = 30.0
"""Time that a `resume` with the lock of a run has to plan it and to start its supervisor, on a busy machine."""
_SHARED_STORE = (
    "other users can write this job store: they can change what it says of this job, but not what the job runs"
)


@dataclass(frozen=True, slots=True)
class Launch:
    """A run directory whose run is ready to start.

    `start` starts the run, `stop` asks it to stop for a reason and returns False while there is nothing to stop yet.
    """

    run: Run
    start: Callable[[], None]
    stop: Callable[[str], bool]
    since: float = 0.0
    """Time of this launch; records of earlier launches are older."""
    changes: tuple[RunChange, ...] = ()
    """What a resumed run has otherwise than before."""


def create_launch(prepared: PreparedRun, *, notify: Notify = warn) -> Launch:
    """Make the run directory, and return the launch that starts the run."""
    run_dir, resolved = prepared.write_run_dir(notify=notify)
    if prepared.is_attached:
        launch = attached_launch(run_dir, resolved)
        return replace(launch, start=_discarded_on_error(run_dir)(launch.start))

    def start() -> None:
        with _discarded_on_error(run_dir):
            _submit_job(prepared.backend, spec_of_run(resolved), run_dir, prepared.request.turn, notify)
        watch_queue(run_dir, resolved.run_file)

    handle = Run(run_dir, notify)
    return Launch(handle, start, _stop_job(handle))


def _submit_job(backend: Backend, spec: JobSpec, run_dir: RunDir, turn: Turn | None, notify: Notify) -> None:
    """Put a run into the queue of a backend.

    A task of a pipeline behind one that has failed is in the queue as a failed job, however soon that happened; any
    other job that waits for a failed one is refused. What is true for all jobs of an array is said with the first one.

    Raises:
        TrainworksError: the job was not accepted; the run directory is as it was.
    """
    from trainworks.backends.remote import hand_over  # noqa: PLC0415 - imports the database
    from trainworks.backends.submission import check_dependencies  # noqa: PLC0415
    from trainworks.jobs.store import open_store  # noqa: PLC0415

    if spec.depends_on and not (turn is not None and turn.needs_success):
        check_dependencies(open_store(store_url()), spec, backend.name)
    if (turn is None or turn.first is None) and not is_private(store_url()):
        notify(_SHARED_STORE)
    if backend.name == "local":
        backend.submit(backend.render(spec, run_dir), run_dir)
        return
    row = hand_over(open_store(store_url()), backend, spec, run_dir, SystemClock())
    if row.handle is None and not row.state.is_final:
        problem = f"{row.reason or f'{row.engine} did not answer'}; job {row.id} ({row.run_id}) is accepted"
        notify(f"{problem}, and `trainworks ps` finds it there or submits it, once")


def attached_launch(run_dir: RunDir, resolved: ResolvedRun, *, lock: int | None = None, since: float = 0.0) -> Launch:
    """A launch that starts at once on this machine and ends with this process."""
    backend = AttachedBackend(resolved, lock=lock)

    def start() -> None:
        backend.submit(backend.render(spec_of_run(resolved), run_dir), run_dir)

    handle = Run(run_dir)
    return Launch(handle, start, handle.signal_stop, since)


def _stop_job(submitted: Run) -> Callable[[str], bool]:
    """`Launch.stop` of a run in a queue: stops its job."""

    def stop(reason: str) -> bool:
        job = submitted.job
        if job is not None:
            job.stop()
        return job is not None

    return stop


@contextmanager
def _discarded_on_error(run_dir: RunDir) -> Iterator[None]:
    """Delete a new run directory if its submission fails inside the block; a failure that its status records stays."""
    try:
        yield
    except (TrainworksError, OSError):
        if run_dir.read_status().state == JobState.CREATED:
            shutil.rmtree(run_dir.path, ignore_errors=True)
        raise


def run(
    target: RunTarget,
    *,
    nodes: int | None = None,
    nproc: int | None = None,
    name: str | None = None,
    settings: Settings = NO_SETTINGS,
    folder: Path | str | None = None,
    tune: int = 0,
    review: bool = True,
    wait: bool = True,
) -> Run:
    """Start a run at once on this machine, or in the queue of the cluster its run file names.

    Args:
        target: a run file by its path, as an object or as a mapping; or a command as a list of words.
        nodes: number of nodes instead of the run file's.
        nproc: ranks per node instead of the run file's.
        name: name of the run instead of the run file's.
        settings: other values by key of the run file: `{"optimizer.lr": 1e-4}`; text is read as YAML.
        folder: folder of all runs, instead of the run file's `checkpoint.to`.
        tune: layouts to train for a few steps each on this machine, of which the fastest runs.
        review: warn of what a review finds in the run and its scripts, and refuse a run that would end before its
            first step.
        wait: return when the run has ended.

    Returns:
        The run. A run on this machine ends with this process. With `wait`, a notebook or a terminal shows its progress.

    Raises:
        RunFileError: a problem in the run file.
        UsageError: the run cannot start as requested.
        RunFailedError: the run failed, if `wait`.

    Examples:
        >>> import tempfile
        >>> str(run(["true"], folder=tempfile.mkdtemp()).state)
        'SUCCEEDED'
    """
    request = read_run(target, nodes=nodes, nproc=nproc, name=name, settings=settings)
    launch = _launch(request, folder, queued=False, review=review, planning=Planning(tune=tune))
    launch.start()
    return _ended(launch) if wait else launch.run


def _ended(launch: Launch) -> Run:
    """Wait for the end of a run, and show its progress in a notebook or on a terminal; elsewhere nothing is printed."""
    from trainworks.report.live import view_of  # noqa: PLC0415 - imports rich
    from trainworks.report.rendering.console import SafeConsole  # noqa: PLC0415

    console = SafeConsole(stderr=True)
    console.quiet = not console.is_terminal
    with view_of(launch.run.resolved, console) as view:
        for progress in launch.run.poll(since=launch.since):
            view.show(progress, time.time())
    return launch.run.check()


def submit(
    target: RunTarget,
    *,
    nodes: int | None = None,
    nproc: int | None = None,
    name: str | None = None,
    settings: Settings = NO_SETTINGS,
    folder: Path | str | None = None,
    review: bool = True,
) -> Run:
    """Put a run into the queue of its cluster, or of this machine; the run survives this process.

    Args and errors are those of `run`. `submit(...).job` is the job; `submit(...).follow()` follows the run.

    Examples:
        >>> import tempfile
        >>> str(submit(["true"], folder=tempfile.mkdtemp()).wait())
        'SUCCEEDED'
    """
    launch = _launch(
        read_run(target, nodes=nodes, nproc=nproc, name=name, settings=settings), folder, queued=True, review=review
    )
    launch.start()
    return launch.run


def submit_array(
    target: RunTarget,
    indexes: str | None = None,
    *,
    settings: Settings = NO_SETTINGS,
    folder: Path | str | None = None,
) -> list[Run]:
    """Submit one job per index: the same command, which finds its index in TRAINWORKS_ARRAY_INDEX; or a pipeline.

    Args:
        target: a command, a run file or a batch script, as for `run`; or a pipeline of SkyPilot tasks.
        indexes: `8` for 0 to 7, `3-10`, `0-20:4`, `1,3,5-7`, or `0-99%8` to run 8 at once; by default those of the
            batch script.
        settings: other values by key of the run file: `{"optimizer.lr": 1e-4}`; text is read as YAML.
        folder: folder of all runs.

    Raises:
        UsageError: the indexes are invalid, the run is a workload, or a job cannot start as requested.

    Examples:
        >>> import tempfile
        >>> [str(one.wait()) for one in submit_array(["true"], "2", folder=tempfile.mkdtemp())]
        ['SUCCEEDED', 'SUCCEEDED']
    """
    runs: list[Run] = []
    for job in jobs_of(read_request(target, settings=settings), indexes):
        launch = _launch(chain_after(job, runs), folder, queued=True, review=not runs or job.needs_success)
        launch.start()
        runs.append(launch.run)
    return runs


def chain_after(request: RunRequest, started: Sequence[Run]) -> RunRequest:
    """A job of an array or pipeline that waits for the end of an earlier one, so that at most `at_once` of them run.

    The jobs form `at_once` lanes: each waits for the one before it in its lane. A lane may run dry before the others. A
    job of an array also shares the kept code of the first one. A `request` that is a run of its own waits for none of
    those that have `started`.
    """
    if (turn := request.turn) is None:
        return request
    if started and not turn.needs_success:
        request = replace(request, turn=replace(turn, first=started[0].run_dir))
    if turn.at_once is None or len(started) < turn.at_once:
        return request
    before, job = started[-turn.at_once].job, request.run_file.job
    if before is None:
        return request
    depends_on = (*job.depends_on, str(Dependency(str(before.id), needs_success=turn.needs_success)))
    update = {"job": job.model_copy(update={"depends_on": depends_on})}
    return replace(request, run_file=request.run_file.model_copy(update=update))


def _launch(
    request: RunRequest, folder: Path | str | None, *, queued: bool, review: bool, planning: Planning = AS_USUAL
) -> Launch:
    for remark in (*request.notes, *request.unused):
        warn(remark)
    if review:
        report = review_launch(request.run_file, request.source)
        refuse_to_start(report, request.run_file, request.source)
        for finding in report.findings:
            warn(f"{finding.place}: {finding.rule}: {finding.message}")
    target = Path(folder or request.run_file.checkpoint.to)
    prepared = prepare(request, folder=target, queued=queued, planning=planning).with_forecast()
    prepared.check()
    if note := prepared.probe():
        logging.getLogger("trainworks").warning(note)
    return create_launch(prepared)


def resume(
    name: str | None = None,
    *,
    nodes: int | None = None,
    nproc: int | None = None,
    settings: Settings = NO_SETTINGS,
    folder: Path | str = "runs",
    background: bool = False,
    wait: bool = True,
) -> Run:
    """Resume a run from its newest complete checkpoint, in its folder or in one of `checkpoint.copies`.

    The order of the data is unchanged.

    Args:
        name: id or path of the run; the newest run of the folder when None.
        nodes: another number of nodes.
        nproc: another number of ranks per node.
        settings: other values by key of the run file: `{"optimizer.lr": 1e-4}`. A run that has finished continues with
            a longer `train_for`.
        folder: folder of all runs.
        background: put the run into its queue, so that it survives this process.
        wait: return when the run has ended; ignored in the background.

    Raises:
        UsageError: the run is live or has finished, or a key cannot change.
        RunFileError: a value is not valid.
        RunFailedError: the run failed, if `wait`.

    Examples:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> failed = run(["false"], folder=folder, wait=False)
        >>> str(failed.wait())
        'FAILED'
        >>> str(resume(failed.id, folder=folder, wait=False).wait())
        'FAILED'
    """
    wanted = ResumeChanges(nodes=nodes, nproc=nproc, settings=settings)
    launch = prepare_resume(find_run(name, folder), wanted, background=background)
    launch.start()
    return _ended(launch) if wait and not background else launch.run


def _bring_here(stopped: Run) -> None:
    """Bring what a run continues from: the newest checkpoint of all places; rented nodes do so, and have the record."""
    if record_of(stopped.resolved.run_file, stopped.id) is not None:
        stopped.with_record()
    else:
        bring_newest(stopped.run_dir, places(stopped.run_dir))


def prepare_resume(stopped: Run, wanted: ResumeChanges = UNCHANGED, *, background: bool = False) -> Launch:
    """Write the changed resolved run, and return the launch that resumes it; see `resume`.

    The run returns to the queue it was submitted to; a run started by `run` starts at once, unless in the background.
    """
    run_dir = stopped.run_dir
    _check_ended(stopped, extends=wanted.extends)
    lock = take_run(run_dir, handover_s=_RESUME_TAKES_S)  # before the run changes: another `resume` may be first
    try:
        _bring_here(stopped)
        resolved, changes = changed_run(run_dir, wanted, node_planner=NODE_PLANNER)
    except BaseException:
        os.close(lock)
        raise
    if resolved.environment is not None and (note := changed_since(resolved.environment)):
        stopped.notify(note)
    observers = observers_of(resolved.run_file)  # their modules may have moved since the run was made
    if changes or observers != resolved.observers:
        resolved = resolved.model_copy(update={"observers": observers})
        run_dir.write_resolved(resolved)
    if changes:
        said = [SettingChange(key=one.key, before=one.before, after=one.after) for one in changes]
        run_dir.note(ChangedEvent(kind="changed", changes=said))
    job, since = stopped.job, time.time()
    if job is None and resolved.run_file.cluster.engine == "local" and not background:
        return replace(attached_launch(run_dir, resolved, lock=lock, since=since), changes=tuple(changes))

    def queue_again() -> None:
        os.close(lock)  # the process that starts the run takes it
        if job is None:
            _submit_job(backend_of_run(resolved), spec_of_run(resolved), run_dir, None, stopped.notify)
        else:
            job.retry(spec_of_run(resolved), extends=wanted.extends)
        watch_queue(run_dir, resolved.run_file)

    return Launch(stopped, queue_again, _stop_job(stopped), since, tuple(changes))


def _check_ended(stopped: Run, *, extends: bool) -> None:
    """Refuse a run that is live, or that has finished and gets no more steps."""
    state, _ = stopped.standing()
    if not state.is_final and state is not JobState.CREATED:
        raise supervised(stopped.run_dir, stopped.status)
    if state is JobState.SUCCEEDED and not extends:
        hint = "train it longer with `--train-for`, which counts from its first step"
        raise UsageError(f"run {stopped.id} has finished: there is nothing to resume", hint=hint)


def report(name: str | None = None, folder: Path | str = "runs") -> Report:
    """What was planned and what happened in a run; the newest of the folder when no name is given.

    Raises:
        UnknownRunError: no such run.
    """
    return find_run(name, folder).report()
