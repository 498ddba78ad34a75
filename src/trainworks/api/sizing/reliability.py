"""Mean and simulated finish of the sizes of a cluster."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from trainworks.errors import UsageError
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.reliability.simulation import simulate_all
from trainworks.plan.sizing.finish import MOST_EVENTS, TRIALS, PlannedFinish, planned_finish
from trainworks.plan.sizing.result import Reliability, SizingRequest


def may_meet(plan: ClusterPlan, request: SizingRequest, *, share: float = 1.0) -> bool:
    """Whether the mean run, failures included, ends within a share of the time to the deadline."""
    if request.goal.deadline_s is None:
        return True
    return mean_run_time_s(plan, request) <= share * request.goal.deadline_s


def mean_run_time_s(plan: ClusterPlan, request: SizingRequest) -> float:
    """Mean time of a run with its failures; infinite where it fails too often to advance."""
    found = _finish(plan, request)
    return math.inf if isinstance(found, UsageError) else found.mean.run_time.value


def _finish(plan: ClusterPlan, request: SizingRequest, **given: float | None) -> PlannedFinish | UsageError:
    try:
        return planned_finish(plan.job, plan.best[0], plan.work, request.run_file, **given)
    except UsageError as error:
        return error


def simulate_reliability(
    plans: Iterable[tuple[ClusterPlan, Mapping[str, float | None]]], request: SizingRequest
) -> list[Reliability | UsageError]:
    """Simulate the finish of plans with the spares that they need, all at once.

    Each of the plans comes with its arguments of `planned_failures`.

    Returns:
        One result per plan; an error in place of a run that fails too often to advance.
    """
    planned = [(plan, _finish(plan, request, **given)) for plan, given in plans]
    scenarios = [found.scenario for _, found in planned if not isinstance(found, UsageError)]
    outcomes = iter(simulate_all(scenarios, trials=TRIALS, seed=request.seed, most_events=MOST_EVENTS))
    results: list[Reliability | UsageError] = []
    for plan, found in planned:
        if isinstance(found, UsageError):
            results.append(found)
            continue
        outcome = next(outcomes)
        results.append(outcome if isinstance(outcome, UsageError) else Reliability(plan, found, outcome))
    return results
