"""`trainworks catalog`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

import trainworks
from trainworks.cli.options import AsJson
from trainworks.cli.output import show_facts

KINDS = (
    "accelerators, nodes, systems, links, switches, kernels, processors, storage, offers, fleets, runs, assumptions, "
    "grids, xids, software, anchors, terms"
)


def catalog_command(
    action: Annotated[
        Literal["list", "show", "lint"],
        typer.Argument(metavar="list|show|lint", help="What to do.", show_default=False),
    ],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KIND|NAME]", help=f"Kind to list: {KINDS}; or a name.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """`list` prints rows, `show` every figure of one with its source; `lint` exits with 1 when figures disagree."""
    from trainworks.api.catalog import lint, show
    from trainworks.report import catalog as view

    name, findings = " ".join(words or []), []
    if action == "list":
        rows = trainworks.catalog(name)
        document, facts = view.list_document(rows), view.list_facts(rows)
    elif action == "show":
        row = show(name)
        document, facts = view.row_document(row, name), view.row_facts(row)
    else:
        findings = lint()
        document, facts = view.lint_document(findings), view.lint_facts(findings)
    show_facts(facts, lambda: document, as_json=as_json)
    if any(finding.explained is None for finding in findings):
        raise typer.Exit(1)
