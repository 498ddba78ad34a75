"""`trainworks catalog`."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

import trainworks
from trainworks.cli.arguments import complete_row
from trainworks.cli.options import AsJson
from trainworks.cli.output import show_facts
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

KINDS = (
    "accelerators, nodes, systems, links, switches, kernels, processors, storage, offers, fleets, runs, assumptions, "
    "grids, xids, software, anchors, terms"
)


def catalog_command(
    action: Annotated[
        Literal["list", "show", "lint", "update"],
        typer.Argument(metavar="list|show|lint|update", help="What to do.", show_default=False),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KIND|NAME|FILE|URL]",
            help=f"Kind to list: {KINDS}; or a name; or rows to update with.",
            autocompletion=complete_row,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Update without a question.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Remove the last update.")] = False,
    as_json: AsJson = False,
) -> None:
    """`list` prints rows, `show` every figure of one with its source; `lint` exits with 1 when figures disagree.

    `lint` also names rows that are too old. `update` checks the rows of a file or an https address, shows what changes,
    and takes them in place of those with the same names; your own rows, in `--catalog FILE`, win over both.
    """
    from trainworks.api.catalog import lint, old_rows, show
    from trainworks.report import catalog as view

    name, findings = " ".join(words or []), []
    if (yes or undo) and action != "update":
        raise UsageError("`--yes` and `--undo` are for `catalog update`", hint="leave them out")
    if action == "update":
        _update(name, yes=yes, undo=undo, as_json=as_json)
        return
    if action == "list":
        rows = trainworks.catalog(name)
        document, facts = view.list_document(rows), view.list_facts(rows)
    elif action == "show":
        row = show(name)
        document, facts = view.row_document(row, name), view.row_facts(row)
    else:
        findings, old = lint(), old_rows()
        document, facts = view.lint_document(findings, old), view.lint_facts(findings, old)
    show_facts(facts, lambda: document, as_json=as_json)
    if any(finding.explained is None for finding in findings):
        raise typer.Exit(1)


def _update(origin: str, *, yes: bool, undo: bool, as_json: bool) -> None:
    from trainworks.api.planning.catalog_update import install_update, read_update, undo_update
    from trainworks.report.catalog import update_document, update_facts

    if undo == bool(origin):
        hint = "`trainworks catalog update FILE`, or `trainworks catalog update --undo`"
        raise UsageError("`update` needs a file or an address, or `--undo`", hint=hint)
    if undo:
        removed, earlier = undo_update()
        say(f"removed {removed}; {earlier or 'the catalogue of this version'} counts again", err=True)
        return
    update = read_update(origin)
    show_facts(update_facts(update.changes), lambda: update_document(update.changes), as_json=as_json)
    if not update.changes:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("the update needs a terminal for its confirmation", hint="add `--yes`")
        typer.confirm("take these rows?", abort=True, err=True)
    say(f"written to {install_update(update)}; `trainworks catalog update --undo` goes back", err=True)
