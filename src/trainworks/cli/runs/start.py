"""`trainworks run` and `submit`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainworks.cli.launch import StartOptions, Target, prepare, takes_start_options, wanted
from trainworks.cli.output import show_unused
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from trainworks.api.run_handle import Run


@takes_start_options
def run_command(target: Target, options: StartOptions) -> None:
    """Ctrl-C stops the run with a checkpoint; `trainworks resume` resumes it.

    A run on another cluster waits in its queue, and is watched from here.
    """
    from trainworks.api.run_request import one_run
    from trainworks.cli.runs.watch import watch_to_the_end
    from trainworks.report.rendering.console import SafeConsole

    talk = SafeConsole(stderr=True)
    wanted_runs = wanted(target, options)
    show_unused(wanted_runs)
    request = one_run(wanted_runs)
    launch = prepare(request, options, talk, queued=False)
    if launch is None:
        return
    job = request.run_file.job
    if request.run_file.cluster.engine == "local" and any((job.hold, job.depends_on, job.time_limit)):
        talk.print("warning: `run` ignores `job`; use `trainworks submit` to queue this run", style="yellow")
    talk.print(f"run {launch.run.id} in {launch.run.path}", highlight=False)
    watch_to_the_end(launch, talk)


@takes_start_options
def submit_command(
    target: Target,
    options: StartOptions,
    language: Annotated[
        Literal["jobset", "trainjob", "skypilot", "lsf", "run-file"] | None,
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
    from trainworks.api.run_request import job_in_format, jobs_of, not_kept, runs_of
    from trainworks.api.runs import chain_after
    from trainworks.report.rendering.console import SafeConsole

    talk = SafeConsole(stderr=True)
    request = wanted(target, options)
    if language is not None:
        if not options.dry_run:
            raise UsageError(f"`--as {language}` cannot submit", hint="add `--dry-run`, and submit the text yourself")
        typer.echo(job_in_format(request, language), nl=False)
        for lost in not_kept(runs_of(request)[0].run_file, language):
            say(f"note: {lost}", err=True)
        return
    show_unused(request)
    jobs = jobs_of(request, array)
    started: list[Run] = []
    for job in jobs:
        first = not started
        is_shown = first or job.needs_success  # the jobs of an array are alike
        launch = prepare(
            chain_after(job, started),
            replace(options, recalibrate=options.recalibrate and first, review=options.review and is_shown),
            talk,
            queued=True,
            ask=first and not yes,
            times=len(jobs) if is_shown else 0,
        )
        if launch is None:
            return
        launch.start()
        started.append(launch.run)
        typer.echo(launch.run.id)
