"""Use cases of runs: run, submit and resume."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainworks.agent.launch import supervised, take_run
from trainworks.api.checkpointing.copies import bring_newest, places
from trainworks.api.environments.files import changed_since
from trainworks.api.notices import Notify, warn
from trainworks.api.observing.observers import check_observers, observers_of, watch_queue
from trainworks.api.proving.review import refuse_to_start, review_launch
from trainworks.api.resolve import AS_USUAL, Planning, resolve
from trainworks.api.resuming.changes import UNCHANGED, ResumeChanges, RunChange, changed_run
from trainworks.api.run_handle import Run, find_run
from trainworks.api.run_request import RunRequest, RunTarget, array_members, read_request
from trainworks.backends.backend import Backend
from trainworks.backends.local.attached import AttachedBackend
from trainworks.backends.registry import backend_of_run
from trainworks.config.load import Source
from trainworks.config.manifests.reading import ManifestSource
from trainworks.config.slurm.sbatch import BatchSource
from trainworks.errors import TrainworksError, UsageError
from trainworks.files import write_atomic
from trainworks.host.git import commit_of
from trainworks.jobs.dependency import Dependency
from trainworks.jobs.job_spec import JobSpec, spec_of_run
from trainworks.jobs.state import JobState
from trainworks.plan.cost.expected import ExpectedCost
from trainworks.record.events import append_event
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir, create_run_dir
from trainworks.report.runs.summary import Report

NODE_PLANNER = "trainworks.api.node_plan"
"""Module that plans a workload on the first node of its job."""
NODE_CHECK = "trainworks.api.proving.node_check"
"""Module that checks a node before the ranks of a job start there."""


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


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A resolved run before it has a run directory."""

    request: RunRequest
    resolved: ResolvedRun
    folder: Path
    backend: Backend
    is_attached: bool
    """True if the run starts at once on this machine and ends with this process; False if it enters a queue."""

    @property
    def spec(self) -> JobSpec:
        """What the run requests from its backend."""
        return spec_of_run(self.resolved)

    def rendered(self) -> str:
        """What `start` would submit, as text."""
        backend = AttachedBackend(self.resolved) if self.backend.name == "local" else self.backend
        return backend.render(self.spec, RunDir(self.folder / f"{self.resolved.run_id}-N")).text

    def with_forecast(self, *, ask: bool = True, learning: bool = True) -> PreparedRun:
        """Plan a job for another cluster by the catalogue, if its accelerators are known.

        Args:
            ask: let the scheduler say what its nodes have; else the run file alone does.
            learning: whether stored measurements of this kind of cluster correct the plan.

        Raises:
            LayoutError: the layout of the run file does not fit the accelerators or the model.
            EnvironmentProblem: the model does not fit into their memory.
        """
        if self.resolved.run_file.cluster.engine == "local":
            return self
        from trainworks.api.forecast import forecast  # noqa: PLC0415  # imports the catalogue

        source = self.request.source if isinstance(self.request.source, Source) else None
        backend = self.backend if ask else None
        found = forecast(self.resolved.run_file, source, backend, learning=learning)
        return replace(self, resolved=self.resolved.model_copy(update={"forecast": found}))

    def expected_cost(self, jobs: int = 1) -> ExpectedCost | None:
        """What so many of these jobs will cost, see `forecast.expected_cost`; None where nothing tells."""
        if not self.spec.node.accelerators:
            return None
        from trainworks.api.forecast import expected_cost  # noqa: PLC0415  # imports the catalogue

        return expected_cost(self.resolved, self.spec, jobs)

    def check(self) -> None:
        """Refuse what the backend can never run.

        Raises:
            UsageError: with the reason.
            MissingExtraError: the library of a tracker or of the messages is not installed.
        """
        self.backend.check(self.spec)
        if self.resolved.run_file.job.keep_code and not self.backend.shares_files:
            hint = "put the code into the image or a volume of the pods, and leave `job.keep_code` out"
            raise UsageError(f"{self.backend.name} does not support `job.keep_code`", hint=hint)
        if self.resolved.run_file.job.avoid_failing_nodes:
            from trainworks.api.proving.nodes import check_has_histories  # noqa: PLC0415 - imports the database

            check_has_histories(self.backend)
        check_observers(self.resolved.run_file)

    def probe(self) -> str | None:
        """Refuse what the backend would not accept now; returns a remark on cores that other jobs use, or None.

        Raises:
            UsageError: the backend would refuse the job.
            EnvironmentProblem: other jobs hold the accelerators a run needs at once.
        """
        self.backend.probe(self.spec)
        return self.backend.sharing_note() if isinstance(self.backend, AttachedBackend) else None

    def create(self, *, notify: Notify = warn) -> Launch:
        """Make the run directory."""
        resolved = self.resolved
        if resolved.run_file.job.avoid_failing_nodes and not self.is_attached:
            from trainworks.api.proving.nodes import avoid_failing_nodes  # noqa: PLC0415 - imports the database

            resolved = avoid_failing_nodes(resolved, self.spec, self.backend, notify=notify)
        run_dir = create_run_dir(self.folder, self.request.run_file.name)
        node_check = (NODE_CHECK,) if self.request.run_file.job.health else ()
        update = {
            "run_id": run_dir.run_id,
            "commit": commit_of(self.resolved.working_folder),
            "node_check": node_check,
            "observers": observers_of(self.request.run_file),
        }
        resolved = resolved.model_copy(update=update)
        try:
            source = self.request.source
            if source is not None and not isinstance(source, BatchSource | ManifestSource):
                write_atomic(run_dir.run_file, source.text)
            if resolved.run_file.job.keep_code:
                from trainworks.api.environments.kept_code import keep_code  # noqa: PLC0415 - few runs need tarfile and pathspec

                resolved = keep_code(resolved, run_dir, notify=notify)
            run_dir.write_resolved(resolved)
        except BaseException:
            shutil.rmtree(run_dir.path, ignore_errors=True)
            raise
        if self.is_attached:
            return attached_launch(run_dir, resolved)
        backend = self.backend

        def start() -> None:
            from trainworks.api.jobs import submit_job  # noqa: PLC0415 - imports the database

            with _discarded_on_error(run_dir):
                submit_job(backend, spec_of_run(resolved), run_dir, notify=notify)
            watch_queue(run_dir, resolved.run_file)

        handle = Run(run_dir, notify)
        return Launch(handle, start, _stop_job(handle))


