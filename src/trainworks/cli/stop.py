"""`trainworks stop`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from trainworks.backends.local.attached import stop_supervisor
from trainworks.cli.following import following
from trainworks.cli.jobs import job_of_run, stop_job
from trainworks.cli.options import OptionalRun, RunsOption, find
from trainworks.errors import UsageError
from trainworks.host.clock import SystemClock
from trainworks.record.run_dir import RunDir
from trainworks.report.printable import say
from trainworks.report.run_progress import current_state

__all__ = ["command"]


def command(
    run: OptionalRun = None,
    now: Annotated[bool, typer.Option("--now", help="End it at once, without a checkpoint.")] = False,
    runs: RunsOption = None,
) -> None:
    """The command returns when the run has ended."""
    run_dir = find(run, runs)
    if (job := job_of_run(run_dir)) is not None and not job.state.is_final:
        stop_job(job, at_once=now)
        if job.uid != os.getuid():
            typer.echo(f"{run_dir.run_id} is asked to stop; its owner's queue ends it")
            return
    else:
        _stop_run(run_dir, at_once=now)
    ask_its_backend = following(run_dir)
    while not (state := current_state(run_dir.read_status())).is_final:
        ask_its_backend()
        SystemClock().sleep(0.1)
    say(f"{run_dir.run_id} {state}")


def _stop_run(run_dir: RunDir, *, at_once: bool) -> None:
    """A run that somebody started himself."""
    state = current_state(run_dir.read_status())
    if state.is_final or run_dir.read_status().supervisor_pid is None:
        raise UsageError(f"run {run_dir.run_id} is not running: {state}")
    stop_supervisor(run_dir, reason="trainworks stop")
    if at_once:
        SystemClock().sleep(0.2)
        stop_supervisor(run_dir, reason="trainworks stop --now")
