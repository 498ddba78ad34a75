"""`trainworks profile`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainworks.cli.options import OptionalRun, RunsOption, find
from trainworks.report.rendering.printable import say


def command(
    run: OptionalRun = None,
    steps: Annotated[str, typer.Option("--steps", metavar="FIRST:LAST", help="Steps to record, with both ends.")] = "",
    ranks: Annotated[str, typer.Option("--ranks", metavar="RANK,...", help="Ranks to record.")] = "0",
    background: Annotated[bool, typer.Option("--background", "-b", help="Do not wait for the traces.")] = False,
    runs: RunsOption = None,
) -> None:
    """Works while the run is starting or running. The traces go to `profiles/`, a summary to the report."""
    from trainworks.api.observing.profile import profile, profile_request
    from trainworks.report.rendering.console import SafeConsole
    from trainworks.report.runs.profile import profile_lines

    run_dir = find(run, runs).run_dir
    request = profile_request(run_dir, steps, ranks)
    wait = profile(run_dir, request)
    if background:
        return
    with SafeConsole(stderr=True).status(f"waiting for step {request.last_step:,} of {run_dir.run_id}"):
        folder = wait()
    for line in profile_lines(folder):
        say(line)
    say("open a trace at https://ui.perfetto.dev, or in chrome://tracing", err=True)
