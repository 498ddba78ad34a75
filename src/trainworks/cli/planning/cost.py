"""`trainworks cost`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.arguments import Settings
from trainworks.cli.options import AsJson, Assume, Prices, option_errors, read_settings
from trainworks.cli.output import Html, Pdf, check_pages, show


def cost_command(
    run_file: Annotated[
        Path | None, typer.Argument(metavar="[RUN_FILE]", help="YAML run file; a year when left out.")
    ] = None,
    settings: Settings = None,
    on: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="Cluster, e.g. `DGX H100` or `8x p5.48xlarge`.")
    ] = None,
    prices: Prices = None,
    hours_per_year: Annotated[
        float | None, typer.Option("--hours-per-year", metavar="H", help="Hours of training per year. [default: 5000]")
    ] = None,
    server_price: Annotated[str | None, typer.Option(metavar="USD", help="Price of a node, e.g. `350000USD`.")] = None,
    electricity: Annotated[float | None, typer.Option(metavar="USD/kWh", help="Price of electricity.")] = None,
    pue: Annotated[
        float | None, typer.Option(metavar="RATIO", help="Power of the building over that of the nodes.")
    ] = None,
    years: Annotated[
        float | None, typer.Option("--years", metavar="Y", help="Years of use of an owned cluster.")
    ] = None,
    salary: Annotated[
        str | None, typer.Option(metavar="USD", help="Yearly cost of one person, e.g. `170kUSD`.")
    ] = None,
    colocation: Annotated[
        bool, typer.Option("--colocation", help="Place an owned cluster in a rented data centre.")
    ] = False,
    grid: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Country or cloud region of the electricity: `Germany`, `us-central1`."),
    ] = None,
    spot_life: Annotated[
        str | None, typer.Option(metavar="TIME", help="Mean time to preemption of a spot job, e.g. `3h`.")
    ] = None,
    assume: Assume = None,
    html: Html = None,
    pdf: Pdf = None,
    explain: Annotated[str | None, typer.Option(metavar="FIGURE", help="Print the derivation of a figure.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prices the run of a run file, or a year on the cluster of --on, in US dollars."""
    check_pages(html, pdf)
    with option_errors():
        report = trainworks.cost(
            run_file,
            settings=read_settings(settings),
            on=on,
            prices=prices,
            hours_per_year=hours_per_year,
            server_price=server_price,
            electricity=electricity,
            pue=pue,
            years=years,
            salary=salary,
            colocation=colocation,
            grid=grid,
            spot_life=spot_life,
            assume=assume or [],
        )
    show(report, as_json=as_json, figure=explain, html=html, pdf=pdf)
