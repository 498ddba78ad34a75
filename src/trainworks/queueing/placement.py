"""Choice of the nodes of a gang.

Several jobs share a node as long as cores, accelerators and memory last. A gang takes the fullest nodes, accelerators
first, so that empty nodes remain for jobs that need them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import NamedTuple

from trainworks.queueing.snapshot import GangShape, NodeInfo, RunningJob, Snapshot

Amounts = tuple[int, int, int]
"""Thousandths of cores, accelerators, bytes of memory: whole numbers, whose sums do not depend on their order."""

_ENDLESS: Amounts = (2**63, 2**63, 2**63)


def need_of(shape: GangShape) -> Amounts:
    """Amounts a gang takes of each of its nodes, rounded up; with roles, the most that it takes of any."""
    millicores = math.ceil(shape.cores_per_node * 1000 - 1e-6)
    return (millicores, shape.accelerators_per_node, shape.memory_per_node_bytes)


def needs_of(shape: GangShape, nodes: int) -> list[Amounts]:
    """Amounts a gang takes of each of so many nodes, those of one role after those of another."""
    if not shape.roles:
        return [need_of(shape)] * nodes
    return [need for role in shape.roles for need in needs_of(role, role.nodes_min)]


def plus(one: Amounts, other: Amounts) -> Amounts:
    """The sum."""
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2])


def minus(one: Amounts, other: Amounts) -> Amounts:
    """The difference; below zero where a node lost something that is in use."""
    return (one[0] - other[0], one[1] - other[1], one[2] - other[2])


def lesser(one: Amounts, other: Amounts) -> Amounts:
    """The lesser of each amount."""
    return (min(one[0], other[0]), min(one[1], other[1]), min(one[2], other[2]))


def fits(need: Amounts, free: Amounts) -> bool:
    """True if all three amounts suffice. Nothing fits on an overcommitted node."""
    return need[0] <= free[0] and need[1] <= free[1] and need[2] <= free[2]


class Gang(NamedTuple):
    """A shape on given nodes, which go by their numbers. A tuple: there may be one for each of ten thousand jobs."""

    number: int
    """The same for equal shapes."""
    need: Amounts
    nodes_min: int
    nodes_max: int
    candidates: Sequence[int]
    """Nodes that could be part of it if they were empty; too few of them is none."""
    racks: dict[int, str] | None
    """Rack of each candidate if all must be in the same rack."""
    roles: tuple[Gang, ...] = ()
    """Gangs of its roles; then `need` is the most that any needs, and `candidates` are those of all."""

    @property
    def groups(self) -> tuple[Gang, ...]:
        """Gangs whose nodes have one need: those of its roles, or itself."""
        return self.roles or (self,)

    def needs(self, nodes: Sequence[int]) -> list[Amounts]:
        """What it takes of each of the nodes that `place` gave it."""
        if not self.roles:
            return [self.need] * len(nodes)
        return [role.need for role in self.roles for _ in range(role.nodes_min)]


class NodeIndex:
    """Nodes in the order of their names, as gangs see them: whole, used or not."""

    def __init__(self, nodes: Iterable[NodeInfo]) -> None:
        self.nodes = sorted(nodes, key=lambda node: node.name)
        millicores = [math.floor(node.cores * 1000 + 1e-6) for node in self.nodes]
        self.sizes = [(m, node.accelerators, node.memory_bytes) for m, node in zip(millicores, self.nodes, strict=True)]
        self.numbers = {node.name: index for index, node in enumerate(self.nodes)}
        self._gangs: dict[GangShape, Gang] = {}
        self._allowed: dict[tuple[str | None, frozenset[str]], tuple[list[int], Amounts]] = {}

    def gang(self, shape: GangShape) -> Gang:
        """The gang of a shape on these nodes."""
        gang = self._gangs.get(shape)
        if gang is None:
            gang = self._gang_of_roles(shape) if shape.roles else self._gang_of(shape)
            self._gangs[shape] = gang
        return gang

    def _gang_of_roles(self, shape: GangShape) -> Gang:
        roles = tuple(map(self.gang, shape.roles))
        candidates = sorted({index for role in roles for index in role.candidates})
        gang = Gang(len(self._gangs), need_of(shape), shape.nodes_min, shape.nodes_max, candidates, None, roles)
        return gang if place(gang, self.sizes) else gang._replace(candidates=())

    def _gang_of(self, shape: GangShape) -> Gang:
        need = need_of(shape)
        key = (shape.accelerator, shape.exclude)
        if key not in self._allowed:
            allowed = [
                index
                for index, node in enumerate(self.nodes)
                if node.name not in shape.exclude and shape.accelerator in (None, node.accelerator)
            ]
            self._allowed[key] = (allowed, reduce(lesser, (self.sizes[index] for index in allowed), _ENDLESS))
        candidates, least = self._allowed[key]
        if not fits(need, least):
            candidates = [index for index in candidates if fits(need, self.sizes[index])]
        racks = None
        if shape.same_rack:
            racks = {
                index: f"node {node.name}" if node.rack is None else f"rack {node.rack}"
                for index, node in ((index, self.nodes[index]) for index in candidates)
            }
            together = Counter(racks.values())
            candidates = [index for index in candidates if together[racks[index]] >= shape.nodes_min]
        return Gang(
            number=len(self._gangs),
            need=need,
            nodes_min=shape.nodes_min,
            nodes_max=shape.nodes_max,
            candidates=candidates if len(candidates) >= shape.nodes_min else (),
            racks=racks,
        )


def place(
    gang: Gang, free: Sequence[Amounts], *, most: int | None = None, fullest_by: Sequence[Amounts] | None = None
) -> list[int]:
    """Nodes of a gang among the free amounts of each node, at most `most`; none if it does not fit. Nodes are ordered
    by how full they are, by `fullest_by` instead of `free` where it is given. With roles, those of one follow those of
    another.
    """
    order = free if fullest_by is None else fullest_by
    if gang.roles:
        return _place_roles(gang.roles, free, order)
    cores, accelerators, memory = gang.need
    ready = []
    for index in gang.candidates:
        there = free[index]
        if accelerators <= there[1] and cores <= there[0] and memory <= there[2]:
            ready.append((order[index][1], order[index][0], index))
    if len(ready) < gang.nodes_min:
        return []
    most = gang.nodes_max if most is None else most
    if gang.racks is not None:
        # the rack that has the most nodes for the gang, then the fewest others
        by_rack: dict[str, list[tuple[int, int, int]]] = {}
        for one in ready:
            by_rack.setdefault(gang.racks[one[2]], []).append(one)
        ready = min(by_rack.items(), key=lambda rack: (-min(len(rack[1]), most), len(rack[1]), rack[0]))[1]
        if len(ready) < gang.nodes_min:
            return []
    ready.sort()
    return sorted(index for _, _, index in ready[:most])


def _place_roles(roles: Sequence[Gang], free: Sequence[Amounts], order: Sequence[Amounts]) -> list[int]:
    """Nodes for all roles, each of one role alone; they are found whenever there are any.

    A role takes the fullest nodes that will do. When all of them are taken it takes one of a role that finds another
    instead: augmenting paths of a bipartite matching (Kuhn 1955). The nodes of a role are alike, so a path has each
    role once.
    """
    able = [
        sorted(
            (index for index in role.candidates if fits(role.need, free[index])),
            key=lambda index: (order[index][1], order[index][0], index),
        )
        for role in roles
    ]
    holder: dict[int, int] = {}

    def find(role: int, seen: set[int]) -> bool:
        seen.add(role)
        for index in able[role]:
            if index not in holder:
                holder[index] = role
                return True
        for index in able[role]:
            if holder[index] not in seen and find(holder[index], seen):
                holder[index] = role
                return True
        return False

    if not all(find(number, set()) for number, role in enumerate(roles) for _ in range(role.nodes_min)):
        return []
    return [index for number in range(len(roles)) for index in sorted(holder) if holder[index] == number]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShares:
    """Shares of nodes that are occupied until a time."""

    ends_at: float
    """Infinite without a time limit."""
    nodes: Sequence[int]
    needs: Sequence[Amounts]
    """What is occupied of each."""


@dataclass(slots=True)
class FreeResources:
    """The nodes in service, and what of them is free while a decision is made."""

    now: float
    node_index: NodeIndex
    unused: list[Amounts]
    """Unused amounts per node now."""
    soon: list[Amounts]
    """Unused once the jobs that are ending have gone, less what is promised to those who wait for that."""
    free: list[Amounts]
    """Amounts on which a job may start now: the lesser of both."""
    occupied: list[NodeShares] = field(default_factory=list)
    """Shares of running jobs, starting jobs and promises."""
    leaving: list[tuple[RunningJob, NodeShares]] = field(default_factory=list)
    """Ending jobs, with their shares until their latest end."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> FreeResources:
        """The resources before anything is decided."""
        node_index = NodeIndex(node for node in snapshot.nodes if node.in_service)
        resources = cls(
            snapshot.now, node_index, list(node_index.sizes), list(node_index.sizes), list(node_index.sizes)
        )
        for job in sorted(snapshot.running, key=lambda job: job.job_id):
            stay = resources.stay_of(job)
            resources._take(stay, resources.unused, resources.soon)
            resources.occupied.append(stay)
            if job.ending:
                resources.ask_to_end(job)
        return resources

    def stay_of(self, job: RunningJob) -> NodeShares:
        """Share of a running job on the nodes in service. A job beyond its limit is about to end."""
        numbers = self.node_index.numbers
        shares = zip(job.nodes, needs_of(job.shape, len(job.nodes)), strict=False)
        there = [(numbers[name], need) for name, need in shares if name in numbers]
        ends_at = math.inf if job.time_limit_s is None else max(self.now, job.started_at + job.time_limit_s)
        return NodeShares(ends_at=ends_at, nodes=[index for index, _ in there], needs=[need for _, need in there])

    def start(self, gang: Gang, nodes: Sequence[int], time_limit_s: float | None) -> None:
        """Give nodes to a job that starts now."""
        stay = NodeShares(ends_at=self._end(self.now, time_limit_s), nodes=nodes, needs=gang.needs(nodes))
        self._take(stay, self.unused, self.soon)
        self.occupied.append(stay)

    def promise(self, gang: Gang, nodes: Sequence[int], starts_at: float, time_limit_s: float | None) -> None:
        """Keep nodes for a job that starts once the jobs that are ending have gone."""
        stay = NodeShares(ends_at=self._end(starts_at, time_limit_s), nodes=nodes, needs=gang.needs(nodes))
        self._take(stay, self.soon)
        self.occupied.append(stay)

    def ask_to_end(self, job: RunningJob) -> None:
        """A running job leaves: what it has is going to be free."""
        stay = self.stay_of(job)
        self.occupied.remove(stay)
        gone_by = min(stay.ends_at, self.now + job.grace_s)
        self.leaving.append((job, replace(stay, ends_at=gone_by)))
        for index, need in zip(stay.nodes, stay.needs, strict=True):
            self.soon[index] = plus(self.soon[index], need)
        self._settle(stay.nodes)

    @staticmethod
    def _end(starts_at: float, time_limit_s: float | None) -> float:
        return math.inf if time_limit_s is None else starts_at + time_limit_s

    def _take(self, stay: NodeShares, *pools: list[Amounts]) -> None:
        for pool in pools:
            for index, need in zip(stay.nodes, stay.needs, strict=True):
                pool[index] = minus(pool[index], need)
        self._settle(stay.nodes)

    def _settle(self, nodes: Iterable[int]) -> None:
        for index in nodes:
            self.free[index] = lesser(self.unused[index], self.soon[index])
