"""`trainworks cost`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import AsJson, Assume, Prices, check_writable, option_errors
from trainworks.cli.output import show

__all__ = ["command"]

RunFileOption = Annotated[
    Path | None, typer.Argument(metavar="[RUN_FILE]", help="YAML run file; a year when left out.")
]
On = Annotated[
    str | None, typer.Option("--on", metavar="CLUSTER", help="Cluster, e.g. `DGX H100` or `8x p5.48xlarge`.")
]
Hours = Annotated[
    float | None, typer.Option("--hours-per-year", metavar="H", help="Hours of training per year. [default: 5000]")
]
ServerPrice = Annotated[
    str | None, typer.Option("--server-price", metavar="USD", help="Price of a node, e.g. `350000USD`.")
]
Electricity = Annotated[float | None, typer.Option("--electricity", metavar="USD/kWh", help="Price of electricity.")]
Pue = Annotated[
    float | None, typer.Option("--pue", metavar="RATIO", help="Power of the building over that of the nodes.")
]
Years = Annotated[float | None, typer.Option("--years", metavar="Y", help="Years of use of an owned cluster.")]
Salary = Annotated[
    str | None, typer.Option("--salary", metavar="USD", help="Yearly cost of one person, e.g. `170kUSD`.")
]
Colocation = Annotated[bool, typer.Option("--colocation", help="Place an owned cluster in a rented data centre.")]
Grid = Annotated[
    str | None,
    typer.Option(
        "--grid", metavar="NAME", help="Country or cloud region of the electricity: `Germany`, `us-central1`."
    ),
]
SpotLife = Annotated[
    str | None, typer.Option("--spot-life", metavar="TIME", help="Mean time to preemption of a spot job, e.g. `3h`.")
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Write an HTML page.")]
Explain = Annotated[str | None, typer.Option("--explain", metavar="FIGURE", help="Print the derivation of a figure.")]


def command(
    run_file: RunFileOption = None,
    on: On = None,
    prices: Prices = None,
    hours_per_year: Hours = None,
    server_price: ServerPrice = None,
    electricity: Electricity = None,
    pue: Pue = None,
    years: Years = None,
    salary: Salary = None,
    colocation: Colocation = False,
    grid: Grid = None,
    spot_life: SpotLife = None,
    assume: Assume = None,
    plot: Plot = None,
    explain: Explain = None,
    as_json: AsJson = False,
) -> None:
    """Prices the run of a run file, or a year on the cluster of --on, in US dollars."""
    check_writable(plot, "--plot")
    with option_errors():
        report = trainworks.cost(
            run_file,
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
    show(report, as_json=as_json, figure=explain, plot=plot)
