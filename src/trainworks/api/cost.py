"""Price a run or a year: rent by every kind of contract, or own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from trainworks.api.inputs import (
    Quantity,
    RunInput,
    argument,
    check_number,
    check_settings,
    cluster_argument,
    described_run,
    money,
    quantity,
)
from trainworks.api.planning.described import plan_cluster
from trainworks.catalog.catalog import assumption, find_row, load_catalog
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.exchange import exchange_for, usd_of
from trainworks.catalog.facts import Offer
from trainworks.catalog.prices import PriceTable, parse_prices
from trainworks.config.load import NO_SETTINGS, Settings
from trainworks.config.recovery import Goal
from trainworks.errors import ArgumentError, EnvironmentProblem, UsageError
from trainworks.jobs.described_nodes import described_cluster
from trainworks.plan.assumptions import GIVEN
from trainworks.plan.cost.comparison import compare
from trainworks.plan.cost.energy import AVERAGE_GRID
from trainworks.plan.cost.owning import MOST_HOURS_OF_A_YEAR
from trainworks.plan.cost.renting import spot_waste
from trainworks.plan.cost.report import CostReport, notes_of, sentences_of
from trainworks.plan.job import unit_of
from trainworks.plan.sizing.candidates import your_price
from trainworks.plan.sizing.finish import TRIALS, simulated_finish
from trainworks.plan.trace import Traced, computed, fact
from trainworks.units import Money, parse_duration

USUAL_HOURS_PER_YEAR = 5000.0


def cost(
    run: RunInput | None = None,
    *,
    settings: Settings = NO_SETTINGS,
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
    """Price a run, or a year on a cluster, in the currency of its budget or of a price that is given, else US dollars.

    Args:
        run: a run file, or its path; a year on the cluster `on` without one.
        settings: other values by key of the run file: `{"optimizer.lr": 1e-4}`; text is read as YAML.
        on: description of the cluster.
        prices: offers from a CSV file, or `skypilot`; those of the catalogue when left out.
        hours_per_year: hours of training in a year on an owned cluster; 5,000 when left out.
        server_price: of a node, `350000 USD` or `250万元`, or a number in USD.
        electricity: USD per kWh.
        pue: power of the building over that of the nodes.
        years: years of use of an owned cluster.
        salary: of a year of one person, in the same forms.
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
    assumed = parse_assumptions(assume)
    of_server, of_staff = money("server_price", server_price, zero=True), money("salary", salary, zero=True)
    given = assumed | _replacements(
        electricity=("electricity", electricity),
        pue=("PUE", pue),
        years=("years of use", years),
        server_price=("server price", usd_of(of_server, assumed)),
        salary=("salary", usd_of(of_staff, assumed)),
        spot_life=("spot life", quantity("spot_life", spot_life, parse_duration, zero=True)),
    )
    with argument("spot_life"):
        spot_waste(given)
    with argument("grid"):
        grid_row = find_row(grid or AVERAGE_GRID, "grids")
    table, yearly = read_prices(prices), _hours_per_year(hours_per_year)
    check_settings(run, settings)
    paid = None if run is None else _paid_run(run, on, settings, given)
    exchange = exchange_for(*(paid.said if paid else ()), of_server, of_staff, given=given)
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
        held=paid.held if paid else None,
        own_price=paid.own_price if paid and not (given or colocation or hours_per_year) else None,
    )
    title = f"A year of {cluster.name}: {yearly.value:,.0f} hours of training, in {exchange.name}"
    if paid is not None:
        title = f"{paid.name} on {cluster.name}: {paid.hours.value:,.3g} hours, in {exchange.name}"
    return CostReport(
        title=title,
        comparison=comparison,
        grid=grid_row.name,
        count=paid.count if paid else None,
        noun=paid.noun if paid else "tokens",
        sentences=tuple(sentences_of(comparison, usd_of(paid.said[0], given) if paid else None, exchange)),
        notes=(
            *notes_of(comparison, table.offers, given, is_run=paid is not None, money=exchange),
            *exchange.notes,
            *table.notes,
        ),
        exchange=exchange,
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
    said: tuple[Money | None, Money | None]
    """Budget and price of an accelerator hour, where the run file has them."""
    held: ClusterDescription | None
    """All of your own cluster, of which the run may leave nodes idle; None for a rented one."""
    own_price: Traced | None
    """An hour of an accelerator of it by the run file."""


def _paid_run(run: RunInput, on: str | None, settings: Settings, given: Mapping[str, float]) -> _PaidRun:
    run_file, source = described_run(run, on, task="a run is priced", settings=settings)
    plan = plan_cluster(run_file.model_copy(update={"goal": Goal()}), source)
    best, workload = plan.best[0], run_file.workload
    low_s, median_s, high_s = simulated_finish(plan.job, best, plan.work, run_file)
    written = source.name if source else "the run file"
    run_time = computed(
        "run time",
        median_s,
        "s",
        by=f"simulation of {TRIALS} runs with their failures: {plan.steps:,} steps with {best.layout.describe()}, 80 %",
        low=low_s,
        high=high_s,
    )
    noun = unit_of(plan.job.shape)
    length = 1 if workload is None or noun != "tokens" else workload.data.sequence_length
    usd, is_own = usd_of(run_file.cluster.hour_price, given), run_file.cluster.contract == "own"
    node, priced_in = plan.job.cluster.node, f"{written}: cluster.usd_per_accelerator_hour"
    instance = node.name if node is not None and node.kind == "instance" else None
    return _PaidRun(
        name=run_file.name,
        cluster=plan.job.cluster,
        hours=(run_time / 3600).named("hours", "h"),
        count=fact("work", plan.steps * plan.global_batch * length, "", source=f"`{written}`"),
        noun=noun,
        offers=() if usd is None or is_own else (your_price(instance, plan.job.cluster, usd, priced_in),),
        said=(run_file.goal.budget, run_file.cluster.hour_price),
        held=described_cluster(run_file, source) if is_own else None,
        own_price=fact("own price", usd, "USD/h", source=f"`{written}`") if usd is not None and is_own else None,
    )


Assumptions = Mapping[str, float] | Iterable[str]
"""Numbers by the name of the assumption that they replace, or `NAME=VALUE` each."""

SKYPILOT = "skypilot"
SKYPILOT_FOLDER = Path(".sky/catalogs")

_ANY = (0.0, 1e12)
_SHARE = (0.0, 1.0)
LIMITS: dict[str, tuple[float, float]] = {
    "server price": (1.0, 1e9),
    "node power": (1.0, 1e6),
    "server price per power": (0.01, 1e4),
    "network share of capex": (0.0, 0.9),
    "power while training": _SHARE,
    "power while idle": _SHARE,
    "node power over accelerators": (1.0, 10.0),
    "electricity": (0.0, 10.0),
    "PUE": (1.0, 5.0),
    "colocation": _ANY,
    "staff, few nodes": (0.0, 100.0),
    "staff, many nodes": (0.0, 100.0),
    "salary": _ANY,
    "maintenance": _SHARE,
    "residual value": _SHARE,
    "years of use": (0.1, 50.0),
    "committed-use discount": (0.0, 0.99),
    "committed term": (0.0, 87600.0),
    "CNY per USD": (1.0, 100.0),
    "spot life": (1.0, 1e9),
    "spot save": (0.001, 1e6),
    "spot restart": (0.0, 1e6),
}
"""Assumptions that may be replaced, with the least and the largest plausible value."""


def parse_assumptions(assume: Assumptions) -> dict[str, float]:
    """Numbers that replace assumptions, by name.

    Raises:
        ArgumentError: no such assumption, one that is given twice, no number, or an implausible number.

    >>> parse_assumptions(["pue=1.2"])
    {'PUE': 1.2}
    """
    known = {each.lower(): each for each in LIMITS}
    numbers: dict[str, float] = {}
    for written, value in _pairs(assume):
        if written.lower() not in known:
            near = get_close_matches(written.lower(), known, n=3, cutoff=0.3) or list(known)[:3]
            hint = f"nearest are {', '.join(f'`{known[each]}`' for each in near)}"
            raise ArgumentError(f"unknown assumption `{written}`", argument="assume", hint=hint)
        name = known[written.lower()]
        if name in numbers:
            raise ArgumentError(f"`{name}` is given twice", argument="assume", hint=f'keep one `--assume "{name}=..."`')
        numbers[name] = check_assumption(name, value, argument="assume")
    return numbers


def _pairs(assume: Assumptions) -> list[tuple[str, float]]:
    if isinstance(assume, Mapping):
        return list(assume.items())
    pairs = []
    for text in assume:
        name, equals, value = text.rpartition("=")
        if not equals:
            hint = 'write it like `--assume "PUE=1.2"`'
            raise ArgumentError(f"`{text}` has no `=`", argument="assume", hint=hint)
        try:
            pairs.append((name.strip(), float(value)))
        except ValueError:
            hint = "write a plain number in the unit of `trainworks catalog list assumptions`"
            raise ArgumentError(f"`{text}` has no number", argument="assume", hint=hint) from None
    return pairs


def check_assumption(name: str, value: float, *, argument: str) -> float:
    """Check that a number for an assumption is plausible.

    Raises:
        ArgumentError: it lies outside of its limits.
    """
    low, high = LIMITS[name]
    if math.isfinite(value) and low <= value <= high:
        return value
    usual = "" if name in ("server price", "node power") else f"usual is {assumption(name).typical:g}"
    raise ArgumentError(
        f"{name} is {value:g}, and must lie between {low:g} and {high:g}", argument=argument, hint=usual
    )


def read_prices(prices: Path | str | None) -> PriceTable:
    """Offers of the catalogue, of a CSV file, or of an installed SkyPilot.

    Raises:
        ArgumentError: the file is missing, or is not a price table.
        EnvironmentProblem: SkyPilot has no catalogue on this machine.
    """
    if prices is None:
        return PriceTable(tuple(load_catalog().offers.values()))
    if prices == SKYPILOT:
        return _skypilot_prices()
    path = Path(prices)
    return _read(path, cloud=path.absolute().parent.name if path.name == "vms.csv" else path.stem)


def _skypilot_prices() -> PriceTable:
    folder = Path.home() / SKYPILOT_FOLDER
    versions = [path for path in folder.glob("v*") if path.name[1:].isdigit()]
    newest = max(versions, key=lambda path: int(path.name[1:]), default=None)
    files = sorted(newest.glob("*/vms.csv")) if newest else []
    if not files:
        raise EnvironmentProblem(
            f"no price table of SkyPilot in `{folder}`",
            place="--prices skypilot",
            hint="run SkyPilot once to fetch it, or name a table of your own: `--prices FILE`",
        )
    tables = [_read(path, cloud=path.parent.name) for path in files]
    return PriceTable(
        tuple(offer for table in tables for offer in table.offers),
        tuple(note for table in tables for note in table.notes),
    )


def _read(path: Path, *, cloud: str) -> PriceTable:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return parse_prices(lines, name=str(path), cloud=cloud)
    except OSError as error:
        raise ArgumentError(f"cannot read `{path}`: {error.strerror}", argument="prices") from None
    except UnicodeDecodeError:
        hint = "export the table as CSV in UTF-8"
        raise ArgumentError(f"cannot read `{path}`: not text in UTF-8", argument="prices", hint=hint) from None
