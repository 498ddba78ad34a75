"""Choice of the running jobs to preempt for one of higher priority.

As few as possible; among equally few, those of the lowest priority, then the youngest, which lose the least work. A
single sufficient job is always found, and for a gang of one node the smallest set. For several nodes the search is
greedy, node by node; its result is minimal in the sense that every chosen job is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations

from trainworks.queueing.placement import Amounts, FreeResources, Gang, fits, need_of, place, plus
from trainworks.queueing.snapshot import RunningJob

_MOST_TOGETHER = 10
"""Jobs on a node whose combinations are all tried; of more, the lesser go first until there is room."""


def jobs_to_preempt(
    gang: Gang, priority: int, resources: FreeResources, running: Iterable[RunningJob]
) -> list[RunningJob]:
    """The jobs to preempt so that the gang fits once they and all that are ending have gone; none if nothing helps."""
    ending = {job.job_id for job, _ in resources.leaving}
    able = [job for job in running if job.preemptible and job.priority < priority and job.job_id not in ending]
    able = sorted((job for job in able if resources.stay_of(job).nodes), key=_worth)
    if not place(gang, _without(able, resources)):
        return []
    for job in able:
        if place(gang, _without([job], resources)):
            return [job]
    chosen = min((_node_by_node(gang, resources, group, able) for group in _racks(gang)), key=_loss)
    for job in sorted(chosen, key=_worth, reverse=True):
        spared = [other for other in chosen if other is not job]
        if place(gang, _without(spared, resources)):
            chosen = spared
    return chosen


def _worth(job: RunningJob) -> tuple[int, float, int]:
    """Least first: the lowest priority, the youngest."""
    return (job.priority, -job.started_at, -job.job_id)


def _loss(jobs: Sequence[RunningJob]) -> tuple[float, list[tuple[int, float, int]]]:
    """Cost of preempting several jobs: their number, then their worth. Preempting none is infeasible."""
    return (len(jobs) or math.inf, sorted(map(_worth, jobs), reverse=True))


def _without(jobs: Iterable[RunningJob], resources: FreeResources) -> list[Amounts]:
    """Free amounts once these jobs have ended too."""
    free = list(resources.soon)
    for job in jobs:
        stay = resources.stay_of(job)
        for index in stay.nodes:
            free[index] = plus(free[index], stay.need)
    return free


def _racks(gang: Gang) -> list[list[int]]:
    """The candidates that could make up the gang together."""
    if gang.racks is None:
        return [list(gang.candidates)]
    names = sorted({gang.racks[index] for index in gang.candidates})
    return [[index for index in gang.candidates if gang.racks[index] == name] for name in names]


def _node_by_node(
    gang: Gang, resources: FreeResources, candidates: Sequence[int], able: Sequence[RunningJob]
) -> list[RunningJob]:
    """Clear the node that costs the least, again and again, until the gang has its nodes; empty if it never has."""
    there: dict[int, list[RunningJob]] = {index: [] for index in candidates}
    for job in able:
        for index in resources.stay_of(job).nodes:
            if index in there:
                there[index].append(job)
    chosen: list[RunningJob] = []
    while True:
        free = _without(chosen, resources)
        blocked = [index for index in candidates if not fits(gang.need, free[index])]
        if len(candidates) - len(blocked) >= gang.nodes_min:
            return chosen
        left = [[job for job in there[index] if job not in chosen] for index in blocked]
        ways = [_fewest(gang.need, free[index], jobs) for index, jobs in zip(blocked, left, strict=True)]
        best = min(ways, key=_loss)
        if not best:
            return []
        chosen += best


def _fewest(need: Amounts, free: Amounts, jobs: Sequence[RunningJob]) -> list[RunningJob]:
    """The fewest jobs of a node that make room on it; empty if all together do not."""
    for count in range(1, len(jobs) + 1 if len(jobs) <= _MOST_TOGETHER else 2):
        groups = [list(some) for some in combinations(jobs, count) if _make_room(need, free, some)]
        if groups:
            return min(groups, key=_loss)
    first = [jobs[:count] for count in range(2, len(jobs) + 1)]
    return next((list(some) for some in first if _make_room(need, free, some)), [])


def _make_room(need: Amounts, free: Amounts, jobs: Iterable[RunningJob]) -> bool:
    for job in jobs:
        free = plus(free, need_of(job.shape))
    return fits(need, free)
