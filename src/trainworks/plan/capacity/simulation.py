"""Replay of a trace: jobs queue, start as gangs, end, are interrupted on spot nodes; elastic nodes come and go.

The rules are those of the live queue (`queueing`), with equal nodes, known run times and elastic nodes. Every event
applies them in this order:

1. The queue is ordered by priority, then by submission. Jobs start from its front on fixed nodes, then on idle spot
   nodes (preemptible ones), then on idle on-demand nodes. A job runs on one class of nodes only.
2. The first job that has to wait for fixed nodes gets a reservation there. A later one may start if it ends before the
   reservation or takes none of its nodes (EASY). Only the first 100 jobs of the queue are considered. A job larger than
   all fixed nodes blocks the elastic ones, so that smaller jobs do not starve it.
3. While the backlog is above the policy's limit, or a job's patience is over, elastic nodes are ordered for it.

A lost spot node interrupts every job on it. With w the work since the job's last start, T its checkpoint interval, N
the notice and C one checkpoint, it loses min(w mod T, N) if C <= N, else w mod T. A job without an interval of its own
takes Young's, T = sqrt(2 C M / nodes), on spot nodes of mean life M, and runs 1 + C / T times as long there.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from trainworks.errors import UsageError
from trainworks.plan.capacity.jobs import JobTrace
from trainworks.plan.capacity.policy import FIXED, ON_DEMAND, SPOT, Elastic, Policy, kept_s, slowdown
from trainworks.queueing.backfill import ends_in_time
from trainworks.queueing.node_pool import NodePool, PoolNeed, pool_need
from trainworks.queueing.snapshot import queue_key


class ElasticPool(NodePool):
    """Nodes that come and go. Jobs can be assigned to an ordered node before it is ready."""

    def __init__(self, node_accelerators: int, terms: Elastic) -> None:
        super().__init__(node_accelerators)
        self.terms = terms
        self.paid_s = 0.0
        """Paid time of all nodes that have left."""
        self.most_nodes = 0
        self.ready_s: dict[int, float] = {}
        self._ordered_s: dict[int, float] = {}
        self._idle_since_s: dict[int, float] = {}
        self._num_ordered = 0

    @property
    def room(self) -> int:
        """Nodes that can still be ordered."""
        return self.terms.max_nodes - len(self.free)

    def missing(self, need: PoolNeed) -> int:
        """Nodes to order for a job that `find` has no place for."""
        count, each = need
        return count - self.num_empty if each == self.node_accelerators else 1

    def order(self, count: int, now_s: float) -> list[int]:
        """New nodes, paid from now on."""
        nodes = list(range(self._num_ordered, self._num_ordered + count))
        self._num_ordered += count
        for node in nodes:
            self.add(node)
            self._ordered_s[node] = now_s
            self.ready_s[node] = now_s + self.terms.start_latency_s
        self.most_nodes = max(self.most_nodes, len(self.free))
        return nodes

    def idle_until_s(self, node: int, now_s: float) -> float:
        """Time at which a node that became empty now is returned if no job takes it."""
        self._idle_since_s[node] = now_s
        return max(now_s + self.terms.idle_timeout_s, self._ordered_s[node] + self.terms.min_billing_s)

    def is_idle_since(self, node: int, since_s: float) -> bool:
        """True if the node is still here and has been empty since then."""
        return self.is_empty(node) and self._idle_since_s[node] == since_s

    def leave(self, node: int, now_s: float) -> None:
        """An empty node is given back or taken back, and its bill is paid."""
        self.paid_s += max(now_s - self._ordered_s.pop(node), self.terms.min_billing_s)
        self.remove(node)
        del self.ready_s[node]
        self._idle_since_s.pop(node, None)


class JobRun(NamedTuple):
    """A job on its nodes, from its start to its end or interruption."""

    job: int
    pool: str
    start_s: float
    end_s: float
    nodes: tuple[int, ...]
    each: int
    """Accelerators on every node."""
    setup_s: float
    """Before the first work."""
    stretch: float
    """Seconds for one second of work."""

    @property
    def accelerators(self) -> int:
        """Accelerators on all its nodes."""
        return len(self.nodes) * self.each


@dataclass(slots=True)
class Replay:
    """Waiting and end times of the jobs, by their index in the trace, and the capacity used."""

    wait_s: list[float]
    """Time in the queue and for starting nodes, before the first start and after every interruption."""
    end_s: list[float]
    runs: list[JobRun] = field(default_factory=list)
    bought_accelerator_s: dict[str, float] = field(default_factory=dict)
    """Paid, by class of nodes; of the fixed nodes until the last job has ended."""
    most_nodes: dict[str, int] = field(default_factory=dict)
    """Largest number of nodes at one time, by class."""
    wasted_accelerator_s: float = 0.0
    """Accelerator-seconds of restarts, lost work, and checkpoints taken because of spot nodes."""
    interruptions: int = 0


_DEPTH = 100
"""Jobs of the queue that one pass looks at."""
_MOST_INTERRUPTIONS = 1000
"""Interruptions of one job after which the replay reports that it never ends."""
_SPOT_ATTEMPTS = 3
"""Interruptions after which a job is kept off spot nodes if it fits elsewhere."""
_FIXED_ALONE = (FIXED,)
_GIVES, _TAKES = 0, 1
"""Order of simultaneous events: those that free nodes come first."""

_Reservation = tuple[float, set[int]]
"""Reservation of the first job that waits for fixed nodes: its latest start, and its nodes."""


def replay(trace: JobTrace, policy: Policy) -> Replay:
    """Run all jobs of a trace to their end under a policy.

    Raises:
        UsageError: a job fits on no class of nodes that it may use, or spot nodes die before it gets anywhere.
    """
    return _Simulation(trace, policy).run()


class _Simulation:
    def __init__(self, trace: JobTrace, policy: Policy) -> None:
        size, num_jobs = policy.node_accelerators, len(trace)
        self.policy = policy
        self.random = random.Random(policy.seed)  # noqa: S311, no secret depends on it
        self.fixed = NodePool(size, range(policy.fixed_nodes))
        self.elastic = {SPOT: ElasticPool(size, policy.spot), ON_DEMAND: ElasticPool(size, policy.on_demand)}
        self.pools: dict[str, NodePool] = {FIXED: self.fixed, **self.elastic}
        self.needs: list[PoolNeed] = [pool_need(int(wanted), size) for wanted in trace.accelerators]
        self.sizes = [count * each for count, each in self.needs]
        self.left_s: list[float] = trace.duration_s.tolist()
        self.checkpoint_s: list[float] = trace.checkpoint_s.tolist()
        self.since_s: list[float] = trace.submit_s.tolist()
        self.order = [*map(queue_key, trace.priority.tolist(), self.since_s, range(num_jobs))]
        self.allowed = [self._allowed(job, bool(may)) for job, may in enumerate(trace.preemptible)]
        self.interrupted = [0] * num_jobs
        self.queue: list[tuple[int, float, int]] = []
        self.queued_accelerator_s = 0.0
        self.running: dict[str, dict[int, JobRun]] = {name: {} for name in self.pools}
        self.reserved: _Reservation | None = None
        self.result = Replay(wait_s=[0.0] * num_jobs, end_s=[0.0] * num_jobs)
        self.num_events = num_jobs
        self.events: list[tuple[float, int, int, Callable[..., None], tuple[int | str | float, ...]]] = [
            (at, _TAKES, job, self._submit, (job,)) for job, at in enumerate(self.since_s)
        ]

    def run(self) -> Replay:
        """Every event in turn; then, once per moment, the queue."""
        events = self.events
        while events:
            self.now_s = events[0][0]
            while events and events[0][0] == self.now_s:
                _, _, _, act, subject = heapq.heappop(events)
                act(*subject)
            if self.queue:
                self._start_queued()
            if self.queue:
                self._order_nodes()
        return self._result()

    def _result(self) -> Replay:
        result, nodes, size = self.result, self.policy.fixed_nodes, self.policy.node_accelerators
        paid = {name: pool.paid_s * size for name, pool in self.elastic.items()}
        result.bought_accelerator_s = {FIXED: nodes * size * max(result.end_s), **paid}
        result.most_nodes = {FIXED: nodes, **{name: pool.most_nodes for name, pool in self.elastic.items()}}
        return result

    def _allowed(self, job: int, preemptible: bool) -> tuple[str, ...]:
        nodes = self.needs[job][0]
        most = {FIXED: self.policy.fixed_nodes, SPOT: self.policy.spot.max_nodes if preemptible else 0}
        most |= {ON_DEMAND: self.policy.on_demand.max_nodes}
        allowed = tuple(name for name in most if nodes <= most[name])
        if not allowed:
            limits = ", ".join(f"{count:,} {name}" for name, count in most.items())
            raise UsageError(
                f"a job needs {nodes:,} nodes, but it may use at most {limits} nodes",
                hint="allow as many fixed or on-demand nodes as the largest job needs",
            )
        return allowed

    # Events

    def _schedule(self, time_s: float, kind: int, act: Callable[..., None], *subject: int | str | float) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (time_s, kind, self.num_events, act, subject))

    def _submit(self, job: int) -> None:
        insort(self.queue, self.order[job])
        self.since_s[job] = self.now_s
        self.queued_accelerator_s += self._work(job)
        if self.policy.patience_s < math.inf:
            self._schedule(self.now_s + self.policy.patience_s, _TAKES, self._look_at_queue)

    def _look_at_queue(self) -> None:
        """A job's patience is over. The event only triggers the pass over the queue that follows every event."""

    def _end(self, job: int, name: str) -> None:
        run = self.running[name].get(job)
        if run is None or run.end_s != self.now_s:
            return  # it was interrupted, and perhaps runs again
        self._leave(run)
        self.result.end_s[job] = self.now_s
        self.result.wasted_accelerator_s += (run.setup_s + (run.stretch - 1) * self.left_s[job]) * run.accelerators

    def _leave(self, run: JobRun) -> None:
        del self.running[run.pool][run.job]
        self.result.runs.append(run._replace(end_s=self.now_s))
        self.result.wait_s[run.job] += min(run.start_s, self.now_s) - self.since_s[run.job]
        self.pools[run.pool].give_back(run.nodes, run.each)
        if run.pool != FIXED:
            for node in filter(self.pools[run.pool].is_empty, run.nodes):
                until_s = self.elastic[run.pool].idle_until_s(node, self.now_s)
                self._schedule(until_s, _GIVES, self._give_back_idle, run.pool, node, self.now_s)

    def _give_back_idle(self, name: str, node: int, since_s: float) -> None:
        if self.elastic[name].is_idle_since(node, since_s):
            self.elastic[name].leave(node, self.now_s)

    def _take_back(self, node: int) -> None:
        if node not in self.elastic[SPOT].free:
            return
        for run in [run for run in self.running[SPOT].values() if node in run.nodes]:
            self._interrupt(run)
        self.elastic[SPOT].leave(node, self.now_s)

    def _interrupt(self, run: JobRun) -> None:
        job = run.job
        self._leave(run)
        ran_s = max(0.0, self.now_s - run.start_s)
        work_s = max(0.0, ran_s - run.setup_s) / run.stretch
        saved_s = kept_s(self.policy.spot, len(run.nodes), self.checkpoint_s[job], work_s)
        self.left_s[job] -= saved_s
        self.result.wasted_accelerator_s += (ran_s - saved_s) * run.accelerators
        self.result.interruptions += 1
        self.interrupted[job] += 1
        if self.interrupted[job] > _MOST_INTERRUPTIONS:
            raise UsageError(
                f"a job of {len(run.nodes)} spot nodes was interrupted {_MOST_INTERRUPTIONS:,} times and never ended",
                hint="allow on-demand nodes, or a longer mean life of spot nodes",
            )
        self._submit(job)

    # The queue

    def _work(self, job: int) -> float:
        return self.sizes[job] * self.left_s[job]

    def _start_queued(self) -> None:
        queue, index, blocked = self.queue, 0, set[str]()
        head: int | None = None
        self.reserved = None
        most_free = self._most_free()
        while index < len(queue) and index < _DEPTH and most_free:
            job = queue[index][2]
            place = self._place(job, head, blocked) if self.sizes[job] <= most_free else None
            if place is not None:
                del queue[index]
                self._start(job, *place)
                most_free = self._most_free()
                continue
            if not self.policy.backfill:
                return
            if FIXED not in self.allowed[job]:
                blocked |= set(self.allowed[job])
            elif head is None:
                head = job
            index += 1

    def _most_free(self) -> int:
        return max(pool.free_accelerators for pool in self.pools.values())

    def _place(self, job: int, head: int | None, blocked: set[str]) -> tuple[str, list[int]] | None:
        need = self.needs[job]
        for name in self.allowed[job]:
            pool = self.pools[name]
            if self.sizes[job] > pool.free_accelerators or name in blocked or self._shuns(job, name):
                continue
            nodes = pool.find(need)
            if nodes and name == FIXED and head is not None:
                starts_s, kept = self._reservation(head)
                end_s = self.now_s + (self._setup_s(job) + self.left_s[job])  # to the last bit what `_start` will say
                if not ends_in_time(end_s, starts_s):
                    nodes = pool.find(need, avoid=kept)
            if nodes:
                return name, nodes
        return None

    def _shuns(self, job: int, name: str) -> bool:
        return name == SPOT and self.interrupted[job] >= _SPOT_ATTEMPTS and len(self.allowed[job]) > 1

    def _reservation(self, head: int) -> _Reservation:
        """The reservation of this pass. The next one makes its own: other nodes may have become free meanwhile."""
        if self.reserved is None:
            ends = ((run.end_s, run.nodes, run.each) for run in self.running[FIXED].values())
            self.reserved = self.fixed.reservation(self.needs[head], ends)
        return self.reserved

    def _setup_s(self, job: int) -> float:
        return self.policy.spot.restart_s if self.interrupted[job] else 0.0

    def _start(self, job: int, name: str, nodes: list[int]) -> None:
        self.queued_accelerator_s -= self._work(job)
        each = self.needs[job][1]
        self.pools[name].take(nodes, each)
        ready_s = 0.0 if name == FIXED else max(self.elastic[name].ready_s[node] for node in nodes)
        start_s, setup_s = max(self.now_s, ready_s), self._setup_s(job)
        stretch = slowdown(self.policy.spot, len(nodes), self.checkpoint_s[job]) if name == SPOT else 1.0
        end_s = start_s + (setup_s + self.left_s[job] * stretch)
        self.running[name][job] = JobRun(job, name, start_s, end_s, tuple(nodes), each, setup_s, stretch)
        self._schedule(end_s, _GIVES, self._end, job, name)

    # Elastic nodes

    def _order_nodes(self) -> None:
        queue, index, blocked = self.queue, 0, set[str]()
        room, allowed_accelerator_s = self._room(), self._allowed_backlog()
        while index < len(queue) and index < _DEPTH and room:
            job = queue[index][2]
            # At any backlog, nodes are ordered for a job that fits nowhere else or has waited long enough.
            is_pressing = FIXED not in self.allowed[job] or self.now_s >= self.since_s[job] + self.policy.patience_s
            is_due = is_pressing or self.queued_accelerator_s > allowed_accelerator_s
            name = self._ordered_from(job, blocked) if is_due and self.allowed[job] != _FIXED_ALONE else None
            if name is not None:
                del queue[index]
                self._start(job, name, self._ordered(job, name))
                room, allowed_accelerator_s = self._room(), self._allowed_backlog()
                continue
            if FIXED not in self.allowed[job]:
                blocked |= set(self.allowed[job])
            index += 1

    def _room(self) -> int:
        return max(pool.room for pool in self.elastic.values())

    def _allowed_backlog(self) -> float:
        at_hand = sum(len(pool.free) for pool in self.pools.values()) * self.policy.node_accelerators
        return self.policy.backlog_s * at_hand if at_hand else 0.0

    def _ordered_from(self, job: int, blocked: set[str]) -> str | None:
        for name in self.allowed[job]:
            if name == FIXED or name in blocked or self._shuns(job, name):
                continue
            if self.elastic[name].missing(self.needs[job]) <= self.elastic[name].room:
                return name
        return None

    def _ordered(self, job: int, name: str) -> list[int]:
        pool, need = self.elastic[name], self.needs[job]
        if not pool.find(need):
            for node in pool.order(pool.missing(need), self.now_s):
                if name == SPOT:
                    life_s = self.random.expovariate(1 / self.policy.spot.mean_life_s)
                    self._schedule(pool.ready_s[node] + life_s, _GIVES, self._take_back, node)
        return pool.find(need)
