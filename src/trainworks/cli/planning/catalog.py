"""`trainworks catalog`."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import AsJson
from trainworks.cli.output import show_document

KINDS = (
    "accelerators, nodes, systems, links, switches, kernels, processors, storage, offers, fleets, runs, assumptions, "
    "grids, xids, software, anchors, terms"
)


class CatalogAction(StrEnum):
    """What to do with the catalogue."""

    LIST = "list"
    SHOW = "show"
    LINT = "lint"


def command(
    action: Annotated[CatalogAction, typer.Argument(metavar="list|show|lint", help="What to do.", show_default=False)],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KIND|NAME]", help=f"Kind to list: {KINDS}; or a name.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """`list` prints rows, `show` every figure of one with its source; `lint` exits with 1 when figures disagree."""
    from trainworks.api.catalog import lint, show
    from trainworks.report import catalog as view

    name, findings = " ".join(words or []), []
    if action is CatalogAction.LIST:
        rows = trainworks.catalog(name)
        document, facts = view.list_document(rows), view.list_facts(rows)
    elif action is CatalogAction.SHOW:
        row = show(name)
        document, facts = view.row_document(row, name), view.row_facts(row)
    else:
        findings = lint()
        document, facts = view.lint_document(findings), view.lint_facts(findings)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        show_document(document)
    if any(finding.explained is None for finding in findings):
        raise typer.Exit(1)
