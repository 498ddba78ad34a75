"""`trainworks resume`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainworks.cli.arguments import OptionalRun, Settings
from trainworks.cli.options import RunsOption, find, read_settings
from trainworks.config.guard_answers import OnNonfinite, OnSpike
from trainworks.report.rendering.printable import say


def resume_command(
    run: OptionalRun = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Resume on another number of nodes.")] = None,
    nproc: Annotated[int | None, typer.Option("--nproc", min=1, help="Resume with other ranks per node.")] = None,
    train_for: Annotated[
        str | None,
        typer.Option(
            "--train-for", metavar="LENGTH", help="End later or earlier: `600 steps`; also if it has finished."
        ),
    ] = None,
    layout: Annotated[
        str | None, typer.Option("--layout", metavar="auto|KEY=N,...", help="Train with another layout: `tp=2,pp=2`.")
    ] = None,
    settings: Settings = None,
    nonfinite: Annotated[
        OnNonfinite | None, typer.Option("--nonfinite", help="Change the answer to steps that are not finite.")
    ] = None,
    spike: Annotated[OnSpike | None, typer.Option("--spike", help="Change the answer to loss spikes.")] = None,
    background: Annotated[
        bool, typer.Option("--background", "-b", help="Do not watch the run; it survives this shell.")
    ] = False,
    runs: RunsOption = None,
) -> None:
    """Prints what changes. With another number of ranks, a new layout is planned; the order of the data stays the same.

    `--set` changes `optimizer`, `guard`, `recover`, `goal`, `checkpoint.every` and `checkpoint.keep`. The schedule of
    the learning rate follows the new length of the run.
    """
    from trainworks.api.resuming.changes import ResumeChanges
    from trainworks.api.runs import prepare_resume
    from trainworks.cli.runs.watch import watch_to_the_end
    from trainworks.report.rendering.console import SafeConsole

    wanted: dict[str, object] = dict(read_settings(settings))
    wanted |= {} if train_for is None else {"train_for": train_for}
    if layout is not None:  # `auto`, or a mapping from `tp=2,pp=2`
        parts = layout.split(",") if "=" in layout else ()
        wanted["layout"] = read_settings([part.strip() for part in parts]) or layout
    wanted |= {} if nonfinite is None else {"guard.nonfinite": nonfinite}
    wanted |= {} if spike is None else {"guard.spike": spike}
    changes = ResumeChanges(nodes=nodes, nproc=nproc, settings=wanted)
    launch = prepare_resume(find(run, runs), changes, background=background)
    for change in launch.changes:
        say(f"changed: {change}", err=True)
    if background:
        launch.start()
        typer.echo(launch.run.id)
    else:
        watch_to_the_end(launch, SafeConsole(stderr=True))
