"""Replay a trace of jobs, or the jobs of teams: waiting time against cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trainworks.api.inputs import Progress, Quantity, check_number, no_progress, seconds, share
from trainworks.catalog.catalog import node as catalogue_node
from trainworks.catalog.facts import Node
from trainworks.errors import ArgumentError, UsageError
from trainworks.plan.capacity.answer import Target
from trainworks.plan.capacity.jobs import TraceJob, parse_trace, trace_of, trace_text
from trainworks.plan.capacity.plan import CapacityPlan, ElasticTerms, limits_for, plan_capacity
from trainworks.plan.capacity.policy_comparison import prices_for
from trainworks.plan.capacity.teams import parse_teams, sampled_jobs
from trainworks.units import format_duration

_USUAL_WAIT = "4h"
_HIGHEST_PRICE = 1e6


def capacity(
    file: Path | str,
    *,
    node: str | None = None,
    accelerators_per_node: int | None = None,
    fixed: int | None = None,
    on_demand_max: int | None = None,
    spot_max: int | None = None,
    price: float | None = None,
    spot_price: float | None = None,
    own_price: float | None = None,
    start_latency: Quantity = "5m",
    idle_timeout: Quantity = "15m",
    spot_node_life: Quantity = "8h",
    wait: Quantity | None = None,
    deadlines: Quantity | None = None,
    seed: int = 1,
    progress: Progress = no_progress,
) -> CapacityPlan:
    """Find the fixed nodes that meet a target, and what on-demand and spot nodes would change.

    Args:
        file: CSV trace of jobs, or YAML file of teams whose jobs are sampled.
        node: node of the catalogue.
        accelerators_per_node: instead of a node.
        fixed: fixed nodes, owned or reserved; all numbers when left out.
        on_demand_max: most on-demand nodes.
        spot_max: most spot nodes.
        price: on demand, USD per accelerator hour.
        spot_price: USD per accelerator hour.
        own_price: of fixed nodes, USD per accelerator hour.
        start_latency: from ordering a node to its first job.
        idle_timeout: after which an idle elastic node is released.
        spot_node_life: mean life of a spot node.
        wait: that 90 % of a team's jobs wait at most; 4 hours when left out.
        deadlines: share of a team's deadlines to meet, instead of a wait.
        seed: of the sampled jobs and of the lives of spot nodes.
        progress: called with the share of the work that is done.

    Raises:
        UsageError: an argument or the file is not valid, or the target cannot be met.

    >>> plan = capacity("examples/jobs-trace.csv", node="DGX H100", fixed=12, on_demand_max=0)
    >>> plan.limits.node_accelerators
    8
    """
    hardware, size = _node(node, accelerators_per_node)
    for name, usd in (("price", price), ("spot_price", spot_price), ("own_price", own_price)):
        check_number(name, usd, 0, _HIGHEST_PRICE)
    prices = prices_for(hardware, on_demand=price, spot=spot_price, fixed=own_price)
    target = _target(wait, deadlines)
    terms = ElasticTerms(
        start_latency_s=seconds("start_latency", start_latency, zero=True) or 0.0,
        idle_timeout_s=seconds("idle_timeout", idle_timeout, zero=True) or 0.0,
        spot_life_s=_spot_life_s(spot_node_life),
        seed=seed,
    )
    path = Path(file)
    jobs: list[TraceJob] | None = None
    if path.suffix in (".yaml", ".yml"):  # of teams, whose jobs are sampled
        jobs = sampled_jobs(parse_teams(_text(path), name=str(path)), seed=seed)
    trace = parse_trace(_text(path), name=str(path)) if jobs is None else trace_of(jobs)
    limits = limits_for(trace, size, terms, fixed=fixed, on_demand=on_demand_max, spot=spot_max)
    plan = plan_capacity(path.name, trace, target, limits, prices, progress)
    if jobs is None:
        return plan
    head = f"# Synthetic: sampled from {path.name} with seed {seed}.\n"
    return replace(plan, sampled_trace=head + trace_text(jobs))


def _node(name: str | None, accelerators: int | None) -> tuple[Node | None, int]:
    """The node of the catalogue, if one is named, and its number of accelerators."""
    if name is not None and accelerators is not None:
        raise ArgumentError(
            "`--node` sets the accelerators of a node, too",
            argument="accelerators_per_node",
            hint="leave one of the two out",
        )
    if name is not None:
        row = catalogue_node(name)
        return row, row.accelerators
    if accelerators is not None:
        return None, accelerators
    raise UsageError("no node is named", hint='set `--node "DGX H100"`, or `--accelerators-per-node 8 --price 3.50`')


def _spot_life_s(life: Quantity) -> float:
    value, least = seconds("spot_node_life", life, zero=True) or 0.0, 60.0
    if value < least:
        raise ArgumentError(
            f"`{life}` is below {format_duration(least)}", argument="spot_node_life", hint="give a longer time"
        )
    return value


def _target(wait: Quantity | None, deadlines: Quantity | None) -> Target:
    met = share("deadlines", deadlines)
    if met is None:
        return Target(wait_s=seconds("wait", _USUAL_WAIT if wait is None else wait, zero=True))
    if wait is not None:
        raise UsageError("two targets", place="--wait, --deadlines", hint="leave one of the two out")
    return Target(deadlines=met)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"no file `{path}`", hint="give a CSV trace, or a YAML file of teams") from None
    except UnicodeDecodeError:
        raise UsageError(f"cannot read `{path}`: not text in UTF-8") from None
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}") from None
