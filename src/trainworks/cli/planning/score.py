"""`trainworks score`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.checks import check_writable
from trainworks.cli.options import AsJson
from trainworks.cli.output import show, write_file
from trainworks.report.rendering.progress_bar import waiting


def command(
    table: Annotated[Path, typer.Argument(metavar="TABLE.csv", help="Measurements, one per row.")],
    memory: Annotated[
        bool, typer.Option("--memory", help="The table has measured memory and out-of-memory runs.")
    ] = False,
    collectives: Annotated[bool, typer.Option("--collectives", help="The table has measured collectives.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write a prediction per row to this CSV.")] = None,
    as_json: AsJson = False,
) -> None:
    """Cells may be empty. Rows that cannot be predicted are listed with the reason; the others are scored."""
    check_writable(out, "--out")
    with waiting("predicting") as progress:
        report = trainworks.score(table, memory=memory, collectives=collectives, progress=progress)
    if out is not None:
        write_file(out, report.csv, "--out")
    show(report, as_json=as_json)
