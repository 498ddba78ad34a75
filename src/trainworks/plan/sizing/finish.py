"""Failures, checkpoints and finish of a planned run: the same figures for every command."""

from __future__ import annotations

from dataclasses import dataclass

from trainworks.config.run_file import RunFile
from trainworks.errors import UsageError
from trainworks.plan.assumptions import assumed
from trainworks.plan.job import AnyJob
from trainworks.plan.prediction import Prediction
from trainworks.plan.reliability.defaults import Failures, planned_failures
from trainworks.plan.reliability.goodput import ExpectedRun, expected, save_in_time, spares_needed
from trainworks.plan.reliability.scenario import Scenario, scenario_of, spread_of
from trainworks.plan.reliability.simulation import simulate
from trainworks.plan.storage.demand import checkpoint_of
from trainworks.plan.trace import Traced, fact

TRIALS = 500
MOST_EVENTS = 1_000
"""Events of one simulated run; hundreds of candidates are simulated."""
_MOST_TIMES = 10.0
"""Longest mean run, over the same run without failures, that is simulated for a price."""


def interval_s(run_file: RunFile, step_time_s: float) -> float | None:
    """Seconds between the checkpoints of a run file; None where the interval is left to the planner."""
    every = run_file.checkpoint.every
    return every.seconds if every.steps is None else every.steps * step_time_s


def written_interval(best: Prediction, run_file: RunFile) -> Traced | None:
    """The checkpoint interval of the run file; None where it is left to the planner."""
    every = interval_s(run_file, best.step_time_s)
    source = "checkpoint.every of the run file"
    return None if every is None else fact("checkpoint interval", every, "s", source=source)


@dataclass(frozen=True, slots=True)
class PlannedFinish:
    """Mean run of a layout with its failures, and what simulates its spread."""

    failures: Failures
    spares: Traced
    mean: ExpectedRun
    scenario: Scenario


def failures_of(job: AnyJob, best: Prediction, work: Traced, run_file: RunFile, **given: float | None) -> Failures:
    """Failures and checkpoints of a layout; `given` are arguments of `planned_failures`."""
    failures = planned_failures(
        job.cluster,
        checkpoint_of(job, best),
        replicas=best.layout.dp_replicate,
        step=work.inputs["step_time"],
        node_mttf_s=run_file.recover.node_mttf,
        **given,
    )
    return save_in_time(failures, written_interval(best, run_file))


def planned_finish(
    job: AnyJob, best: Prediction, work: Traced, run_file: RunFile, **given: float | None
) -> PlannedFinish:
    """Mean and scenario of a run with the spares that it needs.

    Args:
        job: and its best layout.
        best: the layout, with the 80 % interval of its step.
        work: time of all steps, with the input `step_time`.
        run_file: says the failures of a node and the interval of checkpoints, where those are known.
        given: arguments of `planned_failures`.

    Raises:
        UsageError: the run fails too often to advance.
    """
    failures = failures_of(job, best, work, run_file, **given)
    spares = spares_needed(failures, limit=assumed("time without nodes"))
    interval = written_interval(best, run_file)
    mean = expected(failures, work=work, spares=spares, shortest=work.inputs["step_time"], interval=interval)
    spread = spread_of(best.low_s, best.high_s)
    scenario = scenario_of(
        failures, work_s=work.value, interval_s=mean.interval.value, work_spread=spread, spares=round(spares.value)
    )
    return PlannedFinish(failures, spares, mean, scenario)


def simulated_finish(job: AnyJob, best: Prediction, work: Traced, run_file: RunFile) -> tuple[float, float, float]:
    """Seconds after which a tenth, half and nine tenths of the simulated runs are done, failures included.

    They are those of `size` for the same nodes. Arguments and errors are those of `planned_finish`; a run whose mean
    takes more than ten times its work is refused as well, since its simulation takes as long as it is useless.
    """
    planned = planned_finish(job, best, work, run_file)
    if (times := planned.mean.run_time.value / work.value) > _MOST_TIMES:
        message = f"the run fails too often: with its failures it takes {times:,.0f} times as long as without"
        raise UsageError(message, hint="see what helps: `trainworks goodput`")
    outcome = simulate(planned.scenario, trials=TRIALS, most_events=MOST_EVENTS)
    low_s, median_s, high_s = (outcome.quantile_s(share) for share in (0.1, 0.5, 0.9))
    return low_s, median_s, high_s
