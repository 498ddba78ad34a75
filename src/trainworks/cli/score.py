"""`trainworks score`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from trainworks.api.score import ScoreReport, score
from trainworks.cli.options import AsJson, check_writable
from trainworks.cli.score_view import print_refusals, print_score
from trainworks.files import write_atomic
from trainworks.report.console import SafeConsole
from trainworks.report.progress_bar import waiting

__all__ = ["command"]

_WIDTH = 160


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
        report = score(table, memory=memory, collectives=collectives, progress=progress)
    if out is not None:
        write_atomic(out, report.csv)
    if as_json:
        typer.echo(json.dumps(_as_mapping(report), indent=2))
        return
    console = SafeConsole() if sys.stdout.isatty() else SafeConsole(width=_WIDTH)
    for note in report.notes:
        console.print(f"note: {note}", highlight=False)
    print_score(report.score, console)
    print_refusals(report.rows, console)


def _as_mapping(report: ScoreReport) -> dict[str, Any]:
    refused = [asdict(row) for row in report.refusals]
    counts = {"table": report.table, "rows": len(report.rows), "predicted": len(report.rows) - len(refused)}
    return counts | asdict(report.score) | {"refused": refused, "notes": report.notes}
