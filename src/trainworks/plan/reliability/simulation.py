"""Event simulation of a run, many trials at once.

Only work and checkpoints happen between two events, and a closed formula counts them: a cycle is T of work and C of
saving. So all trials step from event to event together, as arrays, and the cost of a run grows with its failures, not
its length. A run that expects more events than the bound is simulated for a part of its work, and its times are scaled
up: after thousands of events the rest behaves like that part.

    events    a node fails | the job fails | a node becomes slow | capacity is taken | a slow node is found |
              a missing node is back | the work is done
    rates     N / node MTTF + 1 / other MTTF + N / slow MTTF + 1 / preemption; the time to the first is exponential
    failure   work since the newest complete checkpoint is lost; detection and restart follow, in which it may fail
              again; a node that fails goes to repair and becomes a spare
    no spare  an elastic job continues without one replica; any other waits for the first node that is repaired
    waiting   nothing fails while the job waits for a node or for capacity
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from trainworks.errors import UsageError
from trainworks.plan.reliability.scenario import Scenario, SimulationOutcome
from trainworks.plan.reliability.trials import SimulatedTrials
from trainworks.units import format_duration

_MOST_EVENTS = 5_000
"""Expected events of one trial; the work that would bring more is simulated in part."""
_LEAST_PROGRESS = 0.05
"""Share of the work that the expected number of events has to bring."""
_FIRST_EVENTS = 500
"""Events between two checks of the progress."""


def simulate(
    scenario: Scenario,
    *,
    trials: int = 1000,
    seed: int = 1,
    most_events: int = _MOST_EVENTS,
    progress: Callable[[float], None] | None = None,
) -> SimulationOutcome:
    """Simulate the scenario in many independent trials.

    Args:
        scenario: rates and durations.
        trials: independent runs.
        seed: the same seed gives the same trials; scenarios that differ in their spares alone share their failures.
        most_events: expected events of a trial above which only a part of the work is simulated.
        progress: called with the finished share of the slowest trial.

    Raises:
        UsageError: the job fails so often that it does not finish.
    """
    (outcome,) = _together([scenario], trials, seed, most_events, progress)
    if isinstance(outcome, UsageError):
        raise outcome
    return outcome


def simulate_all(
    scenarios: Sequence[Scenario], *, trials: int = 1000, seed: int = 1, most_events: int = _MOST_EVENTS
) -> list[SimulationOutcome | UsageError]:
    """Outcome of each scenario as `simulate` has it, or its error; several times faster than one after the other.

    Scenarios with equal replicas and spares advance as the same arrays.
    """
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for index, scenario in enumerate(scenarios):
        alike[_structure(scenario)].append(index)
    found: dict[int, SimulationOutcome | UsageError] = {}
    for indices in alike.values():
        outcomes = _together([scenarios[index] for index in indices], trials, seed, most_events)
        found.update(zip(indices, outcomes, strict=True))
    return [found[index] for index in range(len(scenarios))]


def _structure(scenario: Scenario) -> Hashable:
    """What decides the shapes of the arrays and the branches that all trials take."""
    s = scenario
    leaving = s.replica_nodes if s.min_replicas < s.replicas else 0
    return s.replicas, s.min_replicas, leaving, s.spares, s.saves_before_preemption


def _together(
    scenarios: Sequence[Scenario],
    trials: int,
    seed: int,
    most_events: int,
    progress: Callable[[float], None] | None = None,
) -> list[SimulationOutcome | UsageError]:
    """Simulate scenarios of one structure; each draws the same numbers as it does alone."""
    parts = [min(1.0, most_events / max(1.0, _expected_events(scenario))) for scenario in scenarios]
    work_s = [part * scenario.work_s for part, scenario in zip(parts, scenarios, strict=True)]
    run = SimulatedTrials(scenarios, np.repeat(work_s, trials), trials, np.random.default_rng(seed))
    errors: dict[int, UsageError] = {}
    events = 0
    while run.running.any():
        run.step()
        events += 1
        if progress is not None and events % 64 == 0:
            progress(float(1 - (run.left / run.work).max()))
        if events % _FIRST_EVENTS == 0:
            errors |= _without_progress(run, scenarios, events, most_events)
    return [
        errors.get(index) or _outcome(run, slice(index * trials, (index + 1) * trials), part)
        for index, part in enumerate(parts)
    ]


def _expected_events(scenario: Scenario) -> float:
    """Events of a job that loses no time to any of them."""
    return scenario.work_s * _interruptions_per_s(scenario)


def _interruptions_per_s(scenario: Scenario) -> float:
    s = scenario
    return s.num_nodes / s.node_mttf_s + 1 / s.other_mttf_s + s.num_nodes / s.slow_mttf_s + 1 / s.preempt_s


def _outcome(run: SimulatedTrials, rows: slice, part: float) -> SimulationOutcome:
    """Outcome of all the work, scaled from that of a part; the first wait in the queue counts once."""
    badput = {
        cause: seconds[rows] if cause == "queueing" else seconds[rows] / part for cause, seconds in run.badput.items()
    }
    failures, preemptions = (
        np.rint(counts[rows] / part).astype(np.int64) for counts in (run.failures, run.preemptions)
    )
    return SimulationOutcome(run.work[rows] / part, badput, failures, preemptions)


def _without_progress(
    run: SimulatedTrials, scenarios: Sequence[Scenario], events: int, most_events: int
) -> dict[int, UsageError]:
    """Stop the jobs that are interrupted so often that they would take far too many events; returns their errors."""
    stopped = {}
    running = run.running.reshape(len(scenarios), -1)
    left, work, now = (values.reshape(running.shape) for values in (run.left, run.work, run.now))
    for index, scenario in enumerate(scenarios):
        done = float(1 - (left[index] / work[index]).mean())
        if running[index].any() and events * _LEAST_PROGRESS > done * most_events:
            trained = float((work[index] - left[index]).mean() / now[index].mean())
            stopped[index] = _endless(scenario, events, trained)
            running[index] = False
    return stopped


def _endless(s: Scenario, events: int, trained: float) -> UsageError:
    return UsageError(
        f"the job does not finish: something stops it every {format_duration(1 / _interruptions_per_s(s))}, and a "
        f"checkpoint takes {format_duration(s.save_s + s.write_s)}; after {events:,} interruptions it has trained "
        f"{100 * trained:.2g} % of the time",
        hint="use fewer or more reliable nodes, recover faster, or save more often",
    )
