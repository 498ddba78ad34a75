"""Scheduling decision: which jobs start now, which are preempted, and why the others wait.

The queue is ordered by priority, fair share, submission time and job number; see `fair_share.py`. Jobs that are held,
too early or dependent are not eligible, nor are those for which too few nodes are in service, nor those whose team or
user has no quota left; see `quota.py`. The queue is served from the front:

1. A job that fits starts on as many nodes as are free, up to its maximum. No job gets a part of its minimum.
2. A job that fits once the ending jobs are gone has those nodes promised.
3. A job that fits if running jobs of a lower priority are preempted preempts them, unless a reservation would start it
   at least as soon; see `preemption.py`.
4. The first job that none of this helps gets a reservation. Jobs behind it start only if they do not delay it, and
   preempt no others; see `backfill.py`.

The first jobs of other queues of the same nodes are served in the same order, with the nodes that they would get: if
all queues decide so, none starts a job that delays a better one, and every queue starts its own.

Priorities are strict: a stream of jobs of a higher priority keeps the others waiting, and priorities do not grow with
time. Every job of one priority is served eventually.

Of the running jobs, as few as possible are preempted; among equally few, those of the lowest priority, then the
youngest, which lose the least work. A single sufficient job is always found, and for a gang of one node the smallest
set. For several nodes the search is greedy, node by node, and for roles job by job; in its result every chosen job is
needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from trainworks.queueing.backfill import Backfill, StartForecast, reserve
from trainworks.queueing.placement import Amounts, FreeResources, Gang, NodeIndex, fits, place, plus
from trainworks.queueing.quota import Accounts
from trainworks.queueing.reasons import explain_precedence, leaving_text, short_text, unavailable_text
from trainworks.queueing.snapshot import (
    Cancel,
    Decision,
    Pending,
    Preempt,
    QueuedJob,
    Reason,
    RunningJob,
    Snapshot,
    Start,
    queue_key,
)
from trainworks.units import format_duration

_MOST_TOGETHER = 10
"""Jobs on a node whose combinations are all tried; of more, the lesser go first until there is room."""


def jobs_to_preempt(
    gang: Gang, priority: int, resources: FreeResources, running: Iterable[RunningJob]
) -> list[RunningJob]:
    """The jobs to preempt so that the gang fits once they and all that are ending have gone; none if nothing helps."""
    ending = {job.job_id for job, _ in resources.leaving}
    able = [job for job in running if job.preemptible and job.priority < priority and job.job_id not in ending]
    able = sorted((job for job in able if resources.stay_of(job).nodes), key=_worth)
    if not place(gang, _amounts_without(able, resources)):
        return []
    for job in able:
        if place(gang, _amounts_without([job], resources)):
            return [job]
    if gang.roles:
        more = (able[:count] for count in range(2, len(able) + 1))
        chosen = next(jobs for jobs in more if place(gang, _amounts_without(jobs, resources)))
    else:
        racks = gang.racks or dict.fromkeys(gang.candidates, "")
        names = sorted({racks[index] for index in gang.candidates})
        groups = [[index for index in gang.candidates if racks[index] == name] for name in names]
        chosen = min((_node_by_node(gang, resources, group, able) for group in groups), key=_loss)
    for job in sorted(chosen, key=_worth, reverse=True):
        spared = [other for other in chosen if other is not job]
        if place(gang, _amounts_without(spared, resources)):
            chosen = spared
    return chosen


def _worth(job: RunningJob) -> tuple[int, float, int]:
    """Least first: the lowest priority, the youngest."""
    return (job.priority, -job.started_at, -job.job_id)


def _loss(jobs: Sequence[RunningJob]) -> tuple[float, list[tuple[int, float, int]]]:
    """Cost of preempting several jobs: their number, then their worth. Preempting none is infeasible."""
    return (len(jobs) or math.inf, sorted(map(_worth, jobs), reverse=True))


def _amounts_without(jobs: Iterable[RunningJob], resources: FreeResources) -> list[Amounts]:
    free = list(resources.soon)
    for job in jobs:
        stay = resources.stay_of(job)
        for index, need in zip(stay.nodes, stay.needs, strict=True):
            free[index] = plus(free[index], need)
    return free


def _node_by_node(
    gang: Gang, resources: FreeResources, candidates: Sequence[int], able: Sequence[RunningJob]
) -> list[RunningJob]:
    """Clear the node that costs the least, again and again, until the gang has its nodes; empty if it never has."""
    there: dict[int, list[_Held]] = {index: [] for index in candidates}
    for job in able:
        stay = resources.stay_of(job)
        for index, need in zip(stay.nodes, stay.needs, strict=True):
            if index in there:
                there[index].append((job, need))
    chosen: list[RunningJob] = []
    while True:
        free = _amounts_without(chosen, resources)
        blocked = [index for index in candidates if not fits(gang.need, free[index])]
        if len(candidates) - len(blocked) >= gang.nodes_min:
            return chosen
        left = [[held for held in there[index] if held[0] not in chosen] for index in blocked]
        ways = [_fewest(gang.need, free[index], jobs) for index, jobs in zip(blocked, left, strict=True)]
        best = min(ways, key=_loss)
        if not best:
            return []
        chosen += best


_Held = tuple[RunningJob, Amounts]
"""A job on a node, and what it holds of it."""


def _fewest(need: Amounts, free: Amounts, held: Sequence[_Held]) -> list[RunningJob]:
    """The fewest jobs of a node that make room on it; empty if all together do not."""
    for count in range(1, len(held) + 1 if len(held) <= _MOST_TOGETHER else 2):
        groups = [[job for job, _ in some] for some in combinations(held, count) if _make_room(need, free, some)]
        if groups:
            return min(groups, key=_loss)
    first = [held[:count] for count in range(2, len(held) + 1)]
    return next(([job for job, _ in some] for some in first if _make_room(need, free, some)), [])


def _make_room(need: Amounts, free: Amounts, held: Iterable[_Held]) -> bool:
    for _, amounts in held:
        free = plus(free, amounts)
    return fits(need, free)


MOST_ESTIMATES = 1000
"""Jobs at the front of the queue that get an estimated start; further back it is costly and of little use."""


def decide(snapshot: Snapshot) -> Decision:
    """Decide from a snapshot alone; the order of its tuples does not matter."""
    line, aside, cancels = _sorted_out(snapshot)
    resources = FreeResources.of(snapshot)
    service = _Service(snapshot, resources)
    for position, waiting in enumerate(line):
        job = service.admit(waiting)
        if job is not None and not service.serve(job):
            service.backfill(job, line[position + 1 :])
            break
    _estimate(service.waits, resources)
    return Decision(
        starts=tuple(service.starts),
        preempts=tuple(service.preempts),
        cancels=tuple(cancels),
        pending={
            wait.job.job_id: Pending(
                reason=wait.reason, detail=wait.detail, position=position, starts_at=wait.starts_at
            )
            for position, wait in enumerate(service.waits + aside, start=1)
            if not wait.job.elsewhere
        },
    )


@dataclass(slots=True)
class _Wait:
    job: QueuedJob
    reason: Reason
    detail: str
    starts_at: float | None = None
    gang: Gang | None = None
    """Gang of an eligible job whose start is still to be estimated."""
    nodes: Sequence[int] = ()
    """Nodes reserved for it."""


def _order(job: QueuedJob) -> tuple[int, tuple[float, ...], float, int]:
    """Sort key: the one of the queue, with the fair share before the age."""
    fair_share = tuple([one.used_of_share for one in job.rank]) if job.rank else ()
    priority, submitted_at, number = queue_key(job.priority, job.submitted_at, job.job_id)
    return (priority, fair_share, submitted_at, number)


def _sorted_out(snapshot: Snapshot) -> tuple[list[QueuedJob], list[_Wait], list[Cancel]]:
    """Eligible jobs in queue order, jobs that are not eligible yet, and jobs that can never run."""
    line, aside, cancels = [], [], []
    for job in sorted(snapshot.waiting, key=_order):
        if job.depends == "failed":
            cancels.append(Cancel(job_id=job.job_id))
        elif job.held:
            aside.append(_Wait(job, Reason.HELD, "held until it is released"))
        elif job.depends == "waiting":
            aside.append(_Wait(job, Reason.DEPENDENCY, "waits for the jobs that it depends on"))
        elif job.begins_at is not None and job.begins_at > snapshot.now:
            left = format_duration(job.begins_at - snapshot.now)
            aside.append(_Wait(job, Reason.BEGIN_TIME, f"not to begin for another {left}", job.begins_at))
        else:
            line.append(job)
    return line, aside, cancels


class _Service:
    def __init__(self, snapshot: Snapshot, resources: FreeResources) -> None:
        self._running = snapshot.running
        self._everywhere = NodeIndex(snapshot.nodes)
        self._resources = resources
        self._accounts = Accounts(snapshot.quotas)
        self._unavailable: dict[int, str] = {}
        self.starts: list[Start] = []
        self.preempts: list[Preempt] = []
        self.waits: list[_Wait] = []
        self._let_first: list[QueuedJob] = []
        """Jobs of other queues that could start now."""

    def admit(self, job: QueuedJob) -> QueuedJob | None:
        """The job with as many nodes as its quotas allow; None if it waits for them."""
        admitted = self._accounts.admit(job)
        if isinstance(admitted, str):
            self.waits.append(_Wait(job, Reason.QUOTA, admitted))
            return None
        return admitted

    def serve(self, job: QueuedJob) -> bool:
        """Do for a job what can be done; False if that is nothing, so that all behind it have to mind it."""
        gang = self._resources.node_index.gang(job.shape)
        if not gang.candidates:
            self._wait_for_nodes(job, gang)
            return True
        nodes = place(gang, self._resources.free)
        if nodes:
            self._resources.start(gang, nodes, job.time_limit_s)
            self._started(job, nodes)
            return True
        nodes = place(gang, self._resources.soon) or self._preempt(job, gang)
        if nodes:
            # keep nodes for it while it waits for others to go
            self._accounts.charge(job, len(nodes))
            resources = self._resources
            needs = zip(nodes, gang.needs(nodes), strict=True)
            short = {index for index, need in needs if not fits(need, resources.unused[index])}
            leaving = [(other, stay) for other, stay in resources.leaving if short.intersection(stay.nodes)]
            starts_at = max((stay.ends_at for _, stay in leaving), default=resources.now)
            preempted = [other.job_id for other, _ in leaving if other.preemptible and other.priority < job.priority]
            detail = leaving_text(preempted or [other.job_id for other, _ in leaving], preempted=bool(preempted))
            self.waits.append(_Wait(job, Reason.PREEMPTING if preempted else Reason.RESOURCES, detail, starts_at))
            resources.promise(gang, nodes, starts_at, job.time_limit_s)
        return bool(nodes)

    def backfill(self, head: QueuedJob, others: Sequence[QueuedJob]) -> None:
        """Reserve for the head, and start of the others what does not delay it."""
        resources, gang = self._resources, self._resources.node_index.gang(head.shape)
        reservation = reserve(gang, resources)
        short = short_text(head.shape, gang, resources)
        if self._let_first:
            short = f"{short}; {explain_precedence(head, self._let_first[-1])}"
        self.waits.append(_Wait(head, Reason.RESOURCES, short, reservation.starts_at, gang, reservation.nodes))
        self._accounts.charge(head, head.shape.nodes_min)
        filling = Backfill(resources, reservation)
        behind = explain_precedence(head, head)  # once for all of one rank: there may be ten thousand
        for waiting in others:
            job = self.admit(waiting)
            if job is None:
                continue
            gang = resources.node_index.gang(job.shape)
            if not gang.candidates:
                self._wait_for_nodes(job, gang)
            elif nodes := filling.start(gang, job.time_limit_s):
                self._started(job, nodes)
            else:
                why = behind if job.rank is head.rank else explain_precedence(job, head)
                self.waits.append(_Wait(job, Reason.PRIORITY, why, None, gang))

    def _started(self, job: QueuedJob, nodes: Sequence[int]) -> None:
        self._accounts.charge(job, len(nodes))
        if job.elsewhere:
            self._let_first.append(job)
            return
        names = tuple(self._resources.node_index.nodes[index].name for index in nodes)
        self.starts.append(Start(job_id=job.job_id, nodes=names))

    def _wait_for_nodes(self, job: QueuedJob, gang: Gang) -> None:
        if gang.number not in self._unavailable:
            self._unavailable[gang.number] = unavailable_text(job.shape, self._everywhere)
        self.waits.append(_Wait(job, Reason.NODES_UNAVAILABLE, self._unavailable[gang.number]))

    def _preempt(self, job: QueuedJob, gang: Gang) -> list[int]:
        resources = self._resources
        if job.elsewhere:
            return []
        chosen = jobs_to_preempt(gang, job.priority, resources, self._running)
        starts_at = reserve(gang, resources).starts_at if chosen else None
        gone_by = resources.now + max((other.grace_s for other in chosen), default=0.0)
        if not chosen or (starts_at is not None and starts_at <= gone_by):
            return []
        for other in chosen:
            resources.ask_to_end(other)
            self.preempts.append(Preempt(job_id=other.job_id, for_job=job.job_id))
        return place(gang, resources.soon)


def _estimate(waits: Sequence[_Wait], resources: FreeResources) -> None:
    forecast = StartForecast(resources)
    for wait in waits[:MOST_ESTIMATES]:
        limit = wait.job.time_limit_s
        if wait.gang is None:
            continue
        if wait.reason is Reason.PRIORITY:
            wait.starts_at = forecast.starts_at(wait.gang, limit)
        elif wait.starts_at is None:
            forecast.close(wait.gang)
        else:
            ends_at = math.inf if limit is None else wait.starts_at + limit
            forecast.keep(wait.gang, wait.nodes, ends_at)
