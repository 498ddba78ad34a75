"""`trainworks accuracy`, `calibrate` and `score`: how well plans hold, and what corrects them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.arguments import On
from trainworks.cli.files import write_file
from trainworks.cli.launch import WithoutLearning
from trainworks.cli.options import AsJson, RunFilePath, check_writable, option_errors
from trainworks.cli.output import Html, Pdf, check_pages, show
from trainworks.report.rendering.printable import say
from trainworks.report.rendering.progress_bar import waiting


def accuracy_command(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[SOURCE]...", help="Folders of runs, and stores of others. [default: your own store]"),
    ] = None,
    machine: Annotated[str | None, typer.Option(metavar="NAME", help="Kind of machine, as the table names it.")] = None,
    html: Html = None,
    pdf: Pdf = None,
    as_json: AsJson = False,
) -> None:
    """A finished run is compared with the plan that it started with; later plans of that machine learn from it.

    For a team, name the folder where its runs are, or the `finished-runs.jsonl` of each user: errors by kind of machine
    and by term of the step, the share of runs inside their interval, and the runs farthest from their plans.
    """
    check_pages(html, pdf)
    with option_errors(positional={"sources": "SOURCE"}):
        report = trainworks.accuracy(machine, sources=sources or ())
    show(report, as_json=as_json, html=html, pdf=pdf)


def calibrate_command(
    run_file: RunFilePath,
    on: On = None,
    layout: Annotated[
        str,
        typer.Option(metavar="LAYOUT", help="The layout that ran: `tp=8,pp=4,micro_batch=1`; --step-time needs it."),
    ] = "",
    step_time: Annotated[str | None, typer.Option(metavar="TIME", help="Measured time of a step: `31.2 s`.")] = None,
    benchmark: Annotated[
        Path | None, typer.Option("--benchmark", metavar="FILE", help="Benchmark record of one node, JSON.")
    ] = None,
) -> None:
    """A measured step or a benchmark record calibrates later plans of this kind of cluster, and of no other."""
    with option_errors():
        result = trainworks.calibrate(run_file, on=on, layout=layout, step_time=step_time, benchmark=benchmark)
    show(result)
    say(f"stored in {result.path}", err=True)


def score_command(
    table: Annotated[Path, typer.Argument(metavar="TABLE.csv", help="Measurements, one per row.")],
    memory: Annotated[
        bool, typer.Option("--memory", help="The table has measured memory and out-of-memory runs.")
    ] = False,
    collectives: Annotated[bool, typer.Option("--collectives", help="The table has measured collectives.")] = False,
    without_learning: WithoutLearning = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write a prediction per row to this CSV.")] = None,
    html: Html = None,
    pdf: Pdf = None,
    as_json: AsJson = False,
) -> None:
    """Cells may be empty. Rows that cannot be predicted are listed with the reason; the others are scored."""
    check_pages(html, pdf)
    check_writable(out, "--out")
    with waiting("predicting") as progress:
        report = trainworks.score(
            table, memory=memory, collectives=collectives, without_learning=without_learning, progress=progress
        )
    if out is not None:
        write_file(out, report.csv, "--out")
    show(report, as_json=as_json, html=html, pdf=pdf)
