"""`trainworks why`, `compare`, `usage` and `profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import trainworks
from trainworks.cli.options import AsJson, OptionalRun, RunsOption, find, warn
from trainworks.cli.output import show
from trainworks.report.rendering.printable import say


def why_command(
    run: OptionalRun = None,
    runs: RunsOption = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Also write an HTML page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Lists the causes in order of the seconds that they cost, each with evidence from the record and a remedy.

    Works during the run, too. The planner prices the remedies with the rates that the run was planned with.
    """
    show(trainworks.why(find(run, runs)), as_json=as_json, plot=plot)


def compare_command(
    first: Annotated[str, typer.Argument(metavar="RUN", help="Run id or folder.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="The run to compare with it.")],
    runs: RunsOption = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Also write an HTML page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Shows settings that differ, the parts of a step, throughput, memory, losses at the same steps, and cost.

    Differences are those of the second run relative to the first.
    """
    show(trainworks.compare(find(first, runs), find(second, runs)), as_json=as_json, plot=plot)


def usage_command(
    by: Annotated[
        Literal["month", "user", "team"] | None,
        typer.Option("--by", help="A row for each of these; all three by default."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Accelerator and core hours, and USD where run files give a price.

    The team of a job is `job.team`, else its account of Slurm or its queue of Kueue.
    """
    show(trainworks.usage(by, notify=warn), as_json=as_json)


def profile_command(
    run: OptionalRun = None,
    steps: Annotated[str, typer.Option("--steps", metavar="FIRST:LAST", help="Steps to record, with both ends.")] = "",
    ranks: Annotated[str, typer.Option("--ranks", metavar="RANK,...", help="Ranks to record.")] = "0",
    background: Annotated[bool, typer.Option("--background", "-b", help="Do not wait for the traces.")] = False,
    runs: RunsOption = None,
) -> None:
    """Works while the run is starting or running. The traces go to `profiles/`, a summary to the report."""
    from trainworks.api.observing.why import profile, profile_request
    from trainworks.report.artifacts import profile_lines
    from trainworks.report.rendering.console import SafeConsole

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
