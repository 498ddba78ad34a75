"""`trainworks run`."""

from __future__ import annotations

from rich.console import Console

from trainworks.cli.launch import DryRun, Name, Nodes, ProcessesPerNode, Recalibrate, Target, launch, wanted
from trainworks.cli.options import RunsOption
from trainworks.cli.outcome import raise_for_failure, say_stopped
from trainworks.cli.report import print_report
from trainworks.cli.watch import watch
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
    run_dir = launch(asked, runs=runs, attached=True, dry_run=dry_run, recalibrate=recalibrate, console=talk)
    if run_dir is None:
        return
    talk.print(f"run {run_dir.run_id} in {run_dir.path}", highlight=False)
    plan = run_dir.read_resolved().plan
    state = watch(run_dir, talk, num_steps=plan.num_steps if plan else None, since=0.0)
    if plan is not None:
        print_report(run_dir)
    raise_for_failure(run_dir, state)
    if state is JobState.STOPPED:
        say_stopped(run_dir, talk)
