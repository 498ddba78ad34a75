"""`trainworks cost`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainworks.api.arguments import check_writable, option_value, said_by
from trainworks.api.cost_inputs import RunToPay, checked, parse_assumptions, read_prices, run_to_pay
from trainworks.api.cost_notes import notes_of, sentences_of
from trainworks.catalog.catalog import find_row
from trainworks.catalog.cluster import ClusterDescription, parse_cluster
from trainworks.cli.options import AsJson, Assume, Prices
from trainworks.cli.output import show
from trainworks.errors import UsageError
from trainworks.plan.assumptions import GIVEN
from trainworks.plan.cost.comparison import compare
from trainworks.plan.cost.energy import AVERAGE_GRID
from trainworks.plan.cost.owning import MOST_HOURS_OF_A_YEAR
from trainworks.plan.cost.renting import spot_waste
from trainworks.plan.cost.report import CostReport
from trainworks.plan.trace import Traced, fact
from trainworks.units import parse_duration, parse_usd

__all__ = ["command"]

USUAL_HOURS = 5000.0

RunFileOption = Annotated[Path | None, typer.Argument(metavar="[RUN_FILE]", help="YAML run file; a year without one.")]
On = Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help="The cluster: `DGX H100`, `8x p5.48xlarge`.")]
Hours = Annotated[
    float | None, typer.Option("--hours-per-year", metavar="H", help="Hours of training in a year; 5000 if left out.")
]
ServerPrice = Annotated[str | None, typer.Option("--server-price", metavar="USD", help="Price of a node: `350000USD`.")]
Electricity = Annotated[float | None, typer.Option("--electricity", metavar="USD/kWh", help="Price of electricity.")]
Pue = Annotated[float | None, typer.Option("--pue", metavar="RATIO", help="Power of the building over the nodes'.")]
Years = Annotated[float | None, typer.Option("--years", metavar="Y", help="Years of use of an own cluster.")]
Salary = Annotated[str | None, typer.Option("--salary", metavar="USD", help="A year of one person: `170kUSD`.")]
Colocation = Annotated[bool, typer.Option("--colocation", help="An own cluster stands in a rented data centre.")]
Grid = Annotated[str | None, typer.Option("--grid", metavar="NAME", help="Electricity of: `Germany`, `us-central1`.")]
SpotLife = Annotated[
    str | None, typer.Option("--spot-life", metavar="TIME", help="Mean time to preemption of a spot job: `3h`.")
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Write it all as an HTML page.")]
Explain = Annotated[str | None, typer.Option("--explain", metavar="FIGURE", help="Say how a figure comes about.")]


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
    """With a run file the price of that run, else of a year on the cluster of --on; all prices in US dollars."""
    given = parse_assumptions(assume or [])
    given |= _numbers(electricity=electricity, pue=pue, years=years)
    given |= _amounts(server_price=server_price, salary=salary, spot_life=spot_life)
    with said_by("--spot-life"):
        spot_waste(given)
    check_writable(plot, "--plot")
    report = _report(run_file, on, prices, _hours(hours_per_year), given=given, colocated=colocation, grid_name=grid)
    show(report, as_json=as_json, figure=explain, plot=plot)


def _numbers(*, electricity: float | None, pue: float | None, years: float | None) -> dict[str, float]:
    written = {
        "electricity": ("--electricity", electricity),
        "PUE": ("--pue", pue),
        "years of use": ("--years", years),
    }
    return {name: checked(name, value, place=option) for name, (option, value) in written.items() if value is not None}


def _amounts(*, server_price: str | None, salary: str | None, spot_life: str | None) -> dict[str, float]:
    parsers = {
        "server price": ("--server-price", server_price, parse_usd),
        "salary": ("--salary", salary, parse_usd),
        "spot life": ("--spot-life", spot_life, parse_duration),
    }
    given = {}
    for name, (option, text, parse) in parsers.items():
        value = option_value(option, parse, text, zero=True)
        if value is not None:
            given[name] = checked(name, value, place=option)
    return given


def _hours(asked: float | None) -> Traced:
    if asked is None:
        return fact("hours per year", USUAL_HOURS, "h", source="assumed: a well used cluster")
    if not 1 <= asked <= MOST_HOURS_OF_A_YEAR:
        limit = f"has to lie between 1 and {MOST_HOURS_OF_A_YEAR:,}"
        raise UsageError(f"{asked:g} hours of training a year, and it {limit}", place="--hours-per-year")
    return fact("hours per year", asked, "h", source=GIVEN)


def _report(
    run_file: Path | None,
    on: str | None,
    prices: str | None,
    hours_per_year: Traced,
    *,
    given: dict[str, float],
    colocated: bool,
    grid_name: str | None,
) -> CostReport:
    """The comparison with what is said of it."""
    with said_by("--grid"):
        grid_row = find_row(grid_name or AVERAGE_GRID, "grids")
    table = read_prices(prices)
    run = None if run_file is None else run_to_pay(run_file, on)
    cluster = _cluster(on) if run is None else run.cluster
    extra = () if run is None or run.own_price is None else (run.own_price,)
    found = compare(
        cluster,
        (*extra, *table.offers),
        hours=hours_per_year if run is None else run.hours,
        hours_per_year=None if run is None else hours_per_year,
        given=given,
        colocated=colocated,
        grid_name=grid_name,
    )
    return CostReport(
        title=_title(cluster, hours_per_year, run),
        comparison=found,
        grid=grid_row.name,
        notes=(*notes_of(found, table.offers, given, is_run=run is not None), *table.notes),
        sentences=tuple(sentences_of(found, None if run is None else run.budget_usd)),
        count=None if run is None else run.count,
        noun="tokens" if run is None else run.noun,
    )


def _cluster(on: str | None) -> ClusterDescription:
    if on is None:
        raise UsageError("what is it that costs?", hint='name a run file, or a cluster: `--on "DGX H100"`')
    with said_by("--on"):
        return parse_cluster(on)


def _title(cluster: ClusterDescription, hours_per_year: Traced, run: RunToPay | None) -> str:
    if run is None:
        return f"A year of {cluster.name}: {hours_per_year.value:,.0f} hours of training, in US dollars"
    return f"{run.name} on {cluster.name}: {run.hours.value:,.3g} hours, in US dollars"
