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

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from trainworks.errors import UsageError
from trainworks.plan.reliability.scenario import CAUSES, Array, Scenario, SimulationOutcome
from trainworks.units import format_duration

_Rows = npt.NDArray[np.intp]
"""Trials to which something happens."""
_MOST_EVENTS = 5_000
"""Expected events of one trial; the work that would bring more is simulated in part."""
_LEAST_PROGRESS = 0.05
"""Share of the work that the expected number of events has to bring."""
_FIRST_EVENTS = 500
"""Events between two checks of the progress."""
_ROUNDING = 1e-9


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
    part = min(1.0, most_events / max(1.0, _expected_events(scenario)))
    run = _Run(replace(scenario, work_s=part * scenario.work_s), trials, np.random.default_rng(seed))
    events = 0
    while run.running.any():
        run.step()
        events += 1
        if progress is not None and events % 64 == 0:
            progress(float(1 - (run.left / run.work).max()))
        if events % _FIRST_EVENTS == 0:
            _check_progress(run, events, most_events)
    return _outcome(run, part)


def _expected_events(scenario: Scenario) -> float:
    """Events of a job that loses no time to any of them."""
    return scenario.work_s * _interruptions_per_s(scenario)


def _interruptions_per_s(scenario: Scenario) -> float:
    s = scenario
    return s.num_nodes / s.node_mttf_s + 1 / s.other_mttf_s + s.num_nodes / s.slow_mttf_s + 1 / s.preempt_s


def _outcome(run: _Run, part: float) -> SimulationOutcome:
    """Outcome of all the work, scaled from that of a part; the first wait in the queue counts once."""
    badput = {cause: seconds if cause == "queueing" else seconds / part for cause, seconds in run.badput.items()}
    failures, preemptions = (np.rint(counts / part).astype(np.int64) for counts in (run.failures, run.preemptions))
    return SimulationOutcome(run.work / part, badput, failures, preemptions)


def _check_progress(run: _Run, events: int, most_events: int) -> None:
    """Refuse a job that is interrupted so often that it would take far too many events."""
    done = float(1 - (run.left / run.work).mean())
    if events * _LEAST_PROGRESS > done * most_events:
        s = run.scenario
        raise UsageError(
            f"the job does not finish: something stops it every {format_duration(1 / _interruptions_per_s(s))}, and a "
            f"checkpoint takes {format_duration(s.save_s + s.write_s)}; after {events:,} interruptions it has trained "
            f"{100 * float((run.work - run.left).mean() / run.now.mean()):.2g} % of the time",
            hint="use fewer or more reliable nodes, recover faster, or save more often",
        )


