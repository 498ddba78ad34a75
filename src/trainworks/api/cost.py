"""Price a run or a year: rent by every kind of contract, or own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainworks.api.cost_inputs import Assumptions, check_assumption, parse_assumptions, read_prices
from trainworks.api.inputs import (
    Quantity,
    RunInput,
    argument,
    check_number,
    cluster_argument,
    described_run,
    quantity,
)
from trainworks.api.planning.described import plan_cluster
from trainworks.catalog.catalog import find_row
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Offer
from trainworks.config.run_file import Goal
from trainworks.errors import UsageError
from trainworks.plan.assumptions import GIVEN
from trainworks.plan.cost.comparison import YOU, compare
from trainworks.plan.cost.energy import AVERAGE_GRID
from trainworks.plan.cost.owning import MOST_HOURS_OF_A_YEAR
from trainworks.plan.cost.renting import spot_waste
from trainworks.plan.cost.report import CostReport, notes_of, sentences_of
from trainworks.plan.trace import Traced, computed, fact
from trainworks.units import parse_duration, parse_usd

USUAL_HOURS_PER_YEAR = 5000.0


def cost(
    run: RunInput | None = None,
    *,
    on: str | None = None,
    prices: Path | str | None = None,
    hours_per_year: float | None = None,
    server_price: Quantity | None = None,
    electricity: float | None = None,
    pue: float | None = None,
    years: float | None = None,
    salary: Quantity | None = None,
    colocation: bool = False,
    grid: str | None = None,
    spot_life: Quantity | None = None,
    assume: Assumptions = (),
) -> CostReport:
    """Price a run, or a year on a cluster, in US dollars.

    Args:
        run: a run file, or its path; a year on the cluster `on` without one.
        on: description of the cluster.
        prices: offers from a CSV file, or `skypilot`; those of the catalogue when left out.
        hours_per_year: hours of training in a year on an owned cluster; 5,000 when left out.
        server_price: USD for a node.
        electricity: USD per kWh.
        pue: power of the building over that of the nodes.
        years: years of use of an owned cluster.
        salary: USD for a year of one person.
        colocation: place an owned cluster in a rented data centre.
        grid: country or cloud region of the electricity.
        spot_life: mean time to preemption of a spot job.
        assume: numbers that replace assumptions, by name.

    Raises:
        UsageError: an argument is not valid, or neither a run nor a cluster is given.
        EnvironmentProblem: no layout of the run fits.

    >>> year = cost(on="DGX H100", hours_per_year=6000)
    >>> year.title
    'A year of DGX H100: 6,000 hours of training, in US dollars'
    """
    given = parse_assumptions(assume) | _replacements(
        electricity=("electricity", electricity),
        pue=("PUE", pue),
        years=("years of use", years),
        server_price=("server price", quantity("server_price", server_price, parse_usd, zero=True)),
        salary=("salary", quantity("salary", salary, parse_usd, zero=True)),
        spot_life=("spot life", quantity("spot_life", spot_life, parse_duration, zero=True)),
    )
    with argument("spot_life"):
        spot_waste(given)
    with argument("grid"):
        grid_row = find_row(grid or AVERAGE_GRID, "grids")
    table, yearly = read_prices(prices), _hours_per_year(hours_per_year)
    paid = None if run is None else _paid_run(run, on)
    if paid is None and on is None:
        raise UsageError("nothing to price: no run file and no cluster", hint='describe a cluster: `--on "DGX H100"`')
    cluster = paid.cluster if paid else cluster_argument(on or "")
    comparison = compare(
        cluster,
        (*(paid.offers if paid else ()), *table.offers),
        hours=paid.hours if paid else yearly,
        hours_per_year=yearly if paid else None,
        given=given,
        colocated=colocation,
        grid_name=grid,
    )
    return CostReport(
        title=_title(cluster, yearly, paid),
        comparison=comparison,
        grid=grid_row.name,
        count=paid.count if paid else None,
        noun=paid.noun if paid else "tokens",
        sentences=tuple(sentences_of(comparison, paid.budget_usd if paid else None)),
        notes=(*notes_of(comparison, table.offers, given, is_run=paid is not None), *table.notes),
    )


def _replacements(**values: tuple[str, float | None]) -> dict[str, float]:
    """Numbers that replace assumptions, from the assumption and the value of each argument."""
    return {
        name: check_assumption(name, value, argument=argument)
        for argument, (name, value) in values.items()
        if value is not None
    }


def _hours_per_year(hours: float | None) -> Traced:
    check_number("hours_per_year", hours, 1, MOST_HOURS_OF_A_YEAR)
    if hours is None:
        return fact("hours per year", USUAL_HOURS_PER_YEAR, "h", source="assumed: a well used cluster")
    return fact("hours per year", hours, "h", source=GIVEN)


@dataclass(frozen=True, slots=True)
class _PaidRun:
    """A planned run whose hours are paid."""

    name: str
    cluster: ClusterDescription
    hours: Traced
    count: Traced
    """Tokens or images of the whole run."""
    noun: str
    offers: tuple[Offer, ...]
    """The price of an accelerator hour in the run file, if there is one."""
    budget_usd: float | None


def _paid_run(run: RunInput, on: str | None) -> _PaidRun:
    run_file, source = described_run(run, on, task="a run is priced")
    plan = plan_cluster(run_file.model_copy(update={"goal": Goal()}), source)
    best, workload, (low_s, high_s) = plan.best[0], run_file.workload, plan.run_interval_s
    written = source.name if source else "the run file"
    run_time = computed(
        "run time",
        plan.run_time_s,
        "s",
        by=f"`trainworks plan`: {plan.steps:,} steps with {best.layout.describe()}, 80 % interval",
        low=low_s,
        high=high_s,
    )
    length = 1 if workload is None or workload.task == "image-classification" else workload.data.sequence_length
    usd = run_file.cluster.usd_per_accelerator_hour
    return _PaidRun(
        name=run_file.name,
        cluster=plan.job.cluster,
        hours=(run_time / 3600).named("hours", "h"),
        count=fact("work", plan.steps * plan.global_batch * length, "", source=f"`{written}`"),
        noun="images" if length == 1 else "tokens",
        offers=() if usd is None else (_own_offer(usd, plan.job.cluster, written),),
        budget_usd=run_file.goal.budget,
    )


def _own_offer(usd: float, cluster: ClusterDescription, written: str) -> Offer:
    return Offer(
        name="your price",
        provider=YOU,
        accelerator=cluster.accelerator.name,
        accelerators=1,
        usd_per_hour=usd,
        source=f"{written}: cluster.usd_per_accelerator_hour",
    )


def _title(cluster: ClusterDescription, hours_per_year: Traced, paid: _PaidRun | None) -> str:
    if paid is None:
        return f"A year of {cluster.name}: {hours_per_year.value:,.0f} hours of training, in US dollars"
    return f"{paid.name} on {cluster.name}: {paid.hours.value:,.3g} hours, in US dollars"
