"""The first job that cannot start gets a reservation; later jobs may start as long as they do not delay it.

EASY backfill (Lifka 1995, "The ANL/IBM SP Scheduling System"): one reservation, for the first job in the queue, at the
earliest time t at which its minimum number of nodes is free if every running job uses up its time limit. A later job
may start now if

    it ends by t, by its own limit, or
    it does not use what the reserved nodes must have free at t.

A running job without a limit has no known end, so t may be unknown. Then a later job may only use what the first job
cannot use, in any order of ends: nodes that it cannot take, and on the others, of each resource, the free amount beyond
its need. If a node is short of a resource, none of it is used, not even an amount too small for the first job: such
amounts add up as jobs end.

So no job that starts behind the first delays it beyond t, t never moves back, and the first job cannot starve. A later
job may cost it the chance to start before t when a job ends early, and nodes beyond its minimum.

Starts of waiting jobs are estimated from the time limits, by a list schedule (Graham 1969): jobs in queue order, each
where it can start first after all those before it. Every node is divided into 64 parts; a job takes as many of them as
its largest share of cores, accelerators and memory needs, for its time limit.

Not modelled: jobs that end before their limit and gaps that backfill fills, both of which start jobs sooner; and future
jobs of a higher priority, which start them later. Estimates tend to be late: of 300 jobs on 64 nodes, all of which used
up their limits and waited 47 h in the mean, half started more than 8 h before their estimate, and one in ten more than
2.4 h after it. Starts that depend on a job without a time limit have no estimate.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from trainworks.queueing.placement import Amounts, FreeResources, Gang, NodeShares, fits, lesser, minus, place, plus

_Stay = TypeVar("_Stay")
_Nodes = TypeVar("_Nodes", bound=Collection[int])


def earliest_fit(
    stays: Iterable[_Stay],
    *,
    end: Callable[[_Stay], float],
    release: Callable[[_Stay], None],
    fit: Callable[[], _Nodes],
) -> tuple[float, _Nodes] | None:
    """Earliest end of running jobs after which a gang fits, with its nodes; None if it never does.

    `stays` are what running jobs occupy, each to its latest `end`; `release` frees its nodes. `fit` tells the nodes of
    the gang among the free ones; empty if it does not fit.
    """
    for ends_at, group in groupby(sorted(stays, key=end), key=end):
        for stay in group:
            release(stay)
        if nodes := fit():
            return ends_at, nodes
    return None


def ends_in_time(ends_at: float, reserved_at: float) -> bool:
    """True if a job may use reserved nodes, because it ends by the time of the reservation."""
    return ends_at <= reserved_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Nodes kept for a job from a moment on."""

    starts_at: float | None
    """Latest start; None if the running jobs have no known end."""
    others_end_by: float
    """Time by which other jobs must have ended unless they keep to `others`."""
    nodes: Sequence[int]
    """Reserved nodes; empty while the time is unknown."""
    others: list[Amounts]
    """Amounts on each node that other jobs may use without a time limit."""


def reserve(gang: Gang, resources: FreeResources) -> Reservation:
    """The reservation of a gang that does not fit now. What ending jobs have counts as free from now on."""
    later = list(resources.soon)

    def release(stay: NodeShares) -> None:
        for index, need in zip(stay.nodes, stay.needs, strict=True):
            later[index] = plus(later[index], need)

    earliest = earliest_fit(
        (stay for stay in resources.occupied if stay.ends_at < math.inf),
        end=attrgetter("ends_at"),
        release=release,
        fit=lambda: place(gang, later, most=gang.nodes_min, fullest_by=resources.free),
    )
    if earliest is not None:
        ends_at, nodes = earliest
        for index, need in zip(nodes, gang.needs(nodes), strict=True):
            later[index] = minus(later[index], need)
        gone_by = [left.ends_at for _, left in resources.leaving if not set(nodes).isdisjoint(left.nodes)]
        return Reservation(starts_at=max([ends_at, *gone_by]), others_end_by=ends_at, nodes=nodes, others=later)
    # free amounts the gang can never use: all of some nodes, and beyond its need on the others
    others = list(resources.free)
    for index in gang.candidates:
        cores, accelerators, memory = minus(resources.free[index], gang.need)
        others[index] = (max(0, cores), max(0, accelerators), max(0, memory))
    return Reservation(starts_at=None, others_end_by=-math.inf, nodes=(), others=others)


