"""`trainworks report`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from trainworks.cli.arguments import OptionalRun
from trainworks.cli.options import AsJson, RunsOption, find
from trainworks.cli.output import Html, Pdf, check_pages, write_pages
from trainworks.cli.runs.record import say_pending_copies
from trainworks.report.rendering.printable import say


def report_command(
    run: OptionalRun = None,
    runs: RunsOption = None,
    html: Html = None,
    pdf: Pdf = None,
    no_html: Annotated[bool, typer.Option("--no-html", help="Do not write report.html beside the record.")] = False,
    as_json: AsJson = False,
) -> None:
    """Works during the run, too. Every number comes from the run's own record. The page is `report.html` beside it, or
    the file of `--html`.
    """
    check_pages(html, pdf)
    found = find(run, runs)
    if html is None and not as_json and not no_html:
        html = found.run_dir.report_file
    report = found.report()
    write_pages(report, html, pdf)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
        return
    from trainworks.report.rendering.console import SafeConsole
    from trainworks.report.rendering.renderer import build_document
    from trainworks.report.rendering.text import print_document

    print_document(build_document(report), SafeConsole())
    for page in filter(None, (html, pdf)):
        say(f"page: {page}", err=True)
    say_pending_copies(found)