class _Run:
    """State of all trials; every array has one entry per trial, the pool one row."""

    def __init__(self, scenario: Scenario, trials: int, rng: np.random.Generator) -> None:
        self.scenario, self.rng = scenario, rng
        self.work: Array = scenario.work_s * np.exp(scenario.work_spread * rng.standard_normal(trials))
        self.left = self.work.copy()
        self.badput = {cause: np.zeros(trials) for cause in CAUSES}
        self.badput["queueing"] += scenario.queue_s
        self.now = np.full(trials, scenario.queue_s)
        self.down = np.zeros(trials)
        """Recovery that has still to pass."""
        self.phase = np.zeros(trials)
        """Time since the end of the newest checkpoint."""
        self.unsaved = np.zeros(trials)
        """Work since then."""
        self.pending = np.zeros(trials)
        """Work of the cycle before, whose checkpoint may not be written yet."""
        self.found_at = np.full(trials, np.inf)
        """Time at which the straggler is found; infinite without one."""
        self.slow = np.zeros(trials, dtype=bool)
        self.missing = np.zeros(trials, dtype=np.int64)
        """Replicas that the job goes without."""
        can_miss = scenario.replica_nodes * (scenario.replicas - scenario.min_replicas)
        self.pool = np.full((trials, scenario.spares + can_miss), np.inf)
        """Time at which each node outside the job is ready; infinite for an empty place."""
        self.pool[:, : scenario.spares] = 0.0
        self.running = np.ones(trials, dtype=bool)
        self.repair_s = np.zeros(trials)
        self.capacity_wait_s = np.zeros(trials)
        """Drawn for every event of any kind, so that scenarios with other spares see the same failures."""
        self.failures = np.zeros(trials, dtype=np.int64)
        self.preemptions = np.zeros(trials, dtype=np.int64)

    def step(self) -> None:
        """Advance every trial to its next event."""
        rates = self._rates()
        total = rates.sum(axis=0)
        with np.errstate(divide="ignore"):
            alarm = self.rng.standard_exponential(len(total)) / total
        speed = self._speed()
        finish = self.down + self._time_to_finish(speed)
        back_at = self._back_at()
        planned = np.maximum(np.minimum(self.found_at, back_at) - self.now, 0.0)
        passed = np.where(self.running, np.minimum(np.minimum(finish, alarm), planned), 0.0)
        self._pass(passed, speed)
        self.running &= finish > passed
        struck = self.running & (alarm <= passed)
        due = self.running & ~struck
        kind = (self.rng.random(len(total)) * total > np.cumsum(rates, axis=0)).sum(axis=0)
        self.repair_s = self.scenario.repair_s * self.rng.standard_exponential(len(total))
        self.capacity_wait_s = self.scenario.capacity_wait_s * self.rng.standard_exponential(len(total))
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
        s = self.scenario
        nodes = s.num_nodes * (1 - self.missing / s.replicas)
        constant = np.ones_like(nodes)
        becomes_slow = ~self.slow * nodes / s.slow_mttf_s
        return np.stack([nodes / s.node_mttf_s, constant / s.other_mttf_s, becomes_slow, constant / s.preempt_s])

    def _speed(self) -> Array:
        slowed: Array = np.where(self.slow, self.scenario.slow_speed, 1.0) * self._present()
        return slowed

    def _present(self) -> Array:
        share: Array = 1 - self.missing / self.scenario.replicas
        return share

    def _back_at(self) -> Array:
        """Time at which the pool has enough nodes for a missing replica."""
        if not self.missing.any():
            return np.full(len(self.missing), np.inf)
        each = self.scenario.replica_nodes
        enough: Array = np.partition(self.pool, each - 1, axis=1)[:, each - 1]
        return np.where(self.missing > 0, enough, np.inf)

    def _time_to_finish(self, speed: Array) -> Array:
        """Time to finish the remaining work, with a checkpoint after every interval and at the end."""
        interval, save = self.scenario.interval_s, self.scenario.save_s
        worked = np.minimum(self.phase, interval) + self.left / speed
        full = np.maximum(np.ceil(worked / interval - _ROUNDING) - 1, 0.0)
        time: Array = worked + full * save + save - self.phase
        return time

    def _pass(self, passed: Array, speed: Array) -> None:
        """Advance time without events: first recovery, then work and checkpoints."""
        interval, cycle = self.scenario.interval_s, self.scenario.interval_s + self.scenario.save_s
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
        self.down[rows] += self.scenario.swap_s
        self._take_other_node(rows, known_s=self.scenario.detect_s)

    def _fail(self, rows: _Rows) -> None:
        self._lose(rows)
        self.failures[rows] += 1
        self.down[rows] = self.scenario.detect_s + self.scenario.restart_s

    def _lose(self, rows: _Rows) -> None:
        """Back to the newest checkpoint that is complete."""
        unwritten = self.phase[rows] < self.scenario.write_s
        lost = self.unsaved[rows] + np.where(unwritten, self.pending[rows], 0.0)
        self.left[rows] += lost
        self.badput["lost work"][rows] += lost
        self._begin_cycle(rows)

    def _save(self, rows: _Rows) -> None:
        """A checkpoint out of turn, if there is anything to save."""
        took = np.where(self.down[rows] == 0, self.scenario.save_s + self.scenario.write_s, 0.0)
        self._spend(rows, took, "checkpoint")
        self._begin_cycle(rows)

    def _begin_cycle(self, rows: _Rows) -> None:
        for state in (self.phase, self.unsaved, self.pending):
            state[rows] = 0.0

    def _spend(self, rows: _Rows, took_s: Array, cause: str) -> None:
        self.now[rows] += took_s
        self.badput[cause][rows] += took_s

    def _take_other_node(self, rows: _Rows, *, known_s: float) -> None:
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
        leaves = (ready > detected) & (self.missing[rows] < self.scenario.replicas - self.scenario.min_replicas)
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
        places = self.pool[rows].argsort(axis=1)[:, -self.scenario.replica_nodes :]
        self.pool[rows[:, None], places] = self.now[rows, None]
        self.pool[rows, places[:, -1]] = ready

    def _slow_down(self, rows: _Rows) -> None:
        self.slow[rows] = True
        self.found_at[rows] = self.now[rows] + self.scenario.slow_found_s

    def _speed_up(self, rows: _Rows) -> None:
        self.slow[rows] = False
        self.found_at[rows] = np.inf

    def _replace_straggler(self, rows: _Rows) -> None:
        self._save(rows)
        self._speed_up(rows)
        self._stand_still(rows, self.scenario.restart_s + self.scenario.swap_s)
        self._take_other_node(rows, known_s=0.0)

    def _rejoin(self, rows: _Rows) -> None:
        """A missing replica is whole again: save, and start anew with it."""
        s = self.scenario
        self._save(rows)
        places = self.pool[rows].argsort(axis=1)[:, : self.scenario.replica_nodes]
        self.pool[rows[:, None], places] = np.inf
        self.missing[rows] -= 1
        self._stand_still(rows, s.restart_s + s.swap_s if s.rejoin_s is None else s.rejoin_s)

    def _stand_still(self, rows: _Rows, for_s: float) -> None:
        """A planned restart; one during a recovery ends no sooner than that."""
        self.down[rows] = np.maximum(self.down[rows], for_s)

    def _preempt(self, rows: _Rows) -> None:
        if self.scenario.saves_before_preemption:
            self._save(rows)
        else:
            self._lose(rows)
        self._speed_up(rows)
        self.preemptions[rows] += 1
        self.down[rows] = self.scenario.restart_s
        self._spend(rows, self.capacity_wait_s[rows], "preempted")