def prepare(request: RunRequest, *, folder: Path, queued: bool, planning: Planning = AS_USUAL) -> PreparedRun:
    """Resolve a run for its backend.

    Args:
        request: the run file and its command.
        folder: folder of all runs.
        queued: put a run on this machine into its queue; a run elsewhere is always queued there.
        planning: what is measured for the plan of a run on this machine.

    Raises:
        UsageError: the request is an array or a pipeline, whose jobs are prepared one by one, or its jobs cannot wait
            for each other.
    """
    if request.array is not None or request.following:
        what = "a pipeline" if request.following else f"`--array={request.array}` in the script"
        message = f"{what} makes several jobs, and this starts one"
        raise UsageError(message, hint="use `trainworks submit`, or `trainworks.submit_array` in Python")
    resolved = resolve(
        request.run_file,
        request.source,
        run_id=request.run_file.name,
        runs=folder,
        command=request.command,
        planning=planning,
        node_planner=NODE_PLANNER,
    )
    is_attached = not queued and resolved.run_file.cluster.engine == "local"
    backend = AttachedBackend(resolved) if is_attached else backend_of_run(resolved)
    if request.at_once is not None and "depends_on" in backend.unsupported:
        what = "a pipeline" if request.needs_success else f"an array with `%{request.at_once}`"
        hint = "submit each task by itself" if request.needs_success else "leave out `%` and the number behind it"
        raise UsageError(f"{backend.name} cannot make a job wait for another, as {what} needs", hint=hint)
    return PreparedRun(request, resolved, folder, backend, is_attached)


def attached_launch(run_dir: RunDir, resolved: ResolvedRun, *, lock: int | None = None, since: float = 0.0) -> Launch:
    """A launch that starts at once on this machine and ends with this process."""
    backend = AttachedBackend(resolved, lock=lock)

    def start() -> None:
        backend.submit(backend.render(spec_of_run(resolved), run_dir), run_dir)

    handle = Run(run_dir)
    return Launch(handle, start, handle.signal_stop, since)


def _stop_job(submitted: Run) -> Callable[[str], bool]:
    def stop(reason: str) -> bool:
        job = submitted.job
        if job is not None:
            job.stop()
        return job is not None

    return stop


@contextmanager
def _discarded_on_error(run_dir: RunDir) -> Iterator[None]:
    """Delete a new run directory if its submission fails inside the block."""
    try:
        yield
    except (TrainworksError, OSError):
        shutil.rmtree(run_dir.path, ignore_errors=True)
        raise


