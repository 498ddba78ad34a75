"""`trainworks run`."""

from __future__ import annotations

from trainworks.cli.launch import (
    DryRun,
    Name,
    Nodes,
    ProcessesPerNode,
    Recalibrate,
    Review,
    Target,
    Tune,
    WithoutLearning,
    planned,
    prepare,
    wanted,
)
from trainworks.cli.options import Env, RunsOption
from trainworks.cli.output import show_unused


def command(
    target: Target,
    nodes: Nodes = None,
    nproc: ProcessesPerNode = None,
    name: Name = None,
    env: Env = None,
    runs: RunsOption = None,
    dry_run: DryRun = False,
    review: Review = True,
    recalibrate: Recalibrate = False,
    without_learning: WithoutLearning = False,
    tune: Tune = 0,
) -> None:
    """Ctrl-C stops the run with a checkpoint; `trainworks resume` resumes it.

    A run on another cluster waits in its queue, and is watched from here.
    """
    from trainworks.cli.runs.watch import watch_to_the_end
    from trainworks.report.rendering.console import SafeConsole

    talk = SafeConsole(stderr=True)
    request = wanted(target, nodes=nodes, nproc=nproc, name=name, env=env)
    show_unused(request)
    launch = prepare(
        request,
        runs=runs,
        dry_run=dry_run,
        planning=planned(recalibrate=recalibrate, without_learning=without_learning, tune=tune),
        console=talk,
        queued=False,
        review=review,
    )
    if launch is None:
        return
    job = request.run_file.job
    if request.run_file.cluster.engine == "local" and any((job.hold, job.depends_on, job.time_limit)):
        talk.print("warning: `run` ignores `job`; use `trainworks submit` to queue this run", style="yellow")
    talk.print(f"run {launch.run.id} in {launch.run.path}", highlight=False)
    watch_to_the_end(launch, talk)
