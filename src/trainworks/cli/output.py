"""Print a result: as text, as JSON, as the derivation of one figure, as an HTML page, or as files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainworks.cli.options import option_errors, wide_console
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from rich.console import Console

    from trainworks.api.plan import Handover
    from trainworks.api.proposal import Proposed
    from trainworks.api.run_request import AnyRequest
    from trainworks.config.run_file import RunFile
    from trainworks.config.source import Source
    from trainworks.report.rendering.document import Document
    from trainworks.results import Result


WriteStack = Annotated[
    Path | None,
    typer.Option("--write-stack", metavar="FILE", help="Write a stack file of the cluster, for `trainworks deploy`."),
]
ToFolder = Annotated[
    Path | None, typer.Option("--to", metavar="FOLDER", help="Write the files to this folder instead of printing them.")
]


def show(result: Result, *, as_json: bool = False, figure: str | None = None, plot: Path | None = None) -> None:
    """Print a result on stdout, as text unless an option says otherwise; write the page of `--plot` as well.

    `figure` names one whose derivation is printed instead.

    Raises:
        UsageError: no figure has that name.
        EnvironmentProblem: the page cannot be written.
    """
    if plot is not None:
        with option_errors("--plot", plot):
            result.write_html(plot)
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


def write_proposed_stack(proposal: Proposed, path: Path) -> None:
    """Write the stack file of a proposed cluster, and say on stderr what follows."""
    from trainworks.api.proposal import stack_yaml

    with option_errors():
        write_file(path, stack_yaml(proposal), "--write-stack")
    say(f"note: fill in the marked lines of {path}, then: trainworks deploy check {path}", err=True)


def write_file(path: Path, content: str, option: str) -> None:
    """Write the file that an option names, atomically; errors name the option."""
    from trainworks.files import write_atomic

    with option_errors(option, path):
        write_atomic(path, content)


def print_or_write(files: Mapping[str, str], to: Path | None) -> None:
    """Print the files under their names, or write them to a folder; scripts become executable."""
    if to is None:
        for name, text in files.items():
            typer.echo(f"# --- {name}")
            typer.echo(text, nl=False)
        return
    from trainworks.files import write_atomic

    for name, text in files.items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(to / name, text)
        (to / name).chmod(0o755 if name.endswith(".sh") else 0o644)
        typer.echo(to / name)