def run(
    target: RunTarget,
    *,
    nodes: int | None = None,
    nproc: int | None = None,
    name: str | None = None,
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
        folder: folder of all runs, instead of the run file's `checkpoint.to`.
        tune: layouts to train for a few steps each on this machine, of which the fastest runs.
        review: warn of what a review finds in the run and its scripts, and refuse a run that would end before its
            first step.
        wait: return when the run has ended.

    Returns:
        The run. A run on this machine ends with this process.

    Raises:
        RunFileError: a problem in the run file.
        UsageError: the run cannot start as requested.
        RunFailedError: the run failed, if `wait`.

    Examples:
        >>> import tempfile
        >>> str(run(["true"], folder=tempfile.mkdtemp()).state)
        'SUCCEEDED'
    """
    request = read_request(target, nodes=nodes, nproc=nproc, name=name)
    launch = _launch(request, folder, queued=False, review=review, planning=Planning(tune=tune))
    launch.start()
    return _ended(launch.run) if wait else launch.run


def _ended(started: Run) -> Run:
    started.wait()
    return started.check()


def submit(
    target: RunTarget,
    *,
    nodes: int | None = None,
    nproc: int | None = None,
    name: str | None = None,
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
    launch = _launch(read_request(target, nodes=nodes, nproc=nproc, name=name), folder, queued=True, review=review)
    launch.start()
    return launch.run


def submit_array(target: RunTarget, indexes: str | None = None, *, folder: Path | str | None = None) -> list[Run]:
    """Submit one job per index: the same command, which finds its index in TRAINWORKS_ARRAY_INDEX; or a pipeline.

    Args:
        target: a command, a run file or a batch script, as for `run`; or a pipeline of SkyPilot tasks.
        indexes: `8` for 0 to 7, `3-10`, `0-20:4`, `1,3,5-7`, or `0-99%8` to run 8 at once; by default those of the
            batch script.
        folder: folder of all runs.

    Raises:
        UsageError: the indexes are invalid, the run is a workload, or a job cannot start as requested.

    Examples:
        >>> import tempfile
        >>> [str(one.wait()) for one in submit_array(["true"], "2", folder=tempfile.mkdtemp())]
        ['SUCCEEDED', 'SUCCEEDED']
    """
    members = array_members(read_request(target), indexes)
    runs: list[Run] = []
    for member in members:
        launch = _launch(in_turn(member, runs), folder, queued=True, review=not runs or member.needs_success)
        launch.start()
        runs.append(launch.run)
    return runs


def in_turn(member: RunRequest, started: Sequence[Run]) -> RunRequest:
    """A job of an array or pipeline that waits for the end of an earlier one, so that at most `at_once` of them run.

    The jobs form `at_once` lanes: each waits for the one before it in its lane. A lane may run dry before the others.

    Args:
        member: the next job of the array.
        started: the jobs before it.
    """
    if member.at_once is None or len(started) < member.at_once:
        return member
    before, job = started[-member.at_once].job, member.run_file.job
    if before is None:
        return member
    depends_on = (*job.depends_on, str(Dependency(str(before.id), needs_success=member.needs_success)))
    update = {"job": job.model_copy(update={"depends_on": depends_on})}
    return replace(member, run_file=member.run_file.model_copy(update=update))


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
    return prepared.create()


def resume(
    name: str | None = None,
    *,
    nodes: int | None = None,
    nproc: int | None = None,
    changes: Mapping[str, Any] | None = None,
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
        changes: other values by key of the run file: `{"optimizer.lr": 1e-4, "train_for": "600 steps"}`. A run that has
            finished continues with a longer `train_for`.
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
    wanted = ResumeChanges(nodes=nodes, nproc=nproc, settings=changes or {})
    launch = prepare_resume(find_run(name, folder), wanted, background=background)
    launch.start()
    return _ended(launch.run) if wait and not background else launch.run


def prepare_resume(stopped: Run, wanted: ResumeChanges = UNCHANGED, *, background: bool = False) -> Launch:
    """Write the changed resolved run, and return the launch that resumes it; see `resume`.

    The run returns to the queue it was submitted to; a run started by `run` starts at once, unless in the background.
    """
    run_dir = stopped.run_dir
    _check_ended(stopped, extends=wanted.extends)
    lock = take_run(run_dir)  # before the run changes: another `resume` may be first
    try:
        bring_newest(run_dir, places(run_dir))
        resolved, changes = changed_run(run_dir, wanted, node_planner=NODE_PLANNER)
    except BaseException:
        os.close(lock)
        raise
    if resolved.environment is not None and (note := changed_since(resolved.environment)):
        stopped.notify(note)
    if changes:
        run_dir.write_resolved(resolved)
        said = [{"key": one.key, "before": one.before, "after": one.after} for one in changes]
        append_event(run_dir.events_file, "changed", changes=said)
    job, since = stopped.job, time.time()
    if job is None and resolved.run_file.cluster.engine == "local" and not background:
        launch = attached_launch(run_dir, resolved, lock=lock, since=since)
        return replace(launch, changes=tuple(changes))

    def queue_again() -> None:
        from trainworks.api.jobs import submit_job  # noqa: PLC0415

        os.close(lock)  # the process that starts the run takes it
        if job is None:
            submit_job(backend_of_run(resolved), spec_of_run(resolved), run_dir, notify=stopped.notify)
        else:
            job.retry(spec_of_run(resolved), extends=wanted.extends)
        watch_queue(run_dir, resolved.run_file)

    return Launch(stopped, queue_again, _stop_job(stopped), since, tuple(changes))


def _check_ended(stopped: Run, *, extends: bool) -> None:
    """Refuse a run that is live, or that has finished and gets no more steps.

    Raises:
        UsageError: it is.
    """
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
