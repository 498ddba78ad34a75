"""`trainworks run`."""

from __future__ import annotations

import importlib
from typing import Any

from trainworks.cli.launch import (
    DryRun,
    Name,
    Nodes,
    ProcessesPerNode,
    Recalibrate,
    Target,
    discarded_if_refused,
    prepare,
    spec,
    wanted,
)
from trainworks.cli.options import RunsOption
from trainworks.cli.outcome import raise_for_failure, say_stopped
from trainworks.cli.report import print_report
from trainworks.cli.watch import submit_and_watch
from trainworks.jobs.state import JobState
from trainworks.report.console import SafeConsole

__all__ = ["command"]


def command(
    target: Target,
    nodes: Nodes = None,
    nproc: ProcessesPerNode = None,
    name: Name = None,
    runs: RunsOption = None,
    dry_run: DryRun = False,
    recalibrate: Recalibrate = False,
) -> None:
    """Ctrl-C saves a checkpoint and stops the run; `trainworks resume` continues it.

    A run for a cluster waits in its queue, and is followed from here.
    """
    talk = SafeConsole(stderr=True)
    asked = wanted(target, nodes=nodes, nproc=nproc, name=name)
    prepared = prepare(asked, runs=runs, dry_run=dry_run, recalibrate=recalibrate, console=talk, queued=False)
    if prepared is None:
        return
    run_dir, backend = prepared.run_dir, prepared.backend
    if backend is None and any((asked.run_file.job.hold, asked.run_file.job.depends_on, asked.run_file.job.time_limit)):
        talk.print("warning: `job` is for `trainworks submit`; `run` starts at once, without a limit", style="yellow")
    talk.print(f"run {run_dir.run_id} in {run_dir.path}", highlight=False)
    if backend is None:
        state = submit_and_watch(run_dir, prepared.resolved, talk, since=0.0)
    else:
        jobs: Any = importlib.import_module("trainworks.cli.jobs")  # opens a database: not before it is needed

        def start() -> None:
            with discarded_if_refused(run_dir):
                jobs.submit_job(backend, spec(prepared.resolved), run_dir)

        state = jobs.watch_job(run_dir, prepared.resolved, talk, since=0.0, start=start)
    resolved = run_dir.read_resolved()
    if resolved.plan is not None:
        print_report(run_dir)
    raise_for_failure(run_dir, state)
    if state is JobState.STOPPED:
        say_stopped(run_dir, talk)
