"""This machine as the local queue sees it: one node, or several that are its parts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from trainworks.errors import UsageError
from trainworks.host.ledger import Claim
from trainworks.jobs.job_row import JobRow, Placement
from trainworks.jobs.job_spec import JobSpec, NodeResources, RoleSpec
from trainworks.queueing.fair_share import Rank
from trainworks.queueing.reasons import joined
from trainworks.queueing.snapshot import GangShape, NodeInfo, QueuedJob, RunningJob
from trainworks.record.environment import HostFacts
from trainworks.recover.accelerator_faults import drained_accelerator

SPLIT = "TRAINWORKS_NODES"
"""Number of nodes that this machine counts as; each is a failure domain with its share of cores and accelerators."""

_MOST_HOLDERS = 3
"""Jobs of others that a sentence names one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """A share of this machine."""

    name: str
    cores: float
    devices: tuple[int, ...]
    """Accelerators by index."""
    accelerator: str | None
    memory_bytes: int
    down: str | None = None
    """Why it takes no jobs: another machine that does not answer."""
    names: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """What a user may call each accelerator, where its driver says more than the index: `AcceleratorFacts.names`."""

    def devices_named(self, name: str) -> tuple[int, ...]:
        """Accelerators by index or UUID; those of a GPU are all its parts by MIG."""
        return tuple(device for device in self.devices if name in (str(device), *self.names.get(device, ())))


def local_nodes(host: HostFacts) -> list[LocalNode]:
    """The nodes of this machine: itself, or as many equal parts as `$TRAINWORKS_NODES` says.

    Raises:
        UsageError: that is not a number from 1 on.
    """
    text = os.environ.get(SPLIT, "1")
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise UsageError(f"{SPLIT} is `{text}`", hint="write a number of nodes, such as 4")
    count = int(text)
    each = len(host.accelerators) // count
    return [
        LocalNode(
            name=host.hostname if count == 1 else f"{host.hostname}-{index}",
            cores=host.num_cores / count,
            devices=tuple(facts.index for facts in host.accelerators[index * each : (index + 1) * each]),
            accelerator=host.accelerators[0].name if each else None,
            memory_bytes=host.memory_bytes // count,
            names={facts.index: facts.names for facts in host.accelerators},
        )
        for index in range(count)
    ]


def wanted_of(spec: JobSpec, machine: list[LocalNode]) -> tuple[int, int, NodeResources]:
    """Fewest and most nodes of this machine, and what is taken of each, for a job spec.

    The nodes of a job share a machine that is not split, and take the sum of it. Cores are shares of time: a job that
    has more ranks than there are cores takes them all.
    """
    node = spec.node
    whole = max(one.cores for one in machine)
    if len(machine) > 1:
        return spec.min_nodes, spec.max_nodes, replace(node, cores=min(node.cores or 1.0, whole))
    together = replace(
        node,
        cores=min(sum((group.node.cores or 1.0) * group.nodes for group in spec.groups), whole),
        accelerators=spec.num_accelerators,
        memory_bytes=sum((group.node.memory_bytes or 0) * group.nodes for group in spec.groups) or None,
    )
    return 1, 1, together


def shares_of(spec: JobSpec, machine: list[LocalNode]) -> list[NodeResources]:
    """What is taken of each node that a job may get, in their order: those of one role follow those of another."""
    _, most, wanted = wanted_of(spec, machine)
    if len(machine) == 1 or not spec.roles:
        return [wanted] * most
    return [share for role in spec.roles for share in shares_of(_alone(spec, role), machine)]


def _alone(spec: JobSpec, role: RoleSpec) -> JobSpec:
    """A role as a job of its own."""
    exclude = (*spec.exclude, *role.exclude)
    return replace(spec, node=role.node, roles=(), min_nodes=role.nodes, max_nodes=role.nodes, exclude=exclude)


def devices_free(node: LocalNode, taken: list[Placement]) -> tuple[int, ...]:
    """Free accelerators of a node."""
    held = {device for one in taken if one.node == node.name for device in one.devices}
    return tuple(device for device in node.devices if device not in held)


def drained_accelerators(
    machine: Sequence[LocalNode], drained: Mapping[str, str], taken: Sequence[Placement]
) -> list[Placement]:
    """Accelerators out of service, `node1:2` in `drained`; one that a job still holds follows once it is free."""
    held = {(one.node, device) for one in taken for device in one.devices}
    found = []
    for node in machine:
        out = (device for device in node.devices if f"{node.name}:{device}" in drained)
        if free := tuple(device for device in out if (node.name, device) not in held):
            found.append(Placement(node.name, 0.0, free))
    return found


def drained_text(machine: Sequence[LocalNode], drained: Mapping[str, str]) -> str:
    """Accelerators out of service and why: `accelerator 2 is drained (XID 79)`; the node, too, where there are more."""
    names = [f"{node.name}:{device}" for node in machine for device in node.devices]
    named = len(machine) > 1
    return ", ".join(drained_accelerator(name, drained[name], names_node=named) for name in names if name in drained)


