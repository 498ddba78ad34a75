"""Fair share and accelerator hours among the queues of all users of this machine.

Every dispatcher publishes one file beside the claims of the ledger: what the jobs of its queue have used, the
accelerator hours that they have held this month, and its first waiting jobs. The owner of a file is its user;
everything else in it is checked. The use and the hours outlive the dispatcher. The jobs count while the dispatcher
lives: it touches the file at every look, so the jobs of one that was killed, hangs or has lost its store delay others
by some seconds at most.

Use is the larger one of a job's parts of the cores and of the accelerators of the machine, times seconds, decayed.
It is computed from the attempts in the job store since the file was last written, so a dispatcher that is killed loses
and counts nothing twice.

Users are trusted: a user can write any use into a file of their own.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

from pydantic import Field, ValidationError

from trainworks.backends.local.machine import LocalNode
from trainworks.backends.local.quotas import AcceleratorHours, QueuePolicy
from trainworks.config.spec import Frozen, RunId
from trainworks.errors import DiskFullError
from trainworks.files import write_atomic
from trainworks.host.clock import Clock
from trainworks.host.ledger import Claim, claim_key, opened, plain_content
from trainworks.host.users import this_host, user_name
from trainworks.jobs.job_row import JobRow, Month, month_of
from trainworks.queueing.fair_share import Rank, decayed, ranks, use_of
from trainworks.queueing.snapshot import Decision, GangShape, QueuedJob, Reason, Snapshot

if TYPE_CHECKING:
    from trainworks.jobs.store import JobStore

_LARGEST = 64 * 1024
_MOST_JOBS = 32
"""Waiting jobs that a queue publishes: as many of them can start before others read the next ones."""
_MOST_FILES = 4096
_MOST_PER_USER = 16
_ALIVE_S = 5.0
"""Time after its last look for which a dispatcher counts as alive."""
_USE_EVERY_S = 30.0
_USE_SOON_S = 2.0
"""Shortest time between two computations of the use, if jobs have started or ended."""
_LATER = 2**62
"""Job numbers of users with a higher number: jobs of the same rank and age have one order in all queues."""
_CONTENDS = {Reason.RESOURCES, Reason.PRIORITY, Reason.PREEMPTING}
"""Reasons of jobs that start once there is room for them."""

_Amount = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=10**15)]
_Short = Annotated[str, Field(max_length=253)]


class PublishedNodes(Frozen):
    """Nodes that a waiting job asks for, and what it takes of each."""

    nodes_min: Annotated[int, Field(ge=1, le=10**6)]
    nodes_max: Annotated[int, Field(ge=1, le=10**6)]
    cores: _Amount
    accelerators: _Count
    memory_bytes: _Count
    exclude: Annotated[tuple[_Short, ...], Field(max_length=64)] = ()
    """Nodes that it does not take, or that its user has drained."""

    def shape(self, roles: Iterable[PublishedNodes] = ()) -> GangShape:
        """The gang that they are."""
        return GangShape(
            nodes_min=self.nodes_min,
            nodes_max=max(self.nodes_min, self.nodes_max),
            cores_per_node=self.cores,
            accelerators_per_node=self.accelerators,
            accelerator=None,
            memory_per_node_bytes=self.memory_bytes,
            exclude=frozenset(self.exclude),
            roles=tuple(role.shape() for role in roles),
        )


class PublishedJob(PublishedNodes):
    """A waiting job that starts once there is room for it."""

    run: RunId
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Key that its claim will have."""
    team: _Short = ""
    """Team that the job names."""
    priority: Annotated[int, Field(ge=0, le=100)]
    submitted_at: _Amount
    time_limit_s: _Amount | None = None
    roles: Annotated[tuple[PublishedNodes, ...], Field(max_length=64)] = ()
    """Nodes of each role; all of them in the order of the job."""


class PublishedQueue(Frozen):
    """What one queue of a user has used, and its first waiting jobs."""

    at: _Amount = 0.0
    """Time of the use; 0 before it was first computed."""
    use: Annotated[dict[_Short, _Amount], Field(max_length=256)] = Field(default_factory=dict)
    """Decayed use by the team that the jobs name, in seconds of the whole machine."""
    hours_at: _Amount = 0.0
    """Time of the hours; 0 before they were first computed."""
    hours: Annotated[dict[_Short, _Amount], Field(max_length=256)] = Field(default_factory=dict)
    """Accelerator hours held in the month of `hours_at`, by the team that the jobs name."""
    waiting: Annotated[tuple[PublishedJob, ...], Field(max_length=_MOST_JOBS)] = ()

    def hours_in(self, month: Month) -> dict[str, float]:
        """Accelerator hours held in a month, by the team that the jobs name."""
        return dict(self.hours) if month.begins_at <= self.hours_at < month.ends_at else {}


@dataclass(frozen=True, slots=True)
class OtherQueue:
    """A queue that another dispatcher has published."""

    uid: int
    published: PublishedQueue
    seen_at: float
    """Last look of its dispatcher."""


