"""Print a result: as text, as JSON, as the derivation of one figure, and its page as HTML and as PDF."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainworks.cli.options import check_writable, option_errors, warn, wide_console
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from rich.console import Console

    from trainworks.api.plan import Handover
    from trainworks.api.run_request import AnyRequest
    from trainworks.config.run_file import RunFile
    from trainworks.config.source import Source
    from trainworks.report.rendering.document import Document
    from trainworks.results import Result


Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write it as an HTML page, with pictures.", show_default=False),
]
Pdf = Annotated[
    Path | None, typer.Option("--pdf", metavar="FILE", help="Also write the page as PDF.", show_default=False)
]
_ENDINGS = {"--html": (".html", ".htm"), "--pdf": (".pdf",)}


def check_pages(html: Path | None, pdf: Path | None) -> None:
    """Refuse pages that cannot be written, before anything is computed.

    Raises:
        UsageError: a folder does not exist, a path is not a file, or its name says another format.
        MissingExtraError: the library that writes PDF is not installed.
    """
    for option, path in {"--html": html, "--pdf": pdf}.items():
        check_writable(path, option)
        if path is not None and path.suffix.lower() not in _ENDINGS[option]:
            ending = _ENDINGS[option][0]
            hint = f"name it `{path.with_suffix(ending)}`" if path.name else None
            raise UsageError(f"`{path}` does not end in {ending}", place=option, hint=hint)
    if pdf is not None:
        from trainworks.report.rendering.renderer import require_pdf

        require_pdf()


def write_pages(result: Result, html: Path | None, pdf: Path | None) -> None:
    """Write the pages that the options name, atomically; warn where a PDF lacks a character.

    Raises:
        EnvironmentProblem: a page cannot be written.
    """
    if html is not None:
        with option_errors("--html", html):
            result.write_html(html)
    if pdf is not None:
        with option_errors("--pdf", pdf):
            for note in result.write_pdf(pdf):
                warn(note)


def show(
    result: Result,
    *,
    as_json: bool = False,
    figure: str | None = None,
    html: Path | None = None,
    pdf: Path | None = None,
) -> None:
    """Print a result on stdout, as text unless an option says otherwise; write its pages as well.

    `figure` names one whose derivation is printed instead.

    Raises:
        UsageError: no figure has that name.
        EnvironmentProblem: a page cannot be written.
    """
    write_pages(result, html, pdf)
    if figure is not None:
        from trainworks.report.explain import explain

        typer.echo(explain(getattr(result, "figures", ()), figure))
    elif as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
    else:
        from trainworks.report.rendering.renderer import build_document

        show_document(build_document(result))


def show_facts(facts: object, document: Callable[[], Document], *, as_json: bool) -> None:
    """Print facts on stdout: as JSON, or as their document."""
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        show_document(document())


def show_document(document: Document) -> None:
    """Print a document on stdout."""
    from trainworks.report.rendering.text import print_document

    print_document(document, wide_console())


def show_handover(handover: Handover, *, as_json: bool) -> None:
    """Print a configuration on stdout, and its notes on stderr where it has no comments."""
    if as_json:
        typer.echo(json.dumps({"target": handover.target, "text": handover.text, "notes": handover.notes}, indent=2))
        return
    typer.echo(handover.text, nl=False)
    for note in () if handover.has_comments else handover.notes:
        say(f"note: {note}", err=True)


def show_findings(run_file: RunFile, source: Source | None, console: Console, *, refuse: bool) -> None:
    """Print what a review finds in a run; nothing if it finds nothing.

    Raises:
        UsageError: the run would end before its first step, if `refuse`.
    """
    from trainworks.api.proving.review import refuse_to_start, review_launch

    report = review_launch(run_file, source)
    if report.findings:
        from trainworks.report.rendering.renderer import build_document
        from trainworks.report.rendering.text import print_document

        print_document(build_document(report), console)
    if refuse:
        refuse_to_start(report, run_file, source)


def show_unused(request: AnyRequest) -> None:
    """Print which keys of a run file have no effect where the run starts."""
    from trainworks.api.run_request import runs_of

    for unused in (note for run in runs_of(request) for note in run.unused):
        say(f"note: {unused}", err=True)
