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
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
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

    Args:
        stays: what running jobs occupy.
        end: latest end of a stay.
        release: frees the nodes of a stay.
        fit: nodes of the gang among the free ones; empty if it does not fit.
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
        for index in stay.nodes:
            later[index] = plus(later[index], stay.need)

    earliest = earliest_fit(
        (stay for stay in resources.occupied if stay.ends_at < math.inf),
        end=attrgetter("ends_at"),
        release=release,
        fit=lambda: place(gang, later, most=gang.nodes_min, fullest_by=resources.free),
    )
    if earliest is not None:
        ends_at, nodes = earliest
        for index in nodes:
            later[index] = minus(later[index], gang.need)
        gone_by = [left.ends_at for _, left in resources.leaving if not set(nodes).isdisjoint(left.nodes)]
        starts_at = max([ends_at, *gone_by])
        return Reservation(starts_at=starts_at, others_end_by=ends_at, nodes=nodes, others=later)
    return Reservation(starts_at=None, others_end_by=-math.inf, nodes=(), others=_of_no_use(gang, resources.free))


def _of_no_use(gang: Gang, free: list[Amounts]) -> list[Amounts]:
    """Free amounts the gang can never use: all of some nodes, and beyond its need on the others."""
    others = list(free)
    for index in gang.candidates:
        cores, accelerators, memory = minus(free[index], gang.need)
        others[index] = (max(0, cores), max(0, accelerators), max(0, memory))
    return others


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
        if not fits(gang.need, self._most[is_short]) or (gang.number, is_short) in self._failed:
            return []
        nodes = place(gang, self._resources.free if is_short else self._beside)
        if not nodes:
            self._failed.add((gang.number, is_short))
            return []
        self._resources.start(gang, nodes, time_limit_s)
        for index in nodes:
            if not is_short:
                self._others[index] = minus(self._others[index], gang.need)
            self._beside[index] = lesser(self._resources.free[index], self._others[index])
        self._most = (self._most_of(self._beside), self._most_of(self._resources.free))
        return nodes

    @staticmethod
    def _most_of(free: Sequence[Amounts]) -> Amounts:
        """Largest free amount of each resource on any node: a gang that needs more does not fit."""
        cores, accelerators, memory = zip(*free, strict=True)
        return (max(cores), max(accelerators), max(memory))
