"""`trainworks report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainworks.cli.options import AsJson, OptionalRun, RunsOption, find
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from rich.console import Console

    from trainworks.api.run_handle import Run


def command(
    run: OptionalRun = None,
    runs: RunsOption = None,
    as_json: AsJson = False,
    html: Annotated[bool, typer.Option(help="Also write report.html.")] = True,
) -> None:
    """Works during the run, too. Every number comes from the run's own record."""
    found = find(run, runs)
    if as_json:
        typer.echo(found.report().model_dump_json(indent=2))
    else:
        print_report(found, html=html)


def print_report(run: Run, console: Console | None = None, *, html: bool = True) -> None:
    """Print the report to a console, stdout by default, and write the page beside the record."""
    from trainworks.report.rendering.console import SafeConsole
    from trainworks.report.rendering.renderer import build_document
    from trainworks.report.rendering.text import print_document

    report, page = run.report(), run.run_dir.report_file
    print_document(build_document(report), console or SafeConsole())
    if html:
        report.write_html(page)
        say(f"page: {page}", err=True)
    say_pending_copies(run)


def say_pending_copies(run: Run) -> None:
    """Say which places of `checkpoint.copies` are still to get the newest checkpoint."""
    for place in run.pending_copies():
        say(f"{run.id}: the newest checkpoint is still to be copied to {place}", err=True)