def held_elsewhere(
    claims: Iterable[Claim], machine: Sequence[LocalNode], taken: Sequence[Placement] = ()
) -> list[Placement]:
    """What the claims of others take of each node. Their cores count where most are free: nothing pins them."""
    claims = list(claims)
    devices = {device for claim in claims for device in claim.share.devices}
    cores = float(sum(claim.share.cores for claim in claims))
    free = {node.name: node.cores - sum(one.cores for one in taken if one.node == node.name) for node in machine}
    found = dict.fromkeys(free, 0.0)
    for name in sorted(free, key=lambda name: -free[name]):
        found[name] = max(0.0, min(cores, free[name]))
        cores -= found[name]
    held = [
        Placement(node.name, found[node.name], tuple(one for one in node.devices if one in devices)) for node in machine
    ]
    return [one for one in held if one.cores or one.devices]


def shape_on_one_node(cores: float, accelerators: int) -> GangShape:
    """Shape of what a claim of the ledger holds, on one node."""
    return GangShape(
        nodes_min=1,
        nodes_max=1,
        cores_per_node=cores,
        accelerators_per_node=accelerators,
        accelerator=None,
        memory_per_node_bytes=0,
    )


def running_elsewhere(held: Iterable[Placement], now: float) -> tuple[RunningJob, ...]:
    """What others hold, as the policy sees it: jobs without an end, which give way to nothing."""
    return tuple(
        RunningJob(
            job_id=-number,
            shape=shape_on_one_node(one.cores, len(one.devices)),
            nodes=(one.node,),
            priority=100,
            started_at=now,
            time_limit_s=None,
            preemptible=False,
            grace_s=0.0,
        )
        for number, one in enumerate(held, start=1)
    )


def held_text(claims: Iterable[Claim], num_cores: float, devices: Iterable[int]) -> str:
    """Who holds how much of this machine: `8 of 8 accelerators are held by ann (lm-1)`; empty if that is nothing."""
    devices = set(devices)
    claims = sorted(claims, key=str)
    texts = []
    if held := devices.intersection(device for claim in claims for device in claim.share.devices):
        holders = [str(claim) for claim in claims if devices.intersection(claim.share.devices)]
        noun = "accelerator" if len(devices) == 1 else "accelerators"
        texts.append(f"{len(held)} of {len(devices)} {noun} are held by {_some(holders)}")
    if cores := sum(claim.share.cores for claim in claims):
        holders = [str(claim) for claim in claims if claim.share.cores]
        texts.append(f"{cores:g} of {num_cores:g} cores are held by {_some(holders)}")
    return ", ".join(texts)


def _some(holders: Sequence[str]) -> str:
    more = len(holders) - _MOST_HOLDERS
    return joined([*holders[:_MOST_HOLDERS], *([f"{more} more"] if more > 0 else [])])


def snapshot_nodes(machine: Sequence[LocalNode], drained: Mapping[str, str]) -> tuple[NodeInfo, ...]:
    """The nodes as the policy sees them."""
    return tuple(
        NodeInfo(
            name=node.name,
            cores=node.cores,
            accelerators=len(node.devices),
            accelerator=node.accelerator,
            memory_bytes=node.memory_bytes,
            drained=drained.get(node.name),
            down=node.down,
        )
        for node in machine
    )


def shape_of(spec: JobSpec, machine: list[LocalNode]) -> GangShape:
    """The gang that a job spec asks of this machine. Its kind of accelerator was checked when the run was resolved."""
    fewest, most, node = wanted_of(spec, machine)
    roles: tuple[RoleSpec, ...] = spec.roles if len(machine) > 1 else ()
    return GangShape(
        roles=tuple(shape_of(_alone(spec, role), machine) for role in roles),
        nodes_min=fewest,
        nodes_max=most,
        cores_per_node=node.cores or 0.0,
        accelerators_per_node=node.accelerators,
        accelerator=None,
        memory_per_node_bytes=node.memory_bytes or 0,
        exclude=frozenset(spec.exclude),
    )


def waiting_job(
    job: JobRow,
    machine: list[LocalNode],
    depends: Literal["met", "waiting", "failed"],
    accounts: tuple[str, ...] = (),
    rank: Rank = (),
) -> QueuedJob:
    """A job in the queue, as the policy sees it."""
    return QueuedJob(
        job_id=job.id,
        shape=shape_of(job.spec, machine),
        priority=job.priority,
        submitted_at=job.submitted_at,
        time_limit_s=job.spec.time_limit_s,
        held=job.held,
        depends=depends,
        accounts=accounts,
        rank=rank,
    )


def running_job(job: JobRow, machine: list[LocalNode]) -> RunningJob:
    """A job that holds nodes, as the policy sees it."""
    return RunningJob(
        job_id=job.id,
        shape=shape_of(job.spec, machine),
        nodes=tuple(one.node for one in job.placement),
        priority=job.priority,
        started_at=job.started_at or job.changed_at,
        time_limit_s=job.spec.time_limit_s,
        preemptible=job.spec.preemptible,
        grace_s=job.spec.grace_s,
        ending=job.asked_to_end is not None,
    )
