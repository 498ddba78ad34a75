"""`trainworks resume`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainworks.cli.options import OptionalRun, RunsOption, find
from trainworks.config.guard_answers import OnNonfinite, OnSpike


def command(
    run: OptionalRun = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Resume on another number of nodes.")] = None,
    nproc: Annotated[int | None, typer.Option("--nproc", min=1, help="Resume with other ranks per node.")] = None,
    nonfinite: Annotated[
        OnNonfinite | None, typer.Option("--nonfinite", help="Change the answer to steps that are not finite.")
    ] = None,
    spike: Annotated[OnSpike | None, typer.Option("--spike", help="Change the answer to loss spikes.")] = None,
    background: Annotated[
        bool, typer.Option("--background", "-b", help="Do not watch the run; it survives this shell.")
    ] = False,
    runs: RunsOption = None,
) -> None:
    """With another number of ranks, a new layout is planned; the order of the data stays the same."""
    from trainworks.api.runs import prepare_resume
    from trainworks.cli.runs.watch import watch_to_the_end
    from trainworks.report.rendering.console import SafeConsole

    launch = prepare_resume(
        find(run, runs),
        nodes=nodes,
        nproc=nproc,
        nonfinite=nonfinite,
        spike=spike,
        background=background,
    )
    if background:
        launch.start()
        typer.echo(launch.run.id)
    else:
        watch_to_the_end(launch, SafeConsole(stderr=True))