@dataclass(frozen=True, slots=True)
class FairOrder:
    """Ranks of all users and teams, and the waiting jobs of other queues."""

    ranks: Mapping[tuple[int, str], Rank] = field(default_factory=dict)
    """Rank of each user with each team that a job names."""
    elsewhere: tuple[QueuedJob, ...] = ()


def fair_order(
    policy: QueuePolicy,
    own_uid: int,
    use: Mapping[tuple[int, str], float],
    others: Iterable[OtherQueue],
    claims: Iterable[Claim],
    now: float,
) -> FairOrder:
    """Order of the queues of this machine; without ranks and other jobs if the policy has no fair share.

    `use` of this queue, whose user is `own_uid`, is that at `now` by user and team: every team that its jobs name is in
    it, also without use. `claims` are those of jobs that run.
    """
    if policy.fair_share is None:
        return FairOrder()
    together, running = dict(use), {(claim.uid, claim.share.key) for claim in claims}
    waiting: list[tuple[int, PublishedJob]] = []
    for other in others:
        for team, used in other.published.use.items():
            left = decayed(used, now - other.published.at, policy.fair_share.half_life)
            together[other.uid, team] = together.get((other.uid, team), 0.0) + left
        if abs(now - other.seen_at) <= _ALIVE_S:
            waiting += [(other.uid, job) for job in other.published.waiting if (other.uid, job.key) not in running]
    for uid, job in waiting:
        together.setdefault((uid, job.team), 0.0)
    found = ranks(
        {key: policy.accounts_of(*key) for key in sorted(together)},
        {f"team {name}": team.shares for name, team in policy.teams.items()},
        together,
    )
    elsewhere = tuple(
        _queued_elsewhere(uid, job, policy, -number if uid < own_uid else _LATER + number, found[uid, job.team])
        for number, (uid, job) in enumerate(waiting, start=1)
    )
    return FairOrder(found, elsewhere)


def _queued_elsewhere(uid: int, job: PublishedJob, policy: QueuePolicy, job_id: int, rank: Rank) -> QueuedJob:
    return QueuedJob(
        job_id=job_id,
        shape=job.shape(job.roles),
        priority=job.priority,
        submitted_at=job.submitted_at,
        time_limit_s=job.time_limit_s,
        accounts=policy.accounts_of(uid, job.team),
        rank=rank,
        elsewhere=f"{user_name(uid)}'s job {job.run}",
    )


def published_jobs(jobs: Mapping[int, JobRow], snapshot: Snapshot, decision: Decision) -> tuple[PublishedJob, ...]:
    """The first jobs of this queue that wait for room, in their order."""
    queued = {job.job_id: job for job in snapshot.waiting}
    drained = {node.name for node in snapshot.nodes if not node.in_service}
    waiting = [job_id for job_id, pending in decision.pending.items() if pending.reason in _CONTENDS]
    return tuple(_published(jobs[job_id], queued[job_id], drained) for job_id in waiting[:_MOST_JOBS])


def _published(row: JobRow, job: QueuedJob, drained: set[str]) -> PublishedJob:
    shape = job.shape
    return PublishedJob(
        run=row.run_id,
        key=claim_key(row.run_dir),
        team=row.team,
        priority=job.priority,
        submitted_at=job.submitted_at,
        time_limit_s=job.time_limit_s,
        roles=tuple(PublishedNodes(**_amounts(role, drained)) for role in shape.roles),
        **_amounts(shape, drained),
    )


def _amounts(shape: GangShape, drained: Set[str]) -> dict[str, Any]:
    return {
        "nodes_min": shape.nodes_min,
        "nodes_max": shape.nodes_max,
        "cores": shape.cores_per_node,
        "accelerators": shape.accelerators_per_node,
        "memory_bytes": shape.memory_per_node_bytes,
        "exclude": tuple(sorted(shape.exclude | drained)[:64]),
    }


