"""`trainworks top`, `why`, `compare`, `usage`, `profile` and `track`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import trainworks
from trainworks.cli.arguments import OptionalRun, RunArgument, complete_run
from trainworks.cli.options import AsJson, RunsOption, find, option_errors, runs_folder, warn, wide_console
from trainworks.cli.output import Html, Pdf, check_pages, show
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from trainworks.api.observing.top import Overview


def top_command(
    runs: RunsOption = None,
    every: Annotated[float, typer.Option("--every", min=0.2, metavar="SECONDS", help="Time between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Shows runs that wait or run, the nodes of this machine's queue, and accelerators; Ctrl-C ends it.

    Without a terminal it prints once. A running run whose last step is old is marked.
    """
    from trainworks.api.observing.top import LiveRuns

    live = LiveRuns(runs_folder(runs))
    if once or as_json or not sys.stdout.isatty():
        show(live.look(), as_json=as_json)
        return
    _watch(live.follow(every))


def _watch(overviews: Iterator[Overview]) -> None:
    """Replace the picture in place until Ctrl-C."""
    from rich.live import Live
    from rich.text import Text

    from trainworks.report.rendering.renderer import build_document
    from trainworks.report.rendering.text import render_text

    console = wide_console()
    with Live(console=console, screen=True, auto_refresh=False) as picture:
        for overview in overviews:
            text = render_text(build_document(overview), width=console.width)
            picture.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


def why_command(
    run: OptionalRun = None,
    runs: RunsOption = None,
    html: Html = None,
    pdf: Pdf = None,
    as_json: AsJson = False,
) -> None:
    """Lists the causes in order of the seconds that they cost, each with evidence from the record and a remedy.

    Works during the run, too. The planner prices the remedies with the rates that the run was planned with.
    """
    check_pages(html, pdf)
    show(trainworks.why(find(run, runs)), as_json=as_json, html=html, pdf=pdf)


def compare_command(
    first: RunArgument,
    second: Annotated[
        str, typer.Argument(metavar="RUN", help="The run to compare with it.", autocompletion=complete_run)
    ],
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Further runs.", autocompletion=complete_run)
    ] = None,
    runs: RunsOption = None,
    html: Html = None,
    pdf: Pdf = None,
    as_json: AsJson = False,
) -> None:
    """Shows settings that differ, the parts of a step, throughput, memory, losses at the same steps, and cost.

    Differences are those of the second run relative to the first. Three runs or more lie over each other; those that
    differ by their seed alone have one curve, the mean, with its spread.
    """
    check_pages(html, pdf)
    found = [find(name, runs) for name in (first, second, *(more or ()))]
    show(trainworks.compare(*found), as_json=as_json, html=html, pdf=pdf)


def usage_command(
    by: Annotated[
        Literal["month", "user", "team"] | None,
        typer.Option("--by", help="A row for each of these; all three by default."),
    ] = None,
    html: Html = None,
    pdf: Pdf = None,
    as_json: AsJson = False,
) -> None:
    """Accelerator and core hours, and USD where run files give a price.

    The team of a job is `job.team`, else its account of Slurm or its queue of Kueue.
    """
    check_pages(html, pdf)
    show(trainworks.usage(by, notify=warn), as_json=as_json, html=html, pdf=pdf)


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


def track_command(
    run: OptionalRun = None,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="TRACKER", help="tensorboard, mlflow or wandb. [default: those of the run file]"),
    ] = None,
    uri: Annotated[str | None, typer.Option(help="Tracking server of MLflow. [default: $MLFLOW_TRACKING_URI]")] = None,
    experiment: Annotated[
        str | None, typer.Option(help="Experiment of MLflow, project of W&B. [default: name of the run file]")
    ] = None,
    register_as: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Registered model of MLflow that gets the newest checkpoint.")
    ] = None,
    runs: RunsOption = None,
    as_json: AsJson = False,
) -> None:
    """Sends what the tracker lacks, of a run of the past or of a live one, and continues where the last call stopped.

    A run with `track:` in its run file is sent while it runs; this sends what could not be sent then.
    """
    with option_errors():
        report = trainworks.track(
            run, to or (), uri=uri, experiment=experiment, register_as=register_as, folder=runs_folder(runs)
        )
    show(report, as_json=as_json)