class Backfill:
    """Starts jobs behind a reservation, in their order."""

    def __init__(self, resources: FreeResources, reservation: Reservation) -> None:
        self._resources = resources
        self._ends_by = reservation.others_end_by
        self._others = reservation.others
        self._beside = [lesser(*pair) for pair in zip(resources.free, self._others, strict=True)]
        self._most = (self._most_of(self._beside), self._most_of(resources.free))
        self._failed: set[tuple[int, bool]] = set()

    def start(self, gang: Gang, time_limit_s: float | None) -> list[int]:
        """The nodes of a job that starts now, already taken; none if it does not fit or would delay the head."""
        is_short = time_limit_s is not None and ends_in_time(self._resources.now + time_limit_s, self._ends_by)
        fits_nowhere = not (gang.roles or fits(gang.need, self._most[is_short]))
        if fits_nowhere or (gang.number, is_short) in self._failed:
            return []
        nodes = place(gang, self._resources.free if is_short else self._beside)
        if not nodes:
            self._failed.add((gang.number, is_short))
            return []
        self._resources.start(gang, nodes, time_limit_s)
        for index, need in zip(nodes, gang.needs(nodes), strict=True):
            if not is_short:
                self._others[index] = minus(self._others[index], need)
            self._beside[index] = lesser(self._resources.free[index], self._others[index])
        self._most = (self._most_of(self._beside), self._most_of(self._resources.free))
        return nodes

    @staticmethod
    def _most_of(free: Sequence[Amounts]) -> Amounts:
        """Largest free amount of each resource on any node: a gang that needs more does not fit."""
        cores, accelerators, memory = zip(*free, strict=True)
        return (max(cores), max(accelerators), max(memory))


_PARTS = 64
"""Parts of a node: one accelerator of eight is eight of them."""


class StartForecast:
    """Gives every job its place in time, in the order of the queue."""

    def __init__(self, resources: FreeResources) -> None:
        self._sizes = resources.node_index.sizes
        stays = [*resources.occupied, *(stay for _, stay in resources.leaving)]
        taken: list[list[float]] = [[] for _ in self._sizes]
        for stay in stays:
            for index, need in zip(stay.nodes, stay.needs, strict=True):
                taken[index] += [stay.ends_at] * _parts(need, self._sizes[index])
        self._ends = [([resources.now] * (_PARTS - len(ends)) + sorted(ends))[-_PARTS:] for ends in taken]
        """Sorted times at which the parts of each node become free."""
        self._parts: dict[Amounts, list[int]] = {}

    def keep(self, gang: Gang, nodes: Sequence[int], ends_at: float) -> None:
        """Nodes that a job has until then, whenever it starts."""
        for index, need in zip(nodes, gang.needs(nodes), strict=True):
            self._put(index, self._parts_of(need)[index], ends_at)

    def close(self, gang: Gang) -> None:
        """Exclude the nodes that this gang waits for from all estimates."""
        for index in gang.candidates:
            self._ends[index] = [math.inf] * _PARTS

    def starts_at(self, gang: Gang, time_limit_s: float | None) -> float | None:
        """Start of the next job on `nodes_min` nodes, which it then occupies; None if unknown.

        Roles choose one after the other, so one that leaves too few nodes to the next has no estimate.
        """
        ends, start = self._ends, 0.0
        chosen: dict[int, int] = {}
        for group in gang.groups:
            parts = self._parts_of(group.need)
            others = [index for index in group.candidates if index not in chosen] if chosen else group.candidates
            ready = [(ends[index][parts[index] - 1], index) for index in others]
            if len(ready) < group.nodes_min:
                return None
            nodes, ready_at = _first(ready, group)
            start = max(start, ready_at)
            chosen |= {index: parts[index] for _, index in nodes}
        if start == math.inf:
            return None
        end = math.inf if time_limit_s is None else start + time_limit_s
        for index, parts_there in chosen.items():
            self._put(index, parts_there, end)
        return start

    def _parts_of(self, need: Amounts) -> list[int]:
        parts = self._parts.get(need)
        if parts is None:
            by_size = {size: _parts(need, size) for size in set(self._sizes)}
            parts = self._parts[need] = [by_size[size] for size in self._sizes]
        return parts

    def _put(self, index: int, parts: int, ends_at: float) -> None:
        ends = self._ends[index]
        del ends[:parts]
        place = bisect_left(ends, ends_at)
        ends[place:place] = [ends_at] * parts


def _parts(need: Amounts, size: Amounts) -> int:
    """The parts of a node that a job takes: at least one, at most all."""
    shares = [
        -(-_PARTS * amount // there) if there > 0 else _PARTS
        for amount, there in zip(need, size, strict=True)
        if amount > 0
    ]
    return min(_PARTS, max(shares, default=1))


def _first(ready: list[tuple[float, int]], gang: Gang) -> tuple[list[tuple[float, int]], float]:
    """The nodes that are ready first, of one rack where they must be, and when the last of them is."""
    if gang.racks is None:
        chosen = nsmallest(gang.nodes_min, ready)
        return chosen, chosen[-1][0]
    by_rack: dict[str, list[tuple[float, int]]] = {}
    for one in sorted(ready):
        by_rack.setdefault(gang.racks[one[1]], []).append(one)
    groups = [group[: gang.nodes_min] for _, group in sorted(by_rack.items())]
    chosen = min(groups, key=lambda group: group[-1][0])
    return chosen, chosen[-1][0]
