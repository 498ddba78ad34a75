"""`trainworks score`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from trainworks.cli.options import AsJson
from trainworks.cli.score_view import print_refusals, print_score
from trainworks.errors import UsageError
from trainworks.files import write_atomic
from trainworks.measure.measured_clusters import remarks_left_out
from trainworks.measure.scoring import TABLES, Prediction, Refusal, Score, predictions_csv
from trainworks.measure.tables import read_table
from trainworks.report.console import SafeConsole
from trainworks.report.progress_bar import counted

__all__ = ["command"]

_WIDTH = 160


def command(
    table: Annotated[Path, typer.Argument(metavar="TABLE.csv", help="Measurements, one per row.")],
    memory: Annotated[bool, typer.Option("--memory", help="The table is of memory that runs used or lacked.")] = False,
    collectives: Annotated[bool, typer.Option("--collectives", help="The table is of timed collectives.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the prediction of every row to this CSV.")] = None,
    as_json: AsJson = False,
) -> None:
    """Any cell may be empty. A row that cannot be predicted is refused with the reason; the others are scored."""
    if memory and collectives:
        raise UsageError("`--memory` and `--collectives` are two tables", hint="score them one after the other")
    if out is not None and not out.absolute().parent.is_dir():
        raise UsageError(f"`{out.parent}` is no folder", place="--out")
    name = "memory" if memory else "collectives" if collectives else "runs"
    rows = read_table(table, TABLES[name].columns)
    results = [TABLES[name].predict(row) for row in counted(rows, "predicting")]
    score = TABLES[name].score(results)
    if out is not None:
        write_atomic(out, predictions_csv(results, with_fit=memory))
    if as_json:
        typer.echo(json.dumps(_as_mapping(name, results, score) | {"notes": remarks_left_out(rows)}, indent=2))
        return
    console = SafeConsole() if sys.stdout.isatty() else SafeConsole(width=_WIDTH)
    for note in remarks_left_out(rows):
        console.print(f"note: {note}", highlight=False)
    print_score(score, console)
    print_refusals(results, console)


def _as_mapping(name: str, results: Sequence[Prediction], score: Score) -> dict[str, Any]:
    refused = [asdict(result) for result in results if isinstance(result, Refusal)]
    counts = {"table": name, "rows": len(results), "predicted": len(results) - len(refused)}
    return counts | asdict(score) | {"refused": refused}