@final
class FairShare:
    """One queue among those of all users.

    No other queue is known without the `folder` of a ledger. The name `queue` is the same for every dispatcher that
    serves this queue.
    """

    def __init__(
        self, store: JobStore, machine: Sequence[LocalNode], clock: Clock, folder: Path | None, queue: str
    ) -> None:
        self._store = store
        self._cores = sum(node.cores for node in machine)
        self._devices = sum(len(node.devices) for node in machine)
        self._clock = clock
        self._file = folder / f"trainworks-{claim_key(queue)}.queue" if folder else None
        self._own: PublishedQueue | None = None
        self._written: PublishedQueue | None = None
        self._running: frozenset[tuple[int, int]] = frozenset()
        self._complaint = ""

    def order(self, policy: QueuePolicy, jobs: Iterable[JobRow], claims: Iterable[Claim]) -> FairOrder:
        """Order of the waiting jobs of all queues: `jobs` are those of this queue, `claims` those of jobs that run in
        others.
        """
        if policy.fair_share is None:
            return FairOrder()
        own, now = self._known(), self._clock.now()
        use = {(os.getuid(), job.team): 0.0 for job in jobs}
        for team, used in own.use.items():
            use[os.getuid(), team] = decayed(used, now - own.at, policy.fair_share.half_life)
        return fair_order(policy, os.getuid(), use, self._others(), claims, now)

    def accelerator_hours(self, policy: QueuePolicy, jobs: Iterable[JobRow]) -> AcceleratorHours | None:
        """Accelerator hours that the jobs of all queues have held this month, `jobs` of this queue among them; None if
        the policy does not limit them.
        """
        if not policy.limits_hours:
            return None
        self._own = self._counted(policy, jobs)
        return hours_of([OtherQueue(os.getuid(), self._own, 0.0), *self._others()], self._clock.now())

    def publish(self, policy: QueuePolicy, jobs: Iterable[JobRow], waiting: tuple[PublishedJob, ...]) -> None:
        """Publish the use, the hours and the waiting jobs of this queue, and that its dispatcher lives.

        Nothing is published without fair share and limits of hours. `waiting` are the first waiting jobs.
        """
        if policy.fair_share is None and not policy.limits_hours:
            return
        now = self._clock.now()
        self._own = new = self._counted(policy, jobs).model_copy(update={"waiting": waiting})
        try:
            if self._file is not None:
                if new != self._written:
                    write_atomic(self._file, new.model_dump_json(exclude_defaults=True))
                self._written = new
                os.utime(self._file, (now, now))
            self._complaint = ""
        except (OSError, DiskFullError) as error:
            self._written = None
            text = f"cannot write to the ledger of this machine: {error}"
            if text != self._complaint:
                self._complaint = text
                sys.stderr.write(f"{text}\n")

    def _counted(self, policy: QueuePolicy, jobs: Iterable[JobRow]) -> PublishedQueue:
        """This queue with its use and hours until now; until some seconds ago, to spare the store."""
        queue, now = self._known(), self._clock.now()
        running = frozenset((job.id, job.attempt) for job in jobs if not job.state.waits)
        due_after = _USE_EVERY_S if running == self._running else _USE_SOON_S
        if policy.fair_share is not None and not 0 <= now - queue.at < due_after:
            use = {team: decayed(used, now - queue.at, policy.fair_share.half_life) for team, used in queue.use.items()}
            for one in self._store.held_since(queue.at, uid=os.getuid(), host=this_host()):
                began, ended = max(one.started_at, queue.at), now if one.ended_at is None else one.ended_at
                of_devices = one.accelerators / self._devices if self._devices else 0.0
                part = max(one.cores / self._cores, of_devices)
                used = use_of(part, began=began, ended=ended, now=now, half_life_s=policy.fair_share.half_life)
                use[one.billing.team] = use.get(one.billing.team, 0.0) + used
            queue, self._running = queue.model_copy(update={"at": now, "use": use}), running
        if policy.limits_hours and not 0 <= now - queue.hours_at < due_after:
            queue, self._running = self._with_hours(queue, now), running
        return queue

    def _with_hours(self, queue: PublishedQueue, now: float) -> PublishedQueue:
        """The queue with the accelerator hours that its jobs have held this month until now."""
        month = month_of(now)
        since, hours = max(queue.hours_at, month.begins_at), queue.hours_in(month)
        for one in self._store.held_since(since, uid=os.getuid(), host=this_host()):
            part = replace(one, started_at=max(one.started_at, since))
            hours[one.billing.team] = hours.get(one.billing.team, 0.0) + part.hours(now) * part.accelerators
        return queue.model_copy(update={"hours_at": now, "hours": hours})

    def _known(self) -> PublishedQueue:
        """What this queue has published, also through an earlier dispatcher."""
        if self._own is None:
            found = _read(self._file) if self._file else None
            self._own = found.published if found and found.uid == os.getuid() else PublishedQueue()
        return self._own

    def _others(self) -> list[OtherQueue]:
        return published_queues(self._file.parent, besides=self._file.name) if self._file else []


def hours_of(queues: Iterable[OtherQueue], now: float) -> AcceleratorHours:
    """Accelerator hours that the jobs of some queues have held in the month of a time."""
    month = month_of(now)
    used: dict[tuple[int, str], float] = {}
    for queue in queues:
        for team, hours in queue.published.hours_in(month).items():
            used[queue.uid, team] = used.get((queue.uid, team), 0.0) + hours
    return AcceleratorHours(month, used)


def published_queues(folder: Path, besides: str = "") -> list[OtherQueue]:
    """Queues that are published in the folder of a ledger, but for the file `besides`."""
    names: list[str] = []
    with suppress(OSError), os.scandir(folder) as entries:
        names = [entry.name for entry in entries if re.fullmatch(r"trainworks-[0-9a-f]{32}\.queue", entry.name)]
    counts: Counter[int] = Counter()
    found = []
    for name in sorted(names)[:_MOST_FILES]:
        if name == besides or (other := _read(folder / name)) is None:
            continue
        counts[other.uid] += 1
        if counts[other.uid] <= _MOST_PER_USER:
            found.append(other)
    return found


def _read(path: Path) -> OtherQueue | None:
    """A published queue; None if it cannot be read or is not well-formed."""
    try:
        with opened(path) as handle:
            facts, content = plain_content(handle, _LARGEST)
        return OtherQueue(facts.st_uid, PublishedQueue.model_validate_json(content), facts.st_mtime)
    except (OSError, ValidationError):
        return None
