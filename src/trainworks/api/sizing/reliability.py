"""Failures, checkpoints and finish of a planned run: the same figures for every command."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial

from trainworks.config.run_file import RunFile
from trainworks.errors import UsageError
from trainworks.plan.assumptions import assumed
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.reliability.defaults import Failures, planned_failures
from trainworks.plan.reliability.goodput import ExpectedRun, expected, save_in_time, spares_needed
from trainworks.plan.reliability.scenario import Scenario, scenario_of, spread_of
from trainworks.plan.reliability.simulation import simulate_all
from trainworks.plan.sizing.result import Reliability, SizingRequest
from trainworks.plan.storage.run import checkpoint_of
from trainworks.plan.trace import Traced, fact

TRIALS = 500
_MOST_EVENTS = 1_000
"""Events of one simulated run; hundreds of candidates are simulated."""


def interval_s(run_file: RunFile, step_time_s: float) -> float | None:
    """Seconds between the checkpoints of a run file; None where the interval is left to the planner."""
    every = run_file.checkpoint.every
    return every.seconds if every.steps is None else every.steps * step_time_s


def failures_of(plan: ClusterPlan, run_file: RunFile, **given: float | None) -> Failures:
    """Failures and checkpoints of the best layout; `given` are arguments of `planned_failures`."""
    best = plan.best[0]
    failures = planned_failures(
        plan.job.cluster,
        checkpoint_of(plan.job, best),
        replicas=best.layout.dp_replicate,
        step=plan.work.inputs["step_time"],
        node_mttf_s=run_file.recover.node_mttf,
        **given,
    )
    return save_in_time(failures, written_interval(plan, run_file))


def written_interval(plan: ClusterPlan, run_file: RunFile) -> Traced | None:
    """The checkpoint interval of the run file; None where it is left to the planner."""
    every = interval_s(run_file, plan.best[0].step_time_s)
    source = "checkpoint.every of the run file"
    return None if every is None else fact("checkpoint interval", every, "s", source=source)


def may_meet(plan: ClusterPlan, request: SizingRequest, *, share: float = 1.0) -> bool:
    """Whether the mean run, failures included, ends within a share of the time to the deadline."""
    if request.goal.deadline_s is None:
        return True
    return mean_run_time_s(plan, request) <= share * request.goal.deadline_s


def mean_run_time_s(plan: ClusterPlan, request: SizingRequest) -> float:
    """Mean time of a run with its failures; infinite where it fails too often to advance."""
    try:
        return _mean(plan, request)[-1].run_time.value
    except UsageError:
        return math.inf


def _mean(
    plan: ClusterPlan, request: SizingRequest, **given: float | None
) -> tuple[Traced, Failures, Traced, ExpectedRun]:
    work, failures = plan.work, failures_of(plan, request.run_file, **given)
    spares = spares_needed(failures, limit=assumed("time without nodes"))
    interval = written_interval(plan, request.run_file)
    mean = expected(failures, work=work, spares=spares, shortest=work.inputs["step_time"], interval=interval)
    return work, failures, spares, mean


def simulate_reliability(
    plans: Iterable[tuple[ClusterPlan, Mapping[str, float | None]]], request: SizingRequest
) -> list[Reliability | UsageError]:
    """Simulate the finish of plans with the spares that they need, all at once.

    Args:
        plans: each with its arguments of `planned_failures`.
        request: goal, assumptions and seed.

    Returns:
        One result per plan; an error in place of a run that fails too often to advance.
    """
    prepared = [_prepared(plan, request, given) for plan, given in plans]
    scenarios = [each[1] for each in prepared if not isinstance(each, UsageError)]
    outcomes = iter(simulate_all(scenarios, trials=TRIALS, seed=request.seed, most_events=_MOST_EVENTS))
    results: list[Reliability | UsageError] = []
    for each in prepared:
        if isinstance(each, UsageError):
            results.append(each)
            continue
        outcome = next(outcomes)
        results.append(outcome if isinstance(outcome, UsageError) else each[0](outcome))
    return results


def _prepared(
    plan: ClusterPlan, request: SizingRequest, given: Mapping[str, float | None]
) -> tuple[partial[Reliability], Scenario] | UsageError:
    """The result but for its outcome, and the scenario to simulate."""
    best = plan.best[0]
    try:
        work, failures, spares, mean = _mean(plan, request, **given)
        scenario = scenario_of(
            failures,
            work_s=work.value,
            interval_s=mean.interval.value,
            work_spread=spread_of(best.low_s, best.high_s),
            spares=round(spares.value),
        )
    except UsageError as error:
        return error
    return partial(Reliability, plan, work, failures, spares, mean), scenario
