"""`trainworks review`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

import trainworks
from trainworks.cli.options import option_errors
from trainworks.cli.output import show, show_document
from trainworks.errors import UsageError
from trainworks.report.rendering.progress_bar import working

_RULES = "Rules by id or its start: `TW2,TW801`."


def review_command(
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH...", help="Files and folders.")] = None,
    select: Annotated[str | None, typer.Option(metavar="IDS", help=f"{_RULES} [default: all]")] = None,
    ignore: Annotated[str | None, typer.Option(metavar="IDS", help=f"Leave out. {_RULES}")] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Write safe corrections into the files.")] = False,
    output: Annotated[
        Literal["text", "json", "github", "sarif"],
        typer.Option("--format", metavar="text|json|github|sarif", help="Format of the findings."),
    ] = "text",
    explain: Annotated[
        str | None, typer.Option(metavar="ID|all", help="Print the page of a rule, or the list of all.")
    ] = None,
) -> None:
    """Reads shell and batch scripts, run files, Python, slurm.conf, Dockerfiles, requirements, manifests, DeepSpeed
    configurations, Markdown and text. Exits with 1 when there are findings.
    """
    from trainworks.api.proving.review import explained_rules
    from trainworks.report.proving import review as view

    if explain is not None:
        with option_errors():
            show_document(view.rules_document(explained_rules(explain)))
        return
    if not paths:
        raise UsageError("nothing to review", hint="name files or folders: `trainworks review .`")
    with option_errors(), working("reviewing"):
        report = trainworks.review(*paths, select=_ids(select), ignore=_ids(ignore), fix=fix)
    if output == "github":
        typer.echo(view.github_annotations(report.findings, Path.cwd()))
    elif output == "sarif":
        typer.echo(json.dumps(view.sarif(report.findings, explained_rules("all"), Path.cwd()), indent=2))
    else:
        show(report, as_json=output == "json")
    if report.findings:
        raise typer.Exit(1)


def _ids(option: str | None) -> list[str]:
    return [part.strip() for part in (option or "").split(",") if part.strip()]
