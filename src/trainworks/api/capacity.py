"""From a trace or a file of teams and the options to the replayed policies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from trainworks.errors import UsageError
from trainworks.plan.capacity.answer import CapacityAnswer, capacity_for, most_nodes
from trainworks.plan.capacity.jobs import Job, JobTrace, parse_trace
from trainworks.plan.capacity.policy import Elastic, Spot
from trainworks.plan.capacity.policy_comparison import Limits, Point, Prices, cheapest, front, point_of, policies
from trainworks.plan.capacity.service import Target, num_deadlines
from trainworks.plan.capacity.teams import parse_teams, sampled_jobs
from trainworks.report.console import SafeConsole
from trainworks.report.progress_bar import counted
from trainworks.units import WEEK_S

__all__ = ["CapacityPlan", "Terms", "limits_for", "plan_capacity", "read_trace", "sampled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Of elastic nodes."""

    start_latency_s: float
    idle_timeout_s: float
    spot_life_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What `trainworks capacity` says."""

    name: str
    trace: JobTrace
    target: Target
    limits: Limits
    prices: Prices
    answer: CapacityAnswer
    points: list[Point]
    front: list[Point]
    best: Point | None
    """The cheapest that meets the target."""
    notes: list[str]


def read_trace(path: Path) -> JobTrace:
    """The jobs of a CSV trace.

    Raises:
        UsageError: the file cannot be read, or something in it is wrong, with its line.
    """
    return parse_trace(_text(path), name=str(path))


def sampled(path: Path, *, seed: int) -> list[Job] | None:
    """Jobs of the teams in a YAML file; None for any other file."""
    if path.suffix not in (".yaml", ".yml"):
        return None
    return sampled_jobs(parse_teams(_text(path), name=str(path)), seed=seed)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = "give a CSV trace, or a YAML file of teams"
        raise UsageError(f"no file `{path}`", hint=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read `{path}`: {error}") from None


def limits_for(
    trace: JobTrace, node_accelerators: int, terms: Terms, *, fixed: int | None, on_demand: int | None, spot: int | None
) -> Limits:
    """What may be bought; of elastic nodes, unless limited, as many as the trace ever wants at once."""
    most = most_nodes(trace, node_accelerators)
    most_spot = most if trace.preemptible.any() else 0
    times = {"start_latency_s": terms.start_latency_s, "idle_timeout_s": terms.idle_timeout_s}
    return Limits(
        node_accelerators=node_accelerators,
        fixed_nodes=fixed,
        on_demand=Elastic(max_nodes=most if on_demand is None else on_demand, **times),
        spot=Spot(max_nodes=most_spot if spot is None else spot, mean_life_s=terms.spot_life_s, **times),
        seed=terms.seed,
    )


def plan_capacity(name: str, trace: JobTrace, target: Target, limits: Limits, prices: Prices) -> CapacityPlan:
    """Find the smallest fixed capacity for the target, replay every policy of the grid, and keep the front.

    Raises:
        UsageError: the target cannot be met, or no policy can run every job.
    """
    with _said("searching for the smallest capacity"):
        answer = capacity_for(
            trace,
            node_accelerators=limits.node_accelerators,
            wait_s=target.wait_s,
            deadlines=target.deadlines,
            name=name,
        )
    grid = policies(trace, limits, answer)
    if not grid:
        mean, largest = answer.load.mean.value, int(trace.accelerators.max())
        raise UsageError(
            "what may be bought cannot run every job and carry the mean load: "
            f"the largest job needs {largest:,} accelerators, the mean load {mean:,.0f}",
            place="--fixed, --on-demand-max, --spot-max",
            hint=f"{answer.nodes.value:,.0f} fixed nodes meet the target",
        )
    points = [point_of(trace, policy, prices) for policy in counted(grid, "replaying policies")]
    return CapacityPlan(
        name=name,
        trace=trace,
        target=target,
        limits=limits,
        prices=prices,
        answer=answer,
        points=points,
        front=front(points),
        best=cheapest(points, target),
        notes=list(_notes(trace, limits, prices, answer)),
    )


def _notes(trace: JobTrace, limits: Limits, prices: Prices, answer: CapacityAnswer) -> Iterator[str]:
    asked, hopeless = num_deadlines(trace)
    if hopeless:
        yield f"{hopeless:,} of {asked:,} deadlines are shorter than their job; they are left out"
    if trace.span_s < WEEK_S:
        yield "the trace is shorter than a week: costs per week are extrapolated"
    if limits.spot.max_nodes and not trace.preemptible.any():
        yield "no job is marked `preemptible`, so that none runs on spot nodes"
    if limits.spot.max_nodes and prices.spot.inputs:
        yield "no spot price is known: the on-demand price stands for it"
    if limits.fixed_nodes is not None and limits.fixed_nodes < answer.nodes.value:
        yield f"{limits.fixed_nodes:,} fixed nodes alone do not meet the target; {answer.nodes.value:,.0f} do"
    if limits.on_demand.max_nodes or limits.spot.max_nodes:
        yield "elastic nodes are taken to come whenever they are ordered; scarce ones do not"


def _said(text: str) -> AbstractContextManager[object]:
    """What is being done, on stderr, if somebody watches."""
    console = SafeConsole(stderr=True)
    return console.status(text) if console.is_terminal else nullcontext()
