"""Options that `run`, `submit` and `plan` share, and the steps from their arguments to a run that can start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainworks.cli.forecast import confirmed, show_forecast
from trainworks.cli.options import Env, announce, runs_folder, warn
from trainworks.cli.output import show_findings
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from rich.console import Console

    from trainworks.api.launching.planning import Planning
    from trainworks.api.run_request import RunRequest
    from trainworks.api.runs import Launch

Target = Annotated[
    list[str], typer.Argument(metavar="RUN_FILE | -- COMMAND...", help="Run file, or a command after `--`.")
]
Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes, each with its own agent.")]
ProcessesPerNode = Annotated[int | None, typer.Option("--nproc", min=1, help="Ranks per node.")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the run [default: the run file's].")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be started, without starting it.")]
Recalibrate = Annotated[bool, typer.Option("--recalibrate", help="Measure this machine again before planning.")]
Tune = Annotated[
    int, typer.Option("--tune", min=0, metavar="N", help="Train the best N layouts for a few steps; run the fastest.")
]
Review = Annotated[bool, typer.Option("--review/--no-review", help="Review the run file, and the scripts it names.")]
WithoutLearning = Annotated[
    bool, typer.Option("--without-learning", help="Plan without what finished runs and calibrations taught.")
]


def wanted(target: list[str], *, nodes: int | None, nproc: int | None, name: str | None, env: Env) -> RunRequest:
    """Read the run that the arguments describe, and print remarks on it; see `read_request`."""
    from trainworks.api.run_request import read_request

    request = read_request(target, nodes=nodes, nproc=nproc, name=name, env=env or ())
    for note in request.notes:
        say(f"note: {note}", err=True)
    return request


def planned(*, recalibrate: bool, without_learning: bool, tune: int) -> Planning:
    """How the plan of a run comes about, by the options."""
    from trainworks.api.launching.planning import Planning

    return Planning(again=recalibrate, learning=not without_learning, tune=tune, announce=announce)


def prepare(
    request: RunRequest,
    *,
    runs: Path | None,
    dry_run: bool,
    planning: Planning,
    console: Console,
    queued: bool,
    review: bool = True,
    ask: bool = False,
    times: int = 1,
) -> Launch | None:
    """Resolve the run, print its plan and make its run directory; None after a dry run or a refusal at the prompt.

    A run that cannot start is refused before it has a run directory.

    Args:
        request: the run.
        runs: folder of all runs, instead of the run file's.
        dry_run: print what would be started, and start nothing.
        planning: what is measured for the plan.
        console: for the plan.
        queued: whether a run on this machine enters its queue; a run elsewhere always does.
        review: show findings, and refuse a run that would end before its first step.
        ask: whether to ask for confirmation at a terminal.
        times: number of such jobs; 0 for one whose cost an earlier one has shown.
    """
    from trainworks.api.launching.prepared_run import prepare as prepare_run
    from trainworks.api.runs import create_launch

    if review:
        show_findings(request.run_file, request.source, console, refuse=True)
    folder = runs_folder(runs, request.run_file.checkpoint.to)
    prepared = prepare_run(request, folder=folder, queued=queued, planning=planning)
    if prepared.resolved.plan is not None:
        from trainworks.report.local_plan import LAYOUTS
        from trainworks.report.rendering.renderer import build_document
        from trainworks.report.rendering.text import print_document

        document = build_document(prepared.resolved)
        print_document(document if dry_run or planning.tune else document.without(LAYOUTS), console)
    prepared.check()
    prepared = prepared.with_forecast(ask=not dry_run, learning=planning.learning)
    show_forecast(prepared, times, console)
    if dry_run:
        typer.echo(prepared.rendered(), nl=False)
        return None
    if note := prepared.probe():
        console.print(f"warning: {note}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    if ask and not confirmed(prepared, times, console):
        return None
    return create_launch(prepared, notify=warn)
