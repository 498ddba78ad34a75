"""`trainworks size`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.arguments import Settings
from trainworks.cli.files import WriteStack, write_file, write_proposed_stack
from trainworks.cli.launch import WithoutLearning
from trainworks.cli.options import AsJson, Assume, Prices, check_writable, option_errors, read_settings
from trainworks.cli.output import Html, Pdf, check_pages, show
from trainworks.errors import UsageError
from trainworks.report.rendering.progress_bar import waiting


def size_command(
    run_files: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_FILE...", help="YAML run files; several files are teams that share a cluster."),
    ],
    settings: Settings = None,
    deadline: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time until the run is done; the goal of the run file when left out."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="USD", help="Budget of the run: `200000USD`.")
    ] = None,
    confidence: Annotated[
        str, typer.Option(metavar="SHARE", help="Required probability of meeting the deadline.")
    ] = "90%",
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Accelerator or node to consider; may be repeated.")
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE", help="Consider these nodes only: `8x A100-SXM-80GB over 8x HDR`; may be repeated."
        ),
    ] = None,
    processor: Annotated[str | None, typer.Option(metavar="NAME", help="Host CPU to validate: `EPYC 9654`.")] = None,
    contract: Annotated[
        list[str] | None,
        typer.Option(metavar="on-demand|reserved|spot|own", help="Contract to consider; may be repeated."),
    ] = None,
    region: Annotated[
        str | None, typer.Option(metavar="NAME", help="Region of the offers to rent: `eu`, `us-east-1`.")
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="What a provider has to state in --prices: `ISO 27001`; may be repeated."),
    ] = None,
    hours_per_year: Annotated[
        float | None,
        typer.Option(
            "--hours-per-year",
            metavar="H",
            help="Hours of training in a year on an owned cluster, which is priced as well.",
        ),
    ] = None,
    largest: Annotated[
        int | None,
        typer.Option(
            "--largest",
            metavar="NODES",
            min=1,
            max=65_536,
            help="Largest cluster to consider, in nodes; 1,024 when left out, or all nodes that are there.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="slurm|kubernetes",
            help="Scheduler that will run the job: size for Trainworks' own trainer, and write a file for `submit`.",
        ),
    ] = None,
    prices: Prices = None,
    assume: Assume = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the simulations.")] = 1,
    without_learning: WithoutLearning = False,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a run file with the proposed cluster and the planned layout."),
    ] = None,
    write_stack: WriteStack = None,
    bill: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the order list as CSV.")] = None,
    html: Html = None,
    pdf: Pdf = None,
    explain: Annotated[str | None, typer.Option(metavar="FIGURE", help="Print the derivation of a figure.")] = None,
    as_json: AsJson = False,
) -> None:
    """Plans every kind of node on offer, with failures and price, and proposes the cheapest that meets the goal."""
    check_pages(html, pdf)
    check_writable(write, "--write")
    check_writable(write_stack, "--write-stack")
    check_writable(bill, "--bill")
    if len(run_files) > 1 and any(option is not None for option in (write, write_stack, bill, html, pdf, explain)):
        raise UsageError(
            "--write, --write-stack, --bill, --html, --pdf and --explain are for one run file",
            hint="several are answered with one table",
        )
    with option_errors(), waiting("planning") as progress:
        result = trainworks.size(
            run_files if len(run_files) > 1 else run_files[0],
            settings=read_settings(settings),
            deadline=deadline,
            budget=budget,
            confidence=confidence,
            only=only or [],
            node=node or [],
            processor=processor,
            contract=contract or [],
            region=region,
            require=require or [],
            hours_per_year=hours_per_year,
            largest=largest,
            engine=engine,
            prices=prices,
            assume=assume or [],
            seed=seed,
            without_learning=without_learning,
            progress=progress,
        )
    if write is not None:
        write_file(write, result.run_yaml, "--write")  # type: ignore[union-attr]  # teams are refused above
    if bill is not None:
        write_file(bill, result.bill_csv, "--bill")  # type: ignore[union-attr]  # as above
    show(result, as_json=as_json, figure=explain, html=html, pdf=pdf)
    if write_stack is not None:  # last: some nodes have no stack file
        write_proposed_stack(result, write_stack)  # type: ignore[arg-type]  # as above
