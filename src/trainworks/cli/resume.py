"""`trainworks resume`."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer
from rich.console import Console

from trainworks.agent.launch import supervised, take_run
from trainworks.api.resolve import resolve
from trainworks.backends.registry import backend_of_run
from trainworks.cli.jobs import job_of_run, retry_job, submit_job, watch_job
from trainworks.cli.launch import spec
from trainworks.cli.options import OptionalRun, RunsOption, find
from trainworks.cli.outcome import raise_for_failure, say_stopped
from trainworks.cli.report import print_report
from trainworks.cli.standing import standing
from trainworks.cli.watch import submit_and_watch
from trainworks.config.run_file import OnNonfinite, OnSpike
from trainworks.errors import UsageError
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobRow
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.report.console import SafeConsole
from trainworks.report.run_progress import current_state

__all__ = ["command"]


def command(
    run: OptionalRun = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Continue on this number of nodes.")] = None,
    nproc: Annotated[
        int | None, typer.Option("--nproc", min=1, help="Continue with this number of ranks per node.")
    ] = None,
    nonfinite: Annotated[
        OnNonfinite | None, typer.Option("--nonfinite", help="New policy for steps that are not finite.")
    ] = None,
    spike: Annotated[OnSpike | None, typer.Option("--spike", help="New policy for spikes.")] = None,
    background: Annotated[
        bool, typer.Option("--background", "-b", help="Run in the background, independent of this shell.")
    ] = False,
    runs: RunsOption = None,
) -> None:
    """With another number of ranks, a new layout is planned; the order of the data stays the same."""
    run_dir = find(run, runs)
    _check_over(run_dir)
    lock = take_run(run_dir)  # before anything of the run changes: another `resume` may have come first
    resolved = run_dir.read_resolved()
    if nodes or nproc:
        resolved = _with_ranks(run_dir, resolved, nodes, nproc)
    if nonfinite or spike:
        resolved = _with_guard(run_dir, resolved, {"nonfinite": nonfinite, "spike": spike})
    if background:
        _queue_again(run_dir, resolved, job_of_run(run_dir), lock)
        typer.echo(run_dir.run_id)
        return
    talk = SafeConsole(stderr=True)
    final = _go_on(run_dir, resolved, talk, lock)
    if resolved.plan is not None:
        print_report(run_dir)
    raise_for_failure(run_dir, final)
    if final is JobState.STOPPED:
        say_stopped(run_dir, talk)


def _check_over(run_dir: RunDir) -> None:
    """Refuse a run that is live or has finished.

    Raises:
        UsageError: it is.
    """
    status = run_dir.read_status()
    state, _ = standing(run_dir, current_state(status))
    if not state.is_final and state is not JobState.CREATED:
        raise supervised(run_dir, status)
    if state is JobState.SUCCEEDED:
        raise UsageError(f"run {run_dir.run_id} has finished; there is nothing left to do")


def _go_on(run_dir: RunDir, resolved: ResolvedRun, talk: Console, lock: int) -> JobState:
    """Watch the run to its end: in its queue, if it came from one."""
    since = time.time()
    job = job_of_run(run_dir)
    if job is None and resolved.run_file.cluster.engine == "local":
        return submit_and_watch(run_dir, resolved, talk, since=since, lock=lock)
    return watch_job(run_dir, resolved, talk, since=since, start=lambda: _queue_again(run_dir, resolved, job, lock))


def _queue_again(run_dir: RunDir, resolved: ResolvedRun, job: JobRow | None, lock: int) -> None:
    """A run that was submitted goes back into its queue; one that was not comes into it. Frees the lock for those that
    start it there.
    """
    os.close(lock)
    if job is None:
        submit_job(backend_of_run(resolved), spec(resolved), run_dir)
    else:
        retry_job(job, spec(resolved))


def _with_guard(run_dir: RunDir, before: ResolvedRun, asked: dict[str, str | None]) -> ResolvedRun:
    """The same run with another answer to steps that cannot be right.

    Raises:
        UsageError: the run is a command, whose loss nobody sees.
    """
    if before.plan is None:
        raise UsageError(f"run {before.run_id} runs a command; `guard` is for a workload")
    guard = before.run_file.guard.model_copy(update={key: value for key, value in asked.items() if value})
    resolved = before.model_copy(update={"run_file": before.run_file.model_copy(update={"guard": guard})})
    run_dir.write_resolved(resolved)
    return resolved


def _with_ranks(run_dir: RunDir, before: ResolvedRun, nodes: int | None, nproc: int | None) -> ResolvedRun:
    """The same run planned for other ranks; its number of steps is the one that it started with."""
    run_file = before.run_file.with_ranks(nodes, nproc).model_copy(update={"layout": None})
    command = list(before.command) if before.command else None
    resolved = resolve(run_file, None, run_id=before.run_id, runs=run_dir.path.parent, command=command)
    if resolved.plan is not None and before.plan is not None:
        plan = resolved.plan.model_copy(update={"num_steps": before.plan.num_steps})
        resolved = resolved.model_copy(update={"plan": plan})
    kept = {"created_at": before.created_at, "working_folder": before.working_folder}
    resolved = resolved.model_copy(update=kept)
    run_dir.write_resolved(resolved)
    return resolved
