"""`trainworks submit`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

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
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from trainworks.api.run_handle import Run


class JobFormat(StrEnum):
    """Formats of `--as`: a job for an engine that Trainworks does not talk to, or the run file that was read."""

    JOBSET = "jobset"
    TRAINJOB = "trainjob"
    SKYPILOT = "skypilot"
    LSF = "lsf"
    RUN_FILE = "run-file"


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
    language: Annotated[
        JobFormat | None,
        typer.Option("--as", help="With --dry-run, print the job in this format, for use without Trainworks."),
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(
            metavar="N|A-B|LIST",
            help="One job per index, as `1,3,5-7`, with `0-99%8` 8 at once; a command reads TRAINWORKS_ARRAY_INDEX.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation at a terminal.")] = False,
) -> None:
    """The run is independent of this shell. Prints the run id; `trainworks logs -f` follows the run."""
    from trainworks.api.run_request import array_members, job_in_format, not_kept
    from trainworks.api.runs import in_turn
    from trainworks.report.rendering.console import SafeConsole

    talk = SafeConsole(stderr=True)
    request = wanted(target, nodes=nodes, nproc=nproc, name=name, env=env)
    if language is not None:
        if not dry_run:
            raise UsageError(f"`--as {language}` cannot submit", hint="add `--dry-run`, and submit the text yourself")
        typer.echo(job_in_format(request, language), nl=False)
        for lost in not_kept(request.run_file, language):
            say(f"note: {lost}", err=True)
        return
    show_unused(request)
    members = array_members(request, array)
    started: list[Run] = []
    for member in members:
        first = not started
        launch = prepare(
            in_turn(member, started),
            runs=runs,
            dry_run=dry_run,
            planning=planned(recalibrate=recalibrate and first, without_learning=without_learning, tune=tune),
            console=talk,
            queued=True,
            review=review and (first or member.needs_success),
            ask=first and not yes,
            times=len(members) if first or member.needs_success else 0,
        )
        if launch is None:
            return
        launch.start()
        started.append(launch.run)
        typer.echo(launch.run.id)
