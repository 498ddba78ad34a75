"""`trainworks report`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from trainworks.cli.options import AsJson, OptionalRun, RunsOption, find
from trainworks.record.run_dir import RunDir
from trainworks.report.rendering.console import SafeConsole
from trainworks.report.rendering.printable import say
from trainworks.report.rendering.renderer import build_document
from trainworks.report.rendering.text import print_document
from trainworks.report.runs.run_progress import current_state
from trainworks.report.runs.summary import Report, build_report

__all__ = ["command", "print_report"]


def command(
    run: OptionalRun = None,
    runs: RunsOption = None,
    as_json: AsJson = False,
    html: Annotated[bool, typer.Option(help="Also write report.html.")] = True,
) -> None:
    """Works during the run, too. Every number comes from the run's own record."""
    run_dir = find(run, runs)
    if as_json:
        typer.echo(_build(run_dir).model_dump_json(indent=2))
    else:
        print_report(run_dir, html=html)


def print_report(run_dir: RunDir, *, html: bool = True) -> None:
    """Print the report to stdout and write the page beside the record."""
    report = _build(run_dir)
    print_document(build_document(report), SafeConsole())
    if html:
        report.write_html(run_dir.report_file)
        say(f"page: {run_dir.report_file}", err=True)


def _build(run_dir: RunDir) -> Report:
    return build_report(run_dir, time.time(), state=current_state(run_dir.read_status()))
