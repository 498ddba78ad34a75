"""`trainworks drill`."""

from __future__ import annotations

from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import AsJson, RunsOption, option_errors, runs_folder
from trainworks.cli.output import Html, Pdf, check_pages, show
from trainworks.report.rendering.printable import say


def drill_command(
    run_file: Annotated[str, typer.Argument(metavar="RUN.yaml", help="Run file of a workload.", show_default=False)],
    faults: Annotated[
        list[str] | None, typer.Option("--fault", metavar="NAME", help="Only this fault; can be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Decides the order of the faults, and their victims.")] = 0,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes.")] = None,
    nproc: Annotated[int | None, typer.Option("--nproc", min=1, help="Ranks per node.")] = None,
    soak: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Soak: random faults for `30m`, 20 to 60 s apart.")
    ] = None,
    runs: RunsOption = None,
    as_json: AsJson = False,
    html: Html = None,
    pdf: Pdf = None,
) -> None:
    """Runs a workload without faults, then again while faults hit it from outside: kill-rank, kill-agent,
    kill-supervisor, stop-rank, slow-rank, preempt, flip-bit, truncate-shard, delete-shard, cut-network, full-disk,
    fail-store, lose-node. On this machine, or in the queue of a Slurm.

    Prints when each was noticed, what was decided, how long it took and how many steps it cost, and whether the losses
    are those of the run without faults. Exit code 1 if one was not survived.
    """
    check_pages(html, pdf)
    with option_errors(positional={"run_file": "RUN.yaml"}):
        report = trainworks.drill(
            run_file,
            faults=faults or (),
            seed=seed,
            nodes=nodes,
            nproc=nproc,
            soak=soak,
            folder=runs_folder(runs),
            progress=lambda line: say(line, err=True),
        )
    show(report, as_json=as_json, html=html, pdf=pdf)
    raise typer.Exit(0 if report.is_survived else 1)
