"""`trainworks capacity`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trainworks.api.arguments import blamed_on, check_writable, option_value
from trainworks.api.capacity import CapacityPlan, Terms, limits_for, plan_capacity, read_trace, sampled
from trainworks.catalog.catalog import node as catalogue_node
from trainworks.catalog.facts import Node
from trainworks.cli.capacity_view import about, drawn, figures, plan_as_json, print_capacity
from trainworks.cli.options import AsJson, wide_console
from trainworks.errors import UsageError
from trainworks.files import write_atomic
from trainworks.plan.capacity.jobs import Job, trace_of, trace_text
from trainworks.plan.capacity.prices import prices_for
from trainworks.plan.capacity.service import Target
from trainworks.report.capacity_page import write_capacity_page
from trainworks.report.explain import explain as print_explained
from trainworks.units import format_duration, parse_duration, parse_share

__all__ = ["command"]

_WAIT = "4h"
"""The target when none is given."""

File = Annotated[Path, typer.Argument(metavar="TRACE.csv|TEAMS.yaml", help="Jobs that were submitted, or teams.")]
NodeName = Annotated[str | None, typer.Option("--node", help="Node of the catalogue: `DGX H100`.")]
Size = Annotated[int | None, typer.Option("--accelerators-per-node", min=1, max=1024, help="Instead of a node.")]
Fixed = Annotated[int | None, typer.Option("--fixed", min=0, max=100_000, help="Fixed nodes, own or reserved.")]
OnDemandMax = Annotated[int | None, typer.Option("--on-demand-max", min=0, max=100_000, help="Most on-demand nodes.")]
SpotMax = Annotated[int | None, typer.Option("--spot-max", min=0, max=100_000, help="Most spot nodes.")]
Price = Annotated[float | None, typer.Option("--price", help="On demand, USD per accelerator hour.")]
SpotPrice = Annotated[float | None, typer.Option("--spot-price", help="USD per accelerator hour.")]
OwnPrice = Annotated[float | None, typer.Option("--own-price", help="Of fixed nodes, USD per accelerator hour.")]
Latency = Annotated[str, typer.Option("--start-latency", help="From ordering a node to its first job.")]
Timeout = Annotated[str, typer.Option("--idle-timeout", help="An idle elastic node is given back after it.")]
Life = Annotated[str, typer.Option("--spot-node-life", help="Mean life of a spot node.")]
Wait = Annotated[str | None, typer.Option("--wait", help="That 90 % of a team's jobs wait at most; 4h if left out.")]
Deadlines = Annotated[
    str | None, typer.Option("--deadlines", metavar="SHARE", help="Share of a team's deadlines to meet, instead.")
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Write cost against wait as an HTML page.")]
SaveTrace = Annotated[Path | None, typer.Option("--save-trace", metavar="FILE", help="Write the sampled jobs as CSV.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of sampled jobs and of the lives of spot nodes.")]
Explain = Annotated[str | None, typer.Option("--explain", metavar="FIGURE", help="Where a figure comes from.")]


def command(
    file: File,
    node: NodeName = None,
    accelerators_per_node: Size = None,
    fixed: Fixed = None,
    on_demand_max: OnDemandMax = None,
    spot_max: SpotMax = None,
    price: Price = None,
    spot_price: SpotPrice = None,
    own_price: OwnPrice = None,
    start_latency: Latency = "5m",
    idle_timeout: Timeout = "15m",
    spot_life: Life = "8h",
    wait: Wait = None,
    deadlines: Deadlines = None,
    plot: Plot = None,
    save_trace: SaveTrace = None,
    seed: Seed = 1,
    explain: Explain = None,
    as_json: AsJson = False,
) -> None:
    """Says how many fixed nodes meet a target, what they leave spare, and what elastic nodes would change."""
    hardware, size = _node(node, accelerators_per_node)
    check_writable(plot, "--plot")
    check_writable(save_trace, "--save-trace")
    for option, usd in (("--price", price), ("--spot-price", spot_price), ("--own-price", own_price)):
        _check_price(usd, option)
    prices = prices_for(hardware, on_demand=price, spot=spot_price, fixed=own_price)
    target = _target(wait, deadlines)
    terms = Terms(
        start_latency_s=_seconds(start_latency, "--start-latency"),
        idle_timeout_s=_seconds(idle_timeout, "--idle-timeout"),
        spot_life_s=_seconds(spot_life, "--spot-node-life", least=60.0),
        seed=seed,
    )
    jobs = sampled(file, seed=seed)
    trace = read_trace(file) if jobs is None else trace_of(jobs)
    _save(save_trace, file, jobs, seed)
    limits = limits_for(trace, size, terms, fixed=fixed, on_demand=on_demand_max, spot=spot_max)
    plan = plan_capacity(file.name, trace, target, limits, prices)
    _plot(plot, plan)
    if explain is not None:
        typer.echo(print_explained(figures(plan), explain))
    elif as_json:
        typer.echo(json.dumps(plan_as_json(plan), indent=2))
    else:
        print_capacity(plan, wide_console())


def _node(name: str | None, accelerators: int | None) -> tuple[Node | None, int]:
    """The node, if it is one of the catalogue, and how many accelerators it has."""
    if name is not None and accelerators is not None:
        told = "`--node` says how many accelerators a node has"
        raise UsageError(told, place="--accelerators-per-node", hint="leave one of the two out")
    if name is not None:
        found = catalogue_node(name)
        return found, found.accelerators
    if accelerators is not None:
        return None, accelerators
    raise UsageError("no node is named", hint='say `--node "DGX H100"`, or `--accelerators-per-node 8 --price 3.50`')


def _seconds(text: str, option: str, *, least: float = 0.0) -> float:
    value = option_value(option, parse_duration, text, zero=True) or 0.0
    if value < least:
        raise UsageError(f"`{text}` is below {format_duration(least)}", place=option, hint="give a longer time")
    return value


def _check_price(usd: float | None, option: str) -> None:
    if usd is not None and not 0 <= usd < 1e6:
        raise UsageError(
            f"{usd:g} USD per accelerator hour is not between 0 and 1,000,000", place=option, hint="`3.50`"
        )


def _target(wait: str | None, deadlines: str | None) -> Target:
    share = option_value("--deadlines", parse_share, deadlines)
    if share is None:
        return Target(wait_s=_seconds(wait or _WAIT, "--wait"))
    if wait is not None:
        raise UsageError("one target at a time", place="--wait, --deadlines", hint="leave one of the two out")
    return Target(deadlines=share)


def _save(path: Path | None, file: Path, jobs: list[Job] | None, seed: int) -> None:
    if path is None:
        return
    if jobs is None:
        raise UsageError(f"`{file}` is a trace already", place="--save-trace", hint="give a YAML file of teams")
    with blamed_on("--save-trace", path):
        write_atomic(path, f"# Synthetic: sampled from {file.name} with seed {seed}.\n{trace_text(jobs)}")


def _plot(path: Path | None, plan: CapacityPlan) -> None:
    if path is None:
        return
    with blamed_on("--plot", path):
        write_capacity_page(
            path, title=f"Capacity for {plan.name}", about=about(plan), points=drawn(plan), target_s=plan.target.wait_s
        )
