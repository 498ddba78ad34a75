"""Several run files, one cluster: the capacity on which every team meets its deadline or its wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from trainworks.api.size import Asked, may_meet, mean_run_time_s, workload_of
from trainworks.api.size_plans import Plans, smallest
from trainworks.catalog.catalog import load_catalog
from trainworks.config.load import Source
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.plan.capacity.answer import CapacityAnswer, capacity_for
from trainworks.plan.capacity.jobs import trace_of
from trainworks.plan.capacity.teams import Duration, Team, Teams, sampled_jobs
from trainworks.plan.cost.renting import price_per_hour
from trainworks.plan.sizing.candidates import Candidate, candidates
from trainworks.report.parts import plain_table, print_parts
from trainworks.units import HOUR_S, WEEK_S, format_duration, format_usd

__all__ = ["Shared", "SharedCluster", "print_shared", "share_out", "shared_as_json"]

_WEEKS = 26
_ROWS = 10
_WORK_SHARE = 0.7
"""Of a deadline that the run itself may take, so that there is time to wait."""
_SPREAD = 1.1
"""Of a run's time, from one start to the next: about the 80 % interval of a planned step."""


@dataclass(frozen=True, slots=True)
class SharedCluster:
    """One kind of node, and how many of it all teams together need."""

    candidate: Candidate
    jobs: dict[str, tuple[int, float]]
    """Of every run: nodes of one job, and the time that it takes."""
    answer: CapacityAnswer
    usd_per_week: float | None
    """On demand, held all week; None where nobody offers these nodes."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The kinds of node on which all teams are served, the cheapest first."""

    clusters: list[SharedCluster]
    promise: str
    skipped: dict[str, str]


def share_out(asked: Sequence[tuple[Asked, Source]], progress: Callable[[float, str], None]) -> Shared:
    """Size every run alone, then replay all of them on one cluster of each kind of node.

    Raises:
        UsageError: a run does not say how often it starts, or neither deadlines nor waits are given.
        EnvironmentProblem: no kind of node serves all of them.
    """
    wait_s, deadlines = _promise(asked)
    first = asked[0][0]
    precisions = {workload_of(one.run_file).precision for one, _ in asked}
    able = [candidates(load_catalog(), first.offers, precision=name, only=first.only)[0] for name in precisions]
    found = [
        candidate
        for candidate in able[0]
        if candidate.largest is None and candidate.offers_of(2) and all(candidate in others for others in able)
    ]
    plans = [Plans(one.run_file, source) for one, source in asked]
    shared = Shared([], _in_words(wait_s, deadlines), {})
    for index, candidate in enumerate(found):
        progress(index / len(found), f"planning {candidate.node}")
        jobs = _jobs(candidate, asked, plans)
        if isinstance(jobs, str):
            shared.skipped[candidate.node] = jobs
        else:
            shared.clusters.append(_cluster(candidate, jobs, asked, wait_s=wait_s, deadlines=deadlines))
    if not found:
        raise EnvironmentProblem(f"no kind of node on offer computes in {' and '.join(sorted(precisions))}")
    if not shared.clusters:
        reasons = "; ".join(f"{node}: {why}" for node, why in [*shared.skipped.items()][:3])
        raise EnvironmentProblem(f"no kind of node serves all {len(asked)} runs ({reasons})")
    shared.clusters.sort(key=lambda item: (item.usd_per_week is None, item.usd_per_week or item.answer.capacity.value))
    return shared


def _promise(asked: Sequence[tuple[Asked, Source]]) -> tuple[float | None, float | None]:
    """A wait that all accept, else their deadlines."""
    for one, source in asked:
        if one.run_file.goal.every is None:
            raise UsageError(
                f"how often `{one.run_file.name}` starts is not said",
                place=source.place(("goal",)),
                hint="add it: `goal: {every: 1w, deadline: 3d}`",
            )
        if one.wish.deadline_s is None:
            raise UsageError(
                f"`{one.run_file.name}` has no deadline, so that any number of nodes would do",
                place=source.place(("goal",)),
                hint="add it: `goal: {deadline: 3d}`",
            )
    waits = [one.run_file.goal.wait for one, _ in asked]
    known = [wait for wait in waits if wait is not None]
    if not known:
        return None, asked[0][0].wish.confidence
    if len(known) < len(waits):
        one, source = asked[waits.index(None)]
        raise UsageError(
            f"`{one.run_file.name}` says no `goal.wait`, and others do: one promise has to hold for all",
            place=source.place(("goal",)),
            hint="give it to every run, or to none: then deadlines are what is promised",
        )
    return min(known), None


