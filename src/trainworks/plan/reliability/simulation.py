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
from dataclasses import dataclass, fields, replace
from functools import partial
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from trainworks.errors import UsageError
from trainworks.plan.reliability.scenario import CAUSES, Array, Scenario, SimulationOutcome
from trainworks.units import format_duration

_Rows = npt.NDArray[np.intp]
"""Trials to which something happens."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class _Times:
    """Rates and durations of a `Scenario`, one entry per trial."""

    num_nodes: Array
    work_spread: Array
    queue_s: Array
    interval_s: Array
    node_mttf_s: Array
    other_mttf_s: Array
    save_s: Array
    write_s: Array
    detect_s: Array
    restart_s: Array
    swap_s: Array
    repair_s: Array
    slow_mttf_s: Array
    slow_speed: Array
    slow_found_s: Array
    capacity_life_s: Array
    capacity_wait_s: Array
    rejoin_s: Array

    @classmethod
    def of(cls, scenarios: Sequence[Scenario], trials: int) -> _Times:
        """Times of every trial of every scenario, one scenario after the other."""
        known = [s if s.rejoin_s is not None else replace(s, rejoin_s=s.restart_s + s.swap_s) for s in scenarios]
        names = [field.name for field in fields(cls)]
        return cls(*(np.repeat([float(getattr(s, name)) for s in known], trials) for name in names))


def _even_normal(rng: np.random.Generator, count: int) -> Array:
    """Standard normal numbers at even quantiles in random order: a few hundred trials have the exact spread of work."""
    quantile = NormalDist().inv_cdf
    return rng.permutation([quantile((rank + 0.5) / count) for rank in range(count)])


class SimulatedTrials:
    """State of all trials of scenarios of one structure; every array has one entry per trial, the pool one row."""

    def __init__(self, scenarios: Sequence[Scenario], work_s: Array, trials: int, rng: np.random.Generator) -> None:
        scenario, count = scenarios[0], len(work_s)
        self.replicas, self.may_miss = scenario.replicas, scenario.replicas - scenario.min_replicas
        self.replica_nodes, self.saves_before_preemption = scenario.replica_nodes, scenario.saves_before_preemption
        self.times = _Times.of(scenarios, trials)
        self.rng, self.trials, self.repeats = rng, trials, len(scenarios)
        self.work: Array = work_s * np.exp(self.times.work_spread * self._drawn(partial(_even_normal, rng)))
        self.left = self.work.copy()
        self.badput = {cause: np.zeros(count) for cause in CAUSES}
        self.badput["queueing"] += self.times.queue_s
        self.now = self.times.queue_s.copy()
        self.down = np.zeros(count)
        """Recovery that has still to pass."""
        self.phase = np.zeros(count)
        """Time since the end of the newest checkpoint."""
        self.unsaved = np.zeros(count)
        """Work since then."""
        self.pending = np.zeros(count)
        """Work of the cycle before, whose checkpoint may not be written yet."""
        self.found_at = np.full(count, np.inf)
        """Time at which the straggler is found; infinite without one."""
        self.slow = np.zeros(count, dtype=bool)
        self.missing = np.zeros(count, dtype=np.int64)
        """Replicas that the job goes without."""
        self.pool = np.full((count, scenario.spares + self.replica_nodes * self.may_miss), np.inf)
        """Time at which each node outside the job is ready; infinite for an empty place."""
        self.pool[:, : scenario.spares] = 0.0
        self.running = np.ones(count, dtype=bool)
        self.repair_s, self.capacity_wait_s = np.zeros(count), np.zeros(count)
        """Drawn for every event of any kind, so that scenarios with other spares see the same failures."""
        self.failures, self.preemptions = (np.zeros(count, dtype=np.int64) for _ in range(2))

    def _drawn(self, draw: Callable[[int], Array]) -> Array:
        """Random numbers of all trials; those of one scenario are those of every other."""
        return np.tile(draw(self.trials), self.repeats)

    def step(self) -> None:
        """Advance every trial to its next event."""
        rates = self._rates()
        total = rates.sum(axis=0)
        with np.errstate(divide="ignore"):
            alarm = self._drawn(self.rng.standard_exponential) / total
        speed: Array = np.where(self.slow, self.times.slow_speed, 1.0) * self._present()
        finish = self.down + self._time_to_finish(speed)
        back_at = self._back_at()
        planned = np.maximum(np.minimum(self.found_at, back_at) - self.now, 0.0)
        passed = np.where(self.running, np.minimum(np.minimum(finish, alarm), planned), 0.0)
        self._pass(passed, speed)
        self.running &= finish > passed
        struck = self.running & (alarm <= passed)
        due = self.running & ~struck
        kind = (self._drawn(self.rng.random) * total > np.cumsum(rates, axis=0)).sum(axis=0)
        self.repair_s = self.times.repair_s * self._drawn(self.rng.standard_exponential)
        self.capacity_wait_s = self.times.capacity_wait_s * self._drawn(self.rng.standard_exponential)
        happened = {
            self._fail_node: struck & (kind == 0),
            self._fail: struck & (kind == 1),
            self._slow_down: struck & (kind == 2),
            self._preempt: struck & (kind >= 3),
            self._replace_straggler: due & (self.found_at <= back_at),
            self._rejoin: due & (back_at < self.found_at),
        }
        for act, where in happened.items():
            rows = np.flatnonzero(where)
            if rows.size:
                act(rows)

    def _rates(self) -> Array:
        """Rates of node failures, other failures, new stragglers and preemptions; shape [4, trials]."""
        s = self.times
        nodes = s.num_nodes * self._present()
        becomes_slow = ~self.slow * nodes / s.slow_mttf_s
        return np.stack([nodes / s.node_mttf_s, 1 / s.other_mttf_s, becomes_slow, 1 / s.capacity_life_s])

    def _present(self) -> Array:
        share: Array = 1 - self.missing / self.replicas
        return share

    def _back_at(self) -> Array:
        """Time at which the pool has enough nodes for a missing replica."""
        if not self.missing.any():
            return np.full(len(self.missing), np.inf)
        each = self.replica_nodes
        enough: Array = np.partition(self.pool, each - 1, axis=1)[:, each - 1]
        return np.where(self.missing > 0, enough, np.inf)

    def _time_to_finish(self, speed: Array) -> Array:
        """Time to finish the remaining work, with a checkpoint after every interval and at the end."""
        interval, save = self.times.interval_s, self.times.save_s
        worked = np.minimum(self.phase, interval) + self.left / speed
        full = np.maximum(np.ceil(worked / interval - _ROUNDING) - 1, 0.0)
        time: Array = worked + full * save + save - self.phase
        return time

    def _pass(self, passed: Array, speed: Array) -> None:
        """Advance time without events: first recovery, then work and checkpoints."""
        interval, cycle = self.times.interval_s, self.times.interval_s + self.times.save_s
        recovered = np.minimum(passed, self.down)
        self.down -= recovered
        self.badput["recovery"] += recovered
        ran = passed - recovered
        end = self.phase + ran
        cycles = np.floor(end / cycle + _ROUNDING)
        end = np.maximum(end - cycles * cycle, 0.0)
        already = np.minimum(self.phase, interval)
        useful = np.minimum((cycles * interval + np.minimum(end, interval) - already) * speed, self.left)
        busy = useful / speed
        self.badput["checkpoint"] += ran - busy
        present = self._present()
        self.badput["fewer nodes"] += busy * (1 - present)
        self.badput["straggling"] += busy * (present - speed)
        first = self.unsaved + (interval - already) * speed
        self.pending = np.where(cycles > 1, interval * speed, np.where(cycles == 1, first, self.pending))
        self.unsaved = np.where(cycles > 0, np.minimum(end, interval) * speed, self.unsaved + useful)
        self.phase = end
        self.left -= useful
        self.now += passed

    def _fail_node(self, rows: _Rows) -> None:
        self._fail(rows)
        self.down[rows] += self.times.swap_s[rows]
        self._take_other_node(rows, known_s=self.times.detect_s[rows])

    def _fail(self, rows: _Rows) -> None:
        self._lose(rows)
        self.failures[rows] += 1
        self.down[rows] = self.times.detect_s[rows] + self.times.restart_s[rows]

    def _lose(self, rows: _Rows) -> None:
        """Back to the newest checkpoint that is complete."""
        unwritten = self.phase[rows] < self.times.write_s[rows]
        lost = self.unsaved[rows] + np.where(unwritten, self.pending[rows], 0.0)
        self.left[rows] += lost
        self.badput["lost work"][rows] += lost
        self._begin_cycle(rows)

    def _save(self, rows: _Rows) -> None:
        """A checkpoint out of turn, if there is anything to save."""
        took = np.where(self.down[rows] == 0, self.times.save_s[rows] + self.times.write_s[rows], 0.0)
        self._spend(rows, took, "checkpoint")
        self._begin_cycle(rows)

    def _begin_cycle(self, rows: _Rows) -> None:
        for state in (self.phase, self.unsaved, self.pending):
            state[rows] = 0.0

    def _spend(self, rows: _Rows, took_s: Array, cause: str) -> None:
        self.now[rows] += took_s
        self.badput[cause][rows] += took_s

    def _take_other_node(self, rows: _Rows, *, known_s: Array | float) -> None:
        """Take a ready spare, else continue without the replica, else wait for the first node that is repaired.

        The whole nodes of a replica that leaves are spares for the others.
        """
        detected, repaired = self.now[rows] + known_s, self.now[rows] + self.repair_s[rows]
        if not self.pool.shape[1]:
            self._spend(rows, np.maximum(repaired - detected, 0.0), "waiting for nodes")
            return
        pool = self.pool[rows]
        place = pool.argmin(axis=1)
        ready = pool[np.arange(len(rows)), place]
        leaves = (ready > detected) & (self.missing[rows] < self.may_miss)
        self._leave(rows[leaves], repaired[leaves])
        taken = ~leaves & (ready <= repaired)
        self.pool[rows[taken], place[taken]] = repaired[taken]
        wait = np.where(leaves, 0.0, np.maximum(np.minimum(ready, repaired) - detected, 0.0))
        self._spend(rows, wait, "waiting for nodes")

    def _leave(self, rows: _Rows, ready: Array) -> None:
        """A replica leaves: one of its nodes is ready then, the others now."""
        if not rows.size:
            return
        self.missing[rows] += 1
        places = self.pool[rows].argsort(axis=1)[:, -self.replica_nodes :]
        self.pool[rows[:, None], places] = self.now[rows, None]
        self.pool[rows, places[:, -1]] = ready

    def _slow_down(self, rows: _Rows) -> None:
        self.slow[rows] = True
        self.found_at[rows] = self.now[rows] + self.times.slow_found_s[rows]

    def _speed_up(self, rows: _Rows) -> None:
        self.slow[rows] = False
        self.found_at[rows] = np.inf

    def _replace_straggler(self, rows: _Rows) -> None:
        self._save(rows)
        self._speed_up(rows)
        self._stand_still(rows, self.times.restart_s[rows] + self.times.swap_s[rows])
        self._take_other_node(rows, known_s=0.0)

    def _rejoin(self, rows: _Rows) -> None:
        """A missing replica is whole again: save, and start anew with it."""
        self._save(rows)
        places = self.pool[rows].argsort(axis=1)[:, : self.replica_nodes]
        self.pool[rows[:, None], places] = np.inf
        self.missing[rows] -= 1
        self._stand_still(rows, self.times.rejoin_s[rows])

    def _stand_still(self, rows: _Rows, for_s: Array) -> None:
        """A planned restart; one during a recovery ends no sooner than that."""
        self.down[rows] = np.maximum(self.down[rows], for_s)

    def _preempt(self, rows: _Rows) -> None:
        if self.saves_before_preemption:
            self._save(rows)
        else:
            self._lose(rows)
        self._speed_up(rows)
        self.preemptions[rows] += 1
        self.down[rows] = self.times.restart_s[rows]
        self._spend(rows, self.capacity_wait_s[rows], "preempted")


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
        s = scenario
        leaving = s.replica_nodes if s.min_replicas < s.replicas else 0
        # What decides the shapes of the arrays and the branches that all trials take.
        alike[s.replicas, s.min_replicas, leaving, s.spares, s.saves_before_preemption].append(index)
    found: dict[int, SimulationOutcome | UsageError] = {}
    for indices in alike.values():
        outcomes = _together([scenarios[index] for index in indices], trials, seed, most_events)
        found.update(zip(indices, outcomes, strict=True))
    return [found[index] for index in range(len(scenarios))]


def _together(
    scenarios: Sequence[Scenario],
    trials: int,
    seed: int,
    most_events: int,
    progress: Callable[[float], None] | None = None,
) -> list[SimulationOutcome | UsageError]:
    """Simulate scenarios of one structure; each draws the same numbers as it does alone."""
    expected = [scenario.work_s * _interruptions_per_s(scenario) for scenario in scenarios]  # without time lost to them
    parts = [min(1.0, most_events / max(1.0, count)) for count in expected]
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
            errors |= _stop_hopeless(run, scenarios, events, most_events)
    return [
        errors.get(index) or _outcome(run, slice(index * trials, (index + 1) * trials), part)
        for index, part in enumerate(parts)
    ]


def _interruptions_per_s(scenario: Scenario) -> float:
    s = scenario
    return s.num_nodes / s.node_mttf_s + 1 / s.other_mttf_s + s.num_nodes / s.slow_mttf_s + 1 / s.capacity_life_s


def _outcome(run: SimulatedTrials, rows: slice, part: float) -> SimulationOutcome:
    """Outcome of all the work, scaled from that of a part; the first wait in the queue counts once."""
    badput = {
        cause: seconds[rows] if cause == "queueing" else seconds[rows] / part for cause, seconds in run.badput.items()
    }
    failures, preemptions = (
        np.rint(counts[rows] / part).astype(np.int64) for counts in (run.failures, run.preemptions)
    )
    return SimulationOutcome(run.work[rows] / part, badput, failures, preemptions)


def _stop_hopeless(
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
            every, takes = 1 / _interruptions_per_s(scenario), scenario.save_s + scenario.write_s
            stopped[index] = UsageError(
                f"the job does not finish: something stops it every {format_duration(every)}, and a checkpoint takes "
                f"{format_duration(takes)}; after {events:,} interruptions it has trained {100 * trained:.2g} % of the "
                "time",
                hint="use fewer or more reliable nodes, recover faster, or save more often",
            )
            running[index] = False
    return stopped
