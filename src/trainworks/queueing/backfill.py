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
from collections.abc import Sequence
from dataclasses import dataclass

from trainworks.queueing.placement import Amounts, FreeResources, Gang, fits, lesser, minus, place, plus

__all__ = ["Backfill", "Reservation", "reserve"]


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
    ends = sorted((stay for stay in resources.occupied if stay.ends_at < math.inf), key=lambda stay: stay.ends_at)
    for position, stay in enumerate(ends):
        for index in stay.nodes:
            later[index] = plus(later[index], stay.need)
        if position + 1 < len(ends) and ends[position + 1].ends_at == stay.ends_at:
            continue
        nodes = place(gang, later, most=gang.nodes_min, fullest_by=resources.free)
        if nodes:
            for index in nodes:
                later[index] = minus(later[index], gang.need)
            gone_by = [left.ends_at for _, left in resources.leaving if not set(nodes).isdisjoint(left.nodes)]
            starts_at = max([stay.ends_at, *gone_by])
            return Reservation(starts_at=starts_at, others_end_by=stay.ends_at, nodes=nodes, others=later)
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
        is_short = time_limit_s is not None and self._resources.now + time_limit_s <= self._ends_by
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