def _in_words(wait_s: float | None, deadlines: float | None) -> str:
    if wait_s is not None:
        return f"nine of ten jobs of every team start within {format_duration(wait_s)}"
    return f"{deadlines:.0%} of the jobs of every team meet their deadline, the wait included"


def _jobs(
    candidate: Candidate, asked: Sequence[tuple[Asked, Source]], plans: Sequence[Plans]
) -> dict[str, tuple[int, float]] | str:
    """Nodes and time, failures included, of one job of every run, or why there are none."""
    jobs = {}
    for (one, _), planned in zip(asked, plans, strict=True):

        def meets(count: int, one: Asked = one, planned: Plans = planned) -> bool:
            plan = planned.on(candidate.cluster_text(count))
            return plan is not None and may_meet(plan, one, share=_WORK_SHARE)

        least = smallest(one.largest, meets)
        plan = None if least is None else planned.on(candidate.cluster_text(least))
        if least is None or plan is None:
            return f"{one.largest:,} nodes of it do not finish `{one.run_file.name}` in time"
        jobs[one.run_file.name] = (least, mean_run_time_s(plan, one))
    return jobs


def _cluster(
    candidate: Candidate,
    jobs: dict[str, tuple[int, float]],
    asked: Sequence[tuple[Asked, Source]],
    *,
    wait_s: float | None,
    deadlines: float | None,
) -> SharedCluster:
    each = candidate.base.accelerators
    teams = {
        one.run_file.name: Team(
            jobs_per_week=WEEK_S / (one.run_file.goal.every or WEEK_S),
            accelerators=jobs[one.run_file.name][0] * each,
            duration=Duration(median=jobs[one.run_file.name][1], spread=_SPREAD),
            deadline=one.wish.deadline_s,
        )
        for one, _ in asked
    }
    trace = trace_of(sampled_jobs(Teams(weeks=_WEEKS, teams=teams), seed=asked[0][0].seed))
    answer = capacity_for(trace, node_accelerators=each, wait_s=wait_s, deadlines=deadlines, name="the run files")
    return SharedCluster(candidate, jobs, answer, _per_week(candidate, answer))


def _per_week(candidate: Candidate, answer: CapacityAnswer) -> float | None:
    num = round(answer.capacity.value)
    offers = [offer for offer in candidate.offers_of(2) if offer.usd_per_hour is not None]
    prices = [price_per_hour(offer, contract="on-demand", num_accelerators=num).value for offer in offers]
    return min(prices, default=0.0) * WEEK_S / HOUR_S or None


def print_shared(shared: Shared, console: Console) -> None:
    """One row for every kind of node."""
    promise = Text(f"promise: {shared.promise}; {_WEEKS} weeks of starts replayed")
    table = plain_table("nodes", "used", "spare", "wait of 90 %", "USD a week", "node and what one job of each takes")
    for item in shared.clusters[:_ROWS]:
        answer = item.answer
        table.add_row(
            f"{answer.nodes.value:,.0f}",
            f"{answer.utilisation.value:.0%}",
            f"{answer.spare_share.value:.0%}",
            format_duration(answer.wait.value),
            "no offer" if item.usd_per_week is None else format_usd(item.usd_per_week).removesuffix(" USD"),
            f"{item.candidate.node}: " + ", ".join(f"{name} {_job(*job)}" for name, job in item.jobs.items()),
        )
    print_parts([[promise], [table], [Text(f"not {node}: {why}") for node, why in shared.skipped.items()]], console)


def _job(nodes: int, seconds: float) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''} for {format_duration(seconds)}"


def shared_as_json(shared: Shared) -> dict[str, Any]:
    """Everything that the table shows, in base units."""
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
