"""Size one cluster for several run files: the capacity on which every team meets its deadline or its wait."""

from __future__ import annotations

from collections.abc import Sequence

from trainworks.api.inputs import Progress
from trainworks.api.sizing.plans import PlanCache, smallest, workload_of
from trainworks.api.sizing.reliability import may_meet, mean_run_time_s
from trainworks.catalog.catalog import load_catalog
from trainworks.config.source import Source
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.plan.capacity.answer import CapacityAnswer, capacity_for
from trainworks.plan.capacity.jobs import trace_of
from trainworks.plan.capacity.teams import Duration, Team, Teams, sampled_jobs
from trainworks.plan.cost.renting import price_per_hour
from trainworks.plan.sizing.candidates import Candidate, candidates
from trainworks.plan.sizing.result import SHARED_WEEKS, SharedCapacity, SharedCluster, SizingRequest
from trainworks.units import HOUR_S, WEEK_S, format_duration

LoadedRequests = Sequence[tuple[SizingRequest, Source | None]]

_WORK_SHARE = 0.7
"""Share of a deadline that the run itself may take, so that there is time to wait."""
_SPREAD = 1.1
"""Spread of the duration of a run, from one start to the next: about the 80 % interval of a planned step."""


def share_capacity(requests: LoadedRequests, progress: Progress) -> SharedCapacity:
    """Size every run by itself, then replay all of them on one cluster of each kind of node.

    Raises:
        UsageError: a run file has no deadline or no time between its starts, or only some have a wait.
        EnvironmentProblem: no kind of node serves all of them.
    """
    wait_s, deadlines = _promise(requests)
    first = requests[0][0]
    precisions = {workload_of(one.run_file).precision for one, _ in requests}
    able = [candidates(load_catalog(), first.offers, precision=name, only=first.only)[0] for name in precisions]
    usable = [
        candidate
        for candidate in able[0]
        if candidate.largest is None and candidate.offers_of(2) and all(candidate in others for others in able)
    ]
    plans = [PlanCache(one.run_file, source) for one, source in requests]
    shared = SharedCapacity([], _describe_promise(wait_s, deadlines), {})
    for index, candidate in enumerate(usable):
        progress(index / len(usable), f"planning {candidate.node}")
        jobs = _jobs(candidate, requests, plans)
        if isinstance(jobs, str):
            shared.skipped[candidate.node] = jobs
        else:
            shared.clusters.append(_cluster(candidate, jobs, requests, wait_s=wait_s, deadlines=deadlines))
    if not usable:
        raise EnvironmentProblem(f"no kind of node on offer computes in {' and '.join(sorted(precisions))}")
    if not shared.clusters:
        reasons = "; ".join(f"{node}: {why}" for node, why in [*shared.skipped.items()][:3])
        raise EnvironmentProblem(f"no kind of node serves all {len(requests)} runs ({reasons})")
    shared.clusters.sort(key=lambda item: (item.usd_per_week is None, item.usd_per_week or item.answer.capacity.value))
    return shared


def _promise(requests: LoadedRequests) -> tuple[float | None, float | None]:
    """The wait that all accept, or the share of deadlines to meet."""
    for one, source in requests:
        if one.run_file.goal.every is None:
            raise UsageError(
                f"`{one.run_file.name}` has no `goal.every`, the time between its starts",
                place=source.place(("goal",)) if source else None,
                hint="add it: `goal: {every: 1w, deadline: 3d}`",
            )
        if one.goal.deadline_s is None:
            raise UsageError(
                f"`{one.run_file.name}` has no deadline, so any number of nodes is enough",
                place=source.place(("goal",)) if source else None,
                hint="add it: `goal: {deadline: 3d}`",
            )
    waits = [one.run_file.goal.wait for one, _ in requests]
    known = [wait for wait in waits if wait is not None]
    if not known:
        return None, requests[0][0].goal.confidence
    if len(known) < len(waits):
        one, source = requests[waits.index(None)]
        raise UsageError(
            f"`{one.run_file.name}` has no `goal.wait`, and other run files have one",
            place=source.place(("goal",)) if source else None,
            hint="set it in every run file, or in none to meet deadlines instead",
        )
    return min(known), None


def _describe_promise(wait_s: float | None, deadlines: float | None) -> str:
    if wait_s is not None:
        return f"nine of ten jobs of every team start within {format_duration(wait_s)}"
    return f"{deadlines:.0%} of the jobs of every team meet their deadline, the wait included"


def _jobs(
    candidate: Candidate, requests: LoadedRequests, plans: Sequence[PlanCache]
) -> dict[str, tuple[int, float]] | str:
    """Nodes and duration of one job of every run, or the reason why a run has none."""
    jobs = {}
    for (one, _), planned in zip(requests, plans, strict=True):

        def meets(count: int, one: SizingRequest = one, planned: PlanCache = planned) -> bool:
            plan = planned.on(candidate.cluster(count))
            return plan is not None and may_meet(plan, one, share=_WORK_SHARE)

        def too_many(count: int, planned: PlanCache = planned) -> bool:
            return planned.is_too_large(candidate.cluster(count))

        least = smallest(one.largest, meets, too_many=too_many)
        plan = None if least is None else planned.on(candidate.cluster(least))
        if least is None or plan is None:
            return f"{one.largest:,} nodes of it do not finish `{one.run_file.name}` in time"
        jobs[one.run_file.name] = (least, mean_run_time_s(plan, one))
    return jobs


def _cluster(
    candidate: Candidate,
    jobs: dict[str, tuple[int, float]],
    requests: LoadedRequests,
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
            deadline=one.goal.deadline_s,
        )
        for one, _ in requests
    }
    trace = trace_of(sampled_jobs(Teams(weeks=SHARED_WEEKS, teams=teams), seed=requests[0][0].seed))
    answer = capacity_for(trace, node_accelerators=each, wait_s=wait_s, deadlines=deadlines, name="the run files")
    return SharedCluster(candidate, jobs, answer, _per_week(candidate, answer))


def _per_week(candidate: Candidate, answer: CapacityAnswer) -> float | None:
    num = round(answer.capacity.value)
    offers = [offer for offer in candidate.offers_of(2) if offer.usd_per_hour is not None]
    prices = [price_per_hour(offer, contract="on-demand", num_accelerators=num).value for offer in offers]
    return min(prices, default=0.0) * WEEK_S / HOUR_S or None
