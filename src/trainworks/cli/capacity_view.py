"""The capacity for a trace as a person reads it, as JSON, and as points of a page."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from trainworks.plan.capacity.plan import CapacityPlan
from trainworks.plan.capacity.policy import FIXED, ON_DEMAND, SPOT, Policy
from trainworks.plan.capacity.policy_comparison import PolicyReplay
from trainworks.report.capacity_page import PolicyPoint
from trainworks.report.parts import fact_table, note_lines, print_parts, title
from trainworks.units import format_duration, format_usd

__all__ = ["about", "drawn", "plan_as_json", "print_capacity"]

_MOST_ROWS = 12


def print_capacity(plan: CapacityPlan, console: Console) -> None:
    """Load, the smallest fixed capacity for the target, its service by team, the front, and what is best."""
    policies = f"cheapest for the p90 wait of the team that waits longest, of {len(plan.points):,} policies"
    parts: list[list[RenderableType]] = [
        [fact_table(_facts(plan))],
        [title("teams on these fixed nodes"), _teams(plan)],
        [title(policies), _front(plan)],
        [_best(plan)],
        note_lines(plan.notes),
    ]
    print_parts(parts, console)


def about(plan: CapacityPlan) -> str:
    """One line: jobs, span and load."""
    load = plan.answer.load
    teams = len(plan.answer.service.teams)
    jobs = f"{len(plan.trace):,} job{_s(len(plan.trace))}" + (f" of {teams} teams" if teams > 1 else "")
    busy = f"{load.mean.value:,.1f} accelerators busy on average, {load.peak.value:,.0f} at the peak"
    return f"{jobs} in {format_duration(load.span.value)}: {busy}"


def _s(count: float) -> str:
    return "" if count == 1 else "s"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _facts(plan: CapacityPlan) -> dict[str, str]:
    answer, service = plan.answer, plan.answer.service
    nodes, size = answer.nodes.value, plan.limits.node_accelerators
    used = f"{_percent(answer.utilisation.value)} used on average"
    spare = f"{_percent(answer.spare_share.value)} spare over the mean load"
    waits = f"p50 {format_duration(service.wait_p50_s)}, p90 {format_duration(service.wait_p90_s)}"
    met = "" if service.deadlines_met is None else f"; {_percent(service.deadlines_met)} of the deadlines met"
    return {
        "load": about(plan),
        "target": _target(plan),
        "fixed nodes": f"{nodes:,.0f} x {size} = {answer.capacity.value:,.0f} accelerators: {used}, {spare}",
        "wait": f"{waits}, at most {format_duration(service.wait_max_s)}{met}",
        "prices": _prices(plan),
    }


def _target(plan: CapacityPlan) -> str:
    if plan.target.deadlines is not None:
        return f"{_percent(plan.target.deadlines)} of every team's deadlines are met"
    return f"90 % of every team's jobs wait at most {format_duration(plan.target.wait_s or 0.0)}"


def _prices(plan: CapacityPlan) -> str:
    prices = plan.prices
    kinds = {"on demand": prices.on_demand, "spot": prices.spot, "fixed": prices.fixed}
    listed = ", ".join(f"{name} {price.value:.2f}" for name, price in kinds.items())
    asked = prices.on_demand
    spread = "" if asked.low is None or asked.high is None else f" ({asked.low:.2f} to {asked.high:.2f} on demand)"
    return f"{listed} USD per accelerator hour{spread}"


def _teams(plan: CapacityPlan) -> Table:
    table = _table("team", "jobs", "p50 wait", "p90 wait", "longest", "deadlines met")
    for name, service in plan.answer.service.teams.items():
        waits = (service.wait_p50_s, service.wait_p90_s, service.wait_max_s)
        table.add_row(
            name or "(no team)", f"{service.jobs:,}", *map(format_duration, waits), _met(service.deadlines_met)
        )
    return table


def _met(share: float | None) -> str:
    return "-" if share is None else _percent(share)


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _front(plan: CapacityPlan) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("USD/week", "p50 wait", "p90 wait", "deadlines"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("nodes")
    for point in _thinned(plan):
        service = point.service
        waits = (format_duration(service.wait_p50_s), format_duration(service.worst_wait_s))
        table.add_row(f"{point.cost_usd_per_week:,.0f}", *waits, _met(service.deadlines_met), _bought(point.policy))
    return table


def _thinned(plan: CapacityPlan) -> list[PolicyReplay]:
    """Some of a long front, its ends and the best one among them."""
    points = plan.front
    if len(points) <= _MOST_ROWS:
        return points
    kept = {round(index * (len(points) - 1) / (_MOST_ROWS - 1)) for index in range(_MOST_ROWS)}
    return [point for index, point in enumerate(points) if index in kept or point is plan.best]


def _bought(policy: Policy) -> str:
    """What is bought and when, in words."""
    elastic = {"spot": policy.spot.max_nodes, "on-demand": policy.on_demand.max_nodes}
    listed = " and ".join(f"up to {count:,} {name}" for name, count in elastic.items() if count)
    fixed = f"{policy.fixed_nodes:,} fixed"
    if not listed:
        return fixed
    return f"{fixed}, {listed} {_rule(policy)}" if policy.fixed_nodes else f"{listed} at once"


def _rule(policy: Policy) -> str:
    if policy.patience_s < math.inf:
        return f"after a wait of {format_duration(policy.patience_s)}"
    return f"at a backlog of {format_duration(policy.backlog_s)}" if policy.backlog_s else "at once"


def _best(plan: CapacityPlan) -> Text:
    best = plan.best
    if best is None:
        return Text("none of the policies meets the target", style="bold")
    text = f"cheapest at the target: {_bought(best.policy)}, {format_usd(best.cost_usd_per_week)} per week; "
    text += f"{_percent(best.utilisation)} of what is paid runs jobs"
    if best.interruptions:
        text += (
            f", {best.interruptions:,} interruption{_s(best.interruptions)} waste {_percent(best.wasted_share)} of it"
        )
    return Text(text, style="bold")


def drawn(plan: CapacityPlan) -> list[PolicyPoint]:
    """Every policy as a point of the page."""
    return [
        PolicyPoint(
            kind=_kind(point.policy),
            text=_bought(point.policy),
            cost_usd_per_week=point.cost_usd_per_week,
            wait_p90_s=point.service.worst_wait_s,
            on_front=point in plan.front,
        )
        for point in plan.points
    ]


def _kind(policy: Policy) -> str:
    kinds = {(False, False): FIXED, (True, False): SPOT, (False, True): ON_DEMAND, (True, True): "both"}
    return kinds[policy.spot.max_nodes > 0, policy.on_demand.max_nodes > 0]


def plan_as_json(plan: CapacityPlan) -> dict[str, Any]:
    """Everything in base units; times of a policy that are not limited are null."""
    answer, prices = plan.answer, plan.prices
    return {
        "trace": plan.name,
        "jobs": len(plan.trace),
        "span_s": answer.load.span.value,
        "work_accelerator_s": plan.trace.work_accelerator_s,
        "mean_load_accelerators": answer.load.mean.value,
        "peak_load_accelerators": round(answer.load.peak.value),
        "target": asdict(plan.target),
        "smallest_fixed": {
            "nodes": round(answer.nodes.value),
            "accelerators": round(answer.capacity.value),
            "utilisation": answer.utilisation.value,
            "spare_share": answer.spare_share.value,
            "service": asdict(answer.service),
        },
        "usd_per_accelerator_hour": {
            "fixed": prices.fixed.value,
            "spot": prices.spot.value,
            "on_demand": prices.on_demand.value,
        },
        "policies": [_point_as_json(point) | {"on_front": point in plan.front} for point in plan.points],
        "cheapest_at_target": None if plan.best is None else _point_as_json(plan.best),
        "notes": plan.notes,
    }


def _point_as_json(point: PolicyReplay) -> dict[str, Any]:
    policy = {name: value if value != math.inf else None for name, value in asdict(point.policy).items()}
    rest = {name: value for name, value in asdict(point).items() if name not in ("policy", "bought_h_per_week")}
    bought = {name.replace("-", "_"): hours for name, hours in point.bought_h_per_week.items()}
    worst = {"worst_team_wait_p90_s": point.service.worst_wait_s}
    return {"policy": policy, **rest, **worst, "bought_accelerator_h_per_week": bought}
