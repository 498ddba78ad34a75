"""`trainworks run`."""

from __future__ import annotations

from rich.console import Console

from trainworks.cli.launch import DryRun, Name, Nodes, ProcessesPerNode, Recalibrate, Target, prepare, wanted
from trainworks.cli.options import RunsOption
from trainworks.cli.outcome import raise_for_failure, say_stopped
from trainworks.cli.report import print_report
from trainworks.cli.watch import submit_and_watch
from trainworks.job.state import JobState

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
    """Ctrl-C stops the run with a checkpoint; `trainworks resume` goes on from there."""
    talk = Console(stderr=True)
    asked = wanted(target, nodes=nodes, nproc=nproc, name=name)
    prepared = prepare(asked, runs=runs, dry_run=dry_run, recalibrate=recalibrate, console=talk)
    if prepared is None:
        return
    run_dir, resolved = prepared
    if any((asked.run_file.job.hold, asked.run_file.job.depends_on, asked.run_file.job.time_limit)):
        talk.print("warning: `job` is for `trainworks submit`; `run` starts at once, without a limit", style="yellow")
    talk.print(f"run {run_dir.run_id} in {run_dir.path}", highlight=False)
    state = submit_and_watch(run_dir, resolved, talk, since=0.0)
    if resolved.plan is not None:
        print_report(run_dir)
    raise_for_failure(run_dir, state)
    if state is JobState.STOPPED:
        say_stopped(run_dir, talk)
