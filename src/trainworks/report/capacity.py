"""The capacity that meets a target: fixed nodes, what they leave spare, and what elastic nodes would change.

Beside it, the kinds of node that serve all teams of several run files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict

from trainworks.plan.capacity.plan import CapacityPlan
from trainworks.plan.capacity.policy import FIXED, ON_DEMAND, SPOT, Policy
from trainworks.plan.capacity.policy_comparison import PolicyReplay
from trainworks.plan.sizing.result import SHARED_WEEKS, SharedCapacity
from trainworks.report.explain import sources_section
from trainworks.report.rendering.axes import build_axis, labelled_axis
from trainworks.report.rendering.document import Block, Column, Document, Facts, Row, Section, Table, Text, left, right
from trainworks.report.rendering.plots import Chart, Curve, Dot, Rule, step_path
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.units import DAY_S, HOUR_S, WEEK_S, format_duration, format_share, format_usd

_MAX_ROWS = 12
_MAX_SHARED_ROWS = 10
_WAIT_TICKS_S = {
    "0": 0.0,
    "1m": 60.0,
    "10m": 600.0,
    "1h": HOUR_S,
    "4h": 4 * HOUR_S,
    "1d": DAY_S,
    "1w": WEEK_S,
    "8w": 8 * WEEK_S,
}
_KINDS = {
    FIXED: "fixed nodes alone",
    ON_DEMAND: "with on-demand nodes",
    SPOT: "with spot nodes",
    "both": "with spot and on-demand nodes",
}


@build_document.register
def document(plan: CapacityPlan) -> Document:
    """Load, the smallest fixed capacity for the target, its service by team, the front, and the best policy."""
    policies = f"cheapest for the p90 wait of the team that waits longest, of {len(plan.points):,} policies"
    return Document(
        f"Capacity for {plan.name}",
        "capacity",
        [
            Section("", [Facts.from_mapping(_facts(plan))]),
            Section("teams on these fixed nodes", [_teams(plan)]),
            Section("cost against wait", _chart(plan), only="page"),
            Section(policies, [_front(plan)]),
            Section("", [Text(_best(plan), "bold")]),
            sources_section(plan.figures),
        ],
        notes=plan.notes,
    )


def _plural(count: float) -> str:
    return "" if count == 1 else "s"


def _facts(plan: CapacityPlan) -> dict[str, str]:
    answer, service = plan.answer, plan.answer.service
    nodes, size = answer.nodes.value, plan.limits.node_accelerators
    use = f"{format_share(answer.utilisation.value)} used on average"
    spare = f"{format_share(answer.spare_share.value)} spare over the mean load"
    waits = f"p50 {format_duration(service.wait_p50_s)}, p90 {format_duration(service.wait_p90_s)}"
    met = "" if service.deadlines_met is None else f"; {format_share(service.deadlines_met)} of the deadlines met"
    target = f"90 % of every team's jobs wait at most {format_duration(plan.target.wait_s or 0.0)}"
    if plan.target.deadlines is not None:
        target = f"{format_share(plan.target.deadlines)} of every team's deadlines are met"
    return {
        "load": _load(plan),
        "target": target,
        "fixed nodes": f"{nodes:,.0f} x {size} = {answer.capacity.value:,.0f} accelerators: {use}, {spare}",
        "wait": f"{waits}, at most {format_duration(service.wait_max_s)}{met}",
        "prices": _prices(plan),
    }


def _load(plan: CapacityPlan) -> str:
    load, teams = plan.answer.load, len(plan.answer.service.teams)
    jobs = f"{len(plan.trace):,} job{_plural(len(plan.trace))}" + (f" of {teams} teams" if teams > 1 else "")
    busy = f"{load.mean.value:,.1f} accelerators busy on average, {load.peak.value:,.0f} at the peak"
    return f"{jobs} in {format_duration(load.span.value)}: {busy}"


def _prices(plan: CapacityPlan) -> str:
    prices, on_demand = plan.prices, plan.prices.on_demand
    kinds = {"on demand": on_demand, "spot": prices.spot, "fixed": prices.fixed}
    listed = ", ".join(f"{name} {price.value:.2f}" for name, price in kinds.items())
    low, high = on_demand.low, on_demand.high
    spread = "" if low is None or high is None else f" ({low:.2f} to {high:.2f} on demand)"
    return f"{listed} USD per accelerator hour{spread}"


def _teams(plan: CapacityPlan) -> Table:
    rows = []
    for name, service in plan.answer.service.teams.items():
        waits = map(format_duration, (service.wait_p50_s, service.wait_p90_s, service.wait_max_s))
        rows.append([name or "(no team)", f"{service.jobs:,}", *waits, _met(service.deadlines_met)])
    return Table([Column("team", wrap=True), *right("jobs", "p50 wait", "p90 wait", "longest", "deadlines met")], rows)


def _met(share: float | None) -> str:
    return "-" if share is None else format_share(share)


def _front(plan: CapacityPlan) -> Table:
    rows = []
    for point in _thinned(plan):
        service = point.service
        cells = [
            f"{point.cost_usd_per_week:,.0f}",
            format_duration(service.wait_p50_s),
            format_duration(service.worst_wait_s),
            _met(service.deadlines_met),
            _purchase(point.policy),
        ]
        rows.append(Row(cells))
    return Table([*right("USD/week", "p50 wait", "p90 wait", "deadlines"), *left("nodes", wrap=True)], rows)


def _thinned(plan: CapacityPlan) -> list[PolicyReplay]:
    """At most about a dozen points of the front, its ends and the best one among them."""
    points = plan.front
    if len(points) <= _MAX_ROWS:
        return points
    picks = {round(index * (len(points) - 1) / (_MAX_ROWS - 1)) for index in range(_MAX_ROWS)}
    return [point for index, point in enumerate(points) if index in picks or point is plan.best]


def _purchase(policy: Policy) -> str:
    """The nodes that a policy buys, and when."""
    elastic = {"spot": policy.spot.max_nodes, "on-demand": policy.on_demand.max_nodes}
    listed = " and ".join(f"up to {count:,} {name}" for name, count in elastic.items() if count)
    fixed = f"{policy.fixed_nodes:,} fixed"
    if not listed:
        return fixed
    when = "at once"
    if policy.fixed_nodes and policy.patience_s < math.inf:
        when = f"after a wait of {format_duration(policy.patience_s)}"
    elif policy.fixed_nodes and policy.backlog_s:
        when = f"at a backlog of {format_duration(policy.backlog_s)}"
    return f"{fixed}, {listed} {when}" if policy.fixed_nodes else f"{listed} {when}"


def _best(plan: CapacityPlan) -> str:
    best = plan.best
    if best is None:
        return "none of the policies meets the target"
    text = f"cheapest at the target: {_purchase(best.policy)}, {format_usd(best.cost_usd_per_week)} per week; "
    text += f"{format_share(best.utilisation)} of what is paid runs jobs"
    if best.interruptions:
        plural = _plural(best.interruptions)
        text += f", {best.interruptions:,} interruption{plural} waste {format_share(best.wasted_share)} of it"
    return text


def _chart(plan: CapacityPlan) -> list[Block]:
    """A dot per policy, the front as steps, and a dashed line at the target."""
    text = (
        "One dot per policy, replayed on the same jobs. Upwards: the wait that 90 % of a team's jobs do not exceed, "
        "logarithmic above a minute. To the right: USD per week. No policy lies below and left of the line."
    )
    target_s = plan.target.wait_s
    front = sorted((point.cost_usd_per_week, point.service.worst_wait_s) for point in plan.front)
    waits = [point.service.worst_wait_s for point in plan.points] + ([] if target_s is None else [target_s])
    top = 60.0 * math.expm1(_log_minutes(max(waits, default=0.0)) * 1.04) or 60.0
    kinds = {_kind(point.policy) for point in plan.points}
    x_axis = build_axis(0.0, max((point.cost_usd_per_week for point in plan.points), default=1.0), num_ticks=7)
    chart = Chart(
        f"Cost against wait of {len(plan.points)} policies, {len(plan.front)} of them on the front",
        x=x_axis,
        y=labelled_axis(_WAIT_TICKS_S, top, _log_minutes),
        x_unit="USD per week",
        curves=[Curve("front-line", step_path(front, top, x_axis.ticks[-1]))] if front else [],
        dots=[
            _dot(point, is_best=point in plan.front)
            for point in sorted(plan.points, key=lambda point: point in plan.front)
        ],
        rules=[] if target_s is None else [Rule("y", target_s, f"target {format_duration(target_s)}")],
        names=[(f"dot-key {kind}", name) for kind, name in _KINDS.items() if kind in kinds],
        is_tall=True,
    )
    return [Text(text, "dim"), chart]


def _log_minutes(wait_s: float) -> float:
    return math.log1p(wait_s / 60.0)


def _dot(point: PolicyReplay, *, is_best: bool) -> Dot:
    cost, wait_s = point.cost_usd_per_week, point.service.worst_wait_s
    title = f"{_purchase(point.policy)}: {format_usd(cost)} per week, p90 wait {format_duration(wait_s)}"
    css = f"dot {_kind(point.policy)}"
    return Dot(cost, wait_s, title, f"{css} best", 6) if is_best else Dot(cost, wait_s, title, css)


def _kind(policy: Policy) -> str:
    kinds = {(False, False): FIXED, (True, False): SPOT, (False, True): ON_DEMAND, (True, True): "both"}
    return kinds[policy.spot.max_nodes > 0, policy.on_demand.max_nodes > 0]


@to_json.register
def _(plan: CapacityPlan) -> Mapping[str, object]:
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
        "policies": [_point_json(point) | {"on_front": point in plan.front} for point in plan.points],
        "cheapest_at_target": None if plan.best is None else _point_json(plan.best),
        "notes": plan.notes,
    }


def _point_json(point: PolicyReplay) -> dict[str, object]:
    policy = {name: value if value != math.inf else None for name, value in asdict(point.policy).items()}
    rest = {name: value for name, value in asdict(point).items() if name not in ("policy", "bought_h_per_week")}
    hours = {name.replace("-", "_"): value for name, value in point.bought_h_per_week.items()}
    worst = {"worst_team_wait_p90_s": point.service.worst_wait_s}
    return {"policy": policy, **rest, **worst, "bought_accelerator_h_per_week": hours}


@build_document.register
def shared_document(shared: SharedCapacity) -> Document:
    """One row for every kind of node."""
    rows = []
    for item in shared.clusters[:_MAX_SHARED_ROWS]:
        answer, price = item.answer, item.usd_per_week
        jobs = ", ".join(
            f"{name} {nodes} node{_plural(nodes)} for {format_duration(seconds)}"
            for name, (nodes, seconds) in item.jobs.items()
        )
        rows.append(
            [
                f"{answer.nodes.value:,.0f}",
                f"{answer.utilisation.value:.0%}",
                f"{answer.spare_share.value:.0%}",
                format_duration(answer.wait.value),
                "no offer" if price is None else format_usd(price).removesuffix(" USD"),
                f"{item.candidate.node}: {jobs}",
            ]
        )
    columns = right("nodes", "used", "spare", "wait of 90 %", "USD a week")
    return Document(
        "One cluster for several runs",
        "proposal",
        [
            Section("", [Text(f"promise: {shared.promise}; {SHARED_WEEKS} weeks of starts replayed")]),
            Section("", [Table([*columns, Column("node and what one job of each takes", wrap=True)], rows)]),
            Section("", [Text(f"not {name}: {reason}") for name, reason in shared.skipped.items()]),
        ],
        verdict=shared.verdict,
    )


@to_json.register
def _(shared: SharedCapacity) -> Mapping[str, object]:
    return {
        "promise": shared.promise,
        "clusters": [
            {
                "node": item.candidate.node,
                "nodes": item.answer.nodes.value,
                "accelerators": item.answer.capacity.value,
                "mean_load": item.answer.load.mean.value,
                "utilisation": item.answer.utilisation.value,
                "spare_share": item.answer.spare_share.value,
                "wait_p90_s": item.answer.wait.value,
                "usd_per_week": item.usd_per_week,
                "jobs": {name: {"nodes": count, "run_time_s": time} for name, (count, time) in item.jobs.items()},
            }
            for item in shared.clusters
        ],
        "not_proposed": shared.skipped,
    }
