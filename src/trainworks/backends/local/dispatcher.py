"""The dispatcher of this machine's queue: starts waiting jobs and follows running ones.

One process per store, started by a submission, and gone when no job is left. It may be killed at any
moment: what it decides is in the store before it is done, and jobs continue without it. The next dispatcher
finds each job's own lock: a held lock means that the job runs.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal, TypedDict

from trainworks.backends.local.fair_share import FairShare, PublishedJob, published_jobs
from trainworks.backends.local.launcher import Launcher, Supervised
from trainworks.backends.local.machine import (
    LocalNode,
    devices_free,
    drained_accelerators,
    drained_text,
    held_text,
    running_elsewhere,
    running_job,
    shares_of,
    snapshot_nodes,
    waiting_job,
)
from trainworks.backends.local.outcome import STOPPED_BEFORE_START, launch_failed, outcome_of
from trainworks.backends.local.quotas import Holding, QueuePolicy, holding_of, queue_policy
from trainworks.backends.ownership import may_end, obeyed_drains, stopped_by
from trainworks.backends.submission import end_of_dependent, unmet_dependencies
from trainworks.errors import EnvironmentProblem, NotOwnerError, RunFileError, TrainworksError
from trainworks.host.clock import Clock
from trainworks.host.ledger import Claim
from trainworks.host.users import this_host
from trainworks.jobs.job_row import JobChanges, JobRow, Placement
from trainworks.jobs.job_spec import Dependency, parse_dependency
from trainworks.jobs.state import JobState, parse_state
from trainworks.jobs.store import JobStore
from trainworks.queueing.decide import decide
from trainworks.queueing.snapshot import Decision, Pending, Reason, Snapshot, queue_key
from trainworks.recover.restarts import restarts_counted

_MOST_REFUSALS = 3
"""Attempts in a row to launch a job that the machine refuses, e.g. because of a full disk."""


class _Mine(TypedDict):
    engine: str
    uid: int
    host: str


class Dispatcher:
    """Takes the queue forward, one look at a time.

    The `store` has all jobs; the local ones of this user on this machine are this dispatcher's. The `launcher` also
    finds supervisors that another dispatcher started. `fair_share` is this queue among those of all users; by default
    no other queue is known. `policy` gives the limits of the queue.
    """

    def __init__(
        self,
        store: JobStore,
        machine: Sequence[LocalNode],
        launcher: Launcher,
        clock: Clock,
        fair_share: FairShare | None = None,
        *,
        engine: str = "local",
        policy: Callable[[], QueuePolicy | None] = queue_policy,
    ) -> None:
        self._store = store
        self._machine = list(machine)
        self._launcher = launcher
        self._clock = clock
        self._fair_share = fair_share or FairShare(store, machine, clock, None, "")
        self._policy = policy
        self._mine: _Mine = {"engine": engine, "uid": os.getuid(), "host": this_host()}
        self._version = store.version()  # first: what changes meanwhile is seen twice, and not overlooked
        live = store.search(states=[state for state in JobState if not state.is_final], **self._mine)
        self._jobs = {job.id: _trusted(job) for job in reversed(live)}
        self._running: dict[int, Supervised] = {}
        self._asked_at: dict[int, float] = {}
        self._failed_launches: Counter[int] = Counter()  # in a row, of this dispatcher
        self._explained: dict[int, tuple[str, str, int, float | None]] = {}

    @property
    def is_idle(self) -> bool:
        """True if no job waits or runs."""
        return not self._jobs

    @property
    def running(self) -> list[Supervised]:
        """Supervisor processes to wait for."""
        return list(self._running.values())

    def look(self) -> None:
        """Follow running jobs, then start waiting ones."""
        self._refresh()
        if running := [job for job in self._jobs.values() if not job.state.waits]:
            for job in running:
                self._follow(job)
            self._refresh()
        # on request of an administrator; an owner ends such a job directly
        for job in [job for job in self._jobs.values() if job.state.waits and job.asked_to_end is not None]:
            changes: JobChanges = {"asked_to_end": None, "asked_by": None}
            stopped = STOPPED_BEFORE_START.because(stopped_by(job))
            if self._store.move(job.id, stopped, since=(job.state,), now=self._clock.now(), **changes):
                self._launcher.stopped(job)
            self._forget(job.id)
        self._serve()

    def _refresh(self) -> None:
        newest = self._store.version()
        if newest == self._version:
            return
        for job in self._store.changed(self._version, **self._mine):
            newest = max(newest, job.version)
            if job.state.is_final:
                self._forget(job.id)
            else:
                self._jobs[job.id] = _trusted(job)
        self._version = newest

    def _forget(self, job_id: int) -> None:
        for kept in (self._jobs, self._running, self._asked_at, self._failed_launches, self._explained):
            kept.pop(job_id, None)

    def _follow(self, job: JobRow) -> None:
        supervised = self._running.get(job.id) or self._adopt(job)
        if supervised is None or not supervised.is_alive():
            self._conclude(job)
            return
        state = parse_state(self._launcher.status(job).state)
        if state is not job.state and state.holds_resources:
            self._store.move(job.id, state, now=self._clock.now())
        now = self._clock.now()
        if job.asked_to_end is None and now >= _last_moment(job):
            self._store.change(job.id, now=now, asked_to_end="time_limit", asked_by=os.getuid())
            self._ask(job, supervised)
        elif job.asked_to_end is not None and job.id not in self._asked_at:
            self._ask(job, supervised)
        elif job.asked_to_end == "kill":
            supervised.end(at_once=True)

    def _adopt(self, job: JobRow) -> Supervised | None:
        found = self._launcher.adopt(job)
        if found is not None:
            self._running[job.id] = found
        return found

    def _ask(self, job: JobRow, supervised: Supervised) -> None:
        """Ask once: the supervisor kills the job when its grace period is over."""
        self._asked_at[job.id] = self._clock.now()
        supervised.end(at_once=job.asked_to_end == "kill")

    def _conclude(self, job: JobRow) -> None:
        """Find out how a job without a supervisor ended, unless some of its processes still run.

        A request to end it decides what follows, also one that comes meanwhile: the next look then does this again.
        """
        status = self._launcher.last_words(job)
        self._refresh()
        if status is None or job.id not in self._jobs:
            return
        job = self._jobs[job.id]
        launched = self._running.pop(job.id, None) is not None
        self._asked_at.pop(job.id, None)
        if parse_state(status.state) is not JobState.CREATED:
            del self._failed_launches[job.id]
        elif launched:
            self._failed_launches[job.id] += 1
        events = self._launcher.events(job)
        alive = max([status.updated_at, *(float(event["t"]) for event in events[-1:])])  # maybe long ago
        ended_at = max(job.started_at or job.submitted_at, min(alive, self._clock.now()))
        end = replace(outcome_of(job, status, events, self._failed_launches[job.id]), at=ended_at)
        if end.state == JobState.STOPPED:
            end = end.because(stopped_by(job))
        waits = parse_state(end.state).waits
        if waits:
            self._launcher.back_in_line(job, end)
        else:
            self._launcher.concluded(job, end)
        self._store.move(
            job.id,
            end,
            version=job.version,
            now=self._clock.now(),
            asked_to_end=None,
            asked_by=None,
            placement=(),
            restarts=restarts_counted(self._launcher.events(job), waits=waits),
        )

    def _serve(self) -> None:
        waiting = [job for job in self._jobs.values() if job.state.waits]
        try:
            policy = self._policy() or QueuePolicy()
        except (EnvironmentProblem, RunFileError) as error:  # nobody starts anything until the limits are known again
            if waiting:
                why = ": ".join(part for part in (error.place, error.message) if part)
                line = sorted(waiting, key=lambda job: queue_key(job.priority, job.submitted_at, job.id))
                pending = {job.id: Pending(Reason.QUOTA, why, place, None) for place, job in enumerate(line, start=1)}
                self._explain(Decision(pending=pending), self._elsewhere(), {})
            return
        published = self._start_waiting(waiting, policy) if waiting else ()
        self._fair_share.publish(policy, self._jobs.values(), published)

    def _elsewhere(self) -> frozenset[Claim]:
        return self._launcher.elsewhere(job for job in self._jobs.values() if not job.state.waits)

    def _start_waiting(self, waiting: Sequence[JobRow], policy: QueuePolicy) -> tuple[PublishedJob, ...]:
        """Start what can start, and return the first jobs that still wait for room."""
        elsewhere = self._elsewhere()
        drained, held = obeyed_drains(self._store), self._launcher.held(elsewhere, self._machine, self._taken())
        held = [*held, *drained_accelerators(self._machine, drained, [*self._taken(), *held])]
        snapshot = self._snapshot(waiting, held, policy, elsewhere, drained)
        decision = decide(snapshot)
        for start in decision.starts:
            job = self._jobs[start.job_id]
            taken = [*self._taken(), *held]
            nodes = [node for node in self._machine if node.name in start.nodes]
            if job.spec.roles:  # each role has the nodes that were found for it
                nodes.sort(key=lambda node: start.nodes.index(node.name))
            placement = [
                Placement(node.name, share.cores or 0.0, devices_free(node, taken)[: share.accelerators])
                for node, share in zip(nodes, shares_of(job.spec, self._machine), strict=False)
            ]
            if self._launcher.claim(job, placement, elsewhere):
                try:
                    self._start(job, placement)
                finally:
                    self._launcher.let_go(job)
        for preempt in decision.preempts:
            self._store.change(preempt.job_id, now=self._clock.now(), asked_to_end="preempt", asked_by=os.getuid())
        for cancel in decision.cancels:
            job = self._jobs[cancel.job_id]
            ended = end_of_dependent(self._unmet(job))
            self._launcher.concluded(job, ended)
            self._store.move(job.id, ended, now=self._clock.now())
        self._explain(decision, elsewhere, drained)
        return published_jobs(self._jobs, snapshot, decision) if policy.fair_share else ()

    def _taken(self) -> list[Placement]:
        return [one for job in self._jobs.values() for one in job.placement]

    def _snapshot(
        self,
        waiting: Sequence[JobRow],
        held: Sequence[Placement],
        policy: QueuePolicy,
        elsewhere: frozenset[Claim],
        drained: Mapping[str, str],
    ) -> Snapshot:
        """What the decision rests on; `held` is what the jobs of others take, and drained accelerators."""
        uid = os.getuid()
        order = self._fair_share.order(policy, self._jobs.values(), elsewhere)
        running = tuple(running_job(job, self._machine) for job in self._jobs.values() if not job.state.waits)
        return Snapshot(
            now=self._clock.now(),
            nodes=snapshot_nodes(self._machine, drained),
            waiting=order.elsewhere
            + tuple(
                waiting_job(
                    job,
                    self._machine,
                    self._dependencies(job),
                    policy.accounts_of(uid, job.team),
                    order.ranks.get((uid, job.team), ()),
                )
                for job in waiting
            ),
            running=running + running_elsewhere(held, self._clock.now()),
            quotas=policy.quotas(
                [*map(holding_of, elsewhere), *self._holdings()],
                self._fair_share.accelerator_hours(policy, self._jobs.values()),
            ),
        )

    def _holdings(self) -> list[Holding]:
        return [
            Holding(os.getuid(), job.run_id, job.team, one.cores, len(one.devices))
            for job in self._jobs.values()
            for one in job.placement
            if not job.state.waits
        ]

    def _dependencies(self, job: JobRow) -> Literal["met", "waiting", "failed"]:
        """States of the jobs this one depends on; an unknown job counts as failed."""
        if self._unmet(job):
            return "failed"
        return "met" if all(one is None or one.state.is_final for _, one in self._awaited(job)) else "waiting"

    def _unmet(self, job: JobRow) -> list[str]:
        """Dependencies of a job that can no longer be met."""
        return unmet_dependencies(self._awaited(job))

    def _awaited(self, job: JobRow) -> list[tuple[Dependency, JobRow | None]]:
        """Dependencies of a job, each with its job; None if that is gone."""
        return [(one, self._store.find(one.job, uid=job.uid)) for one in map(parse_dependency, job.spec.depends_on)]

    def _start(self, job: JobRow, placement: Sequence[Placement]) -> None:
        """Record the start, then launch: if the dispatcher dies in between, its successor requeues the job."""
        if job.asked_by is not None:  # an administrator's retry, who does not write in the run directory
            with suppress(TrainworksError, OSError):
                self._launcher.back_in_line(job)
        started = self._store.start(job, placement, now=self._clock.now())
        if started is None:
            return
        self._jobs[job.id] = started
        try:
            self._running[job.id] = self._launcher.launch(started)
        except (TrainworksError, OSError) as error:  # one bad run directory must not keep the others waiting
            self._failed_launches[job.id] += 1
            is_final = self._failed_launches[job.id] >= _MOST_REFUSALS or isinstance(error, NotOwnerError)
            end = launch_failed(str(error), hint=error.hint if isinstance(error, TrainworksError) else None)
            end = end if is_final else replace(end, state=JobState.QUEUED)
            self._store.move(job.id, end, now=self._clock.now())
            if is_final:
                self._launcher.concluded(started, end)

    def _explain(self, decision: Decision, elsewhere: frozenset[Claim], drained: Mapping[str, str]) -> None:
        """Store the changed reasons why the other jobs wait."""
        devices = [device for node in self._machine for device in node.devices]
        held = held_text(elsewhere, sum(node.cores for node in self._machine), devices)
        held = ", ".join(filter(None, [held, drained_text(self._machine, drained)]))
        pending = {
            job_id: (
                str(one.reason),
                f"{one.detail}; {held}" if held and one.reason is Reason.RESOURCES else one.detail,
                one.position,
                one.starts_at,
            )
            for job_id, one in decision.pending.items()
        }
        self._store.explain({job_id: why for job_id, why in pending.items() if self._explained.get(job_id) != why})
        self._explained = pending


def _trusted(job: JobRow) -> JobRow:
    """The job without a request to end from a user without the right to end it."""
    if job.asked_to_end is None or may_end(job.asked_by):
        return job
    return replace(job, asked_to_end=None, asked_by=None)


def _last_moment(job: JobRow) -> float:
    """Time to ask a job to end so that it meets its time limit; at least half of the limit is left to the job."""
    limit = job.spec.time_limit_s
    if limit is None or job.started_at is None:
        return math.inf
    return job.started_at + limit - min(job.spec.grace_s, limit / 2)
