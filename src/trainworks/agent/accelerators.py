"""The accelerators that a job holds in a queue of this user, each of which is taken out of service alone."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainworks.config.spec import Spec
from trainworks.errors import TrainworksError
from trainworks.host.ledger import Claim, MachineLedger, Share, claim_key
from trainworks.host.probe import cuda_names
from trainworks.jobs.environment import accelerators_per_node
from trainworks.jobs.state import Cause
from trainworks.jobs.store import open_store
from trainworks.record.events.job import AcceleratorDrainedEvent, BrokenAccelerator, FailureReason, NodeCheckEvent
from trainworks.record.events.log import Event
from trainworks.record.processes import Processes
from trainworks.record.run_dir import RunDir
from trainworks.recover.accelerator_faults import blamed_failure, drained_accelerator

_LOG = logging.getLogger(__name__)


def index_of(name: str) -> int:
    """Number by which the driver of its node counts the accelerator of a name in a queue, `box1:2`."""
    return int(name.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class HeldAccelerators:
    """Accelerators of every node of a job, by their names in the queue (`box1:2`), in the order of its ranks.

    `store_url` is that of the job store in which the queue finds what is out of service. Where the job `is_queued`, it
    waits there for others if it leaves these.
    """

    store_url: str
    names: Sequence[Sequence[str]]
    is_queued: bool
    spares: Sequence[str] = ()
    """Other accelerators of the same machine that the job may take in their place, if no job holds them by then."""
    ledger: MachineLedger | None = None
    """Ledger of that machine; None without spares."""

    def named_by(self, checks: Iterable[NodeCheckEvent], nodes: Iterable[int]) -> dict[str, str]:
        """Accelerators of some nodes that checks of their machine find at fault, each with what they say of it."""
        broken = {one["index"]: one["message"] for check in checks for one in check.get("accelerators", ())}
        held = [(name, index_of(name)) for node in nodes for name in self.names[node]]
        return {name: broken[index] for name, index in held if index in broken}

    def indices_of(self, node: int) -> list[int]:
        """Numbers by which the driver of a node counts its accelerators, in the order of its ranks."""
        return list(map(index_of, self.names[node]))

    def nodes_of(self, names: Iterable[str]) -> list[int]:
        """Numbers of the nodes that have some of these accelerators."""
        wanted = set(names)
        return [node for node, held in enumerate(self.names) if wanted.intersection(held)]

    def are_in_service(self, node: int) -> bool:
        """Whether every accelerator of a node is in service now; False where the store does not say so."""
        out = self._drained()
        return out is not None and out.keys().isdisjoint(self.names[node])

    @property
    def visible(self) -> str:
        """All of them, as CUDA_VISIBLE_DEVICES of this machine."""
        return cuda_names([index for node in range(len(self.names)) for index in self.indices_of(node)])

    def can_be_replaced(self) -> bool:
        """Whether the queue of the job gives it others, or enough spares are free for those that are out of service."""
        claims = self.ledger.claims() if self.ledger is not None else ()
        return self.is_queued or self._replacements(claims) is not None

    def replaced(self, run_dir: RunDir) -> tuple[HeldAccelerators, int] | None:
        """Claim a spare for each accelerator out of service, and return what the job then holds, with the open file of
        the claim; None if too few are free.
        """
        chosen: dict[str, str] = {}

        def choose(claims: Sequence[Claim]) -> Share | None:
            found = self._replacements(claims)
            chosen.update(found or {})
            devices = tuple(map(index_of, chosen.values()))
            key = claim_key(run_dir.path.resolve())
            return Share(run=run_dir.run_id, key=key, cores=0.0, devices=devices) if found else None

        handle = self.ledger.claim(choose) if self.ledger is not None else None
        if handle is None:
            return None
        names = [[chosen.get(name, name) for name in held] for held in self.names]
        spares = [name for name in self.spares if name not in chosen.values()]
        return replace(self, names=names, spares=spares), handle

    def _replacements(self, claims: Iterable[Claim]) -> dict[str, str] | None:
        """A spare for each accelerator out of service, where these claims hold others; None if too few are free."""
        if (out := self._drained()) is None:
            return None
        taken = {device for claim in claims for device in claim.share.devices}
        free = [name for name in self.spares if name not in out and index_of(name) not in taken]
        wanted = [name for held in self.names for name in held if name in out]
        return dict(zip(wanted, free, strict=False)) if 0 < len(wanted) <= len(free) else None

    def _drained(self) -> Mapping[str, object] | None:
        """Nodes and accelerators that are drained, by name; None if the store does not answer."""
        with contextlib.suppress(TrainworksError), contextlib.closing(open_store(self.store_url)) as store:
            return store.drains()
        return None

    def take_out(self, evidence: Mapping[str, str], run_dir: RunDir, now: float) -> bool:
        """Take accelerators out of service, by name, each with its evidence; one that is out keeps its reason.

        False if the store of the queue does not answer, which would then give the same accelerators again.
        """
        try:
            with contextlib.closing(open_store(self.store_url)) as store:
                known = store.drains()
                for name, reason in evidence.items():
                    if name not in known:
                        store.drain(name, f"{reason}; run {run_dir.run_id}", now=now, uid=os.getuid())
        except TrainworksError as error:
            _LOG.warning("cannot take %s out of service: %s", ", ".join(evidence), error)
            return False
        for name, reason in evidence.items():
            (node,) = self.nodes_of([name])
            event = AcceleratorDrainedEvent(kind="accelerator_drained", node=node, accelerator=name, message=reason)
            run_dir.note(event)
        return True


HELD = "TRAINWORKS_HELD"
"""Variable in which the supervisor of a run on this machine finds its `MachineShare`."""


class MachineShare(Spec):
    """Accelerators of one machine that a job holds, one after another for its nodes, and the store of their queue."""

    store_url: str
    accelerators: tuple[str, ...]
    """Names in the queue, in the order in which the ranks see them."""
    is_queued: bool
    spares: tuple[str, ...] = ()
    ledger: str | None = None
    """Folder of the machine's ledger; None without spares."""

    def held_by(self, processes: Processes) -> HeldAccelerators:
        """The accelerators of each node of these processes."""
        found = list[Sequence[str]]()
        for group in processes.groups():
            count, first = accelerators_per_node(group.processes), group.first_accelerator
            found += [self.accelerators[first + place * count :][:count] for place in range(group.processes.nodes)]
        ledger = MachineLedger(Path(self.ledger)) if self.ledger else None
        return HeldAccelerators(self.store_url, found, self.is_queued, self.spares, ledger)


def evidence_of(
    node: int, checks: Iterable[NodeCheckEvent], events: Sequence[Event], ranks: range, indices: Sequence[int]
) -> list[NodeCheckEvent]:
    """Clear evidence against accelerators of a node after a failure; empty without any.

    It is clear if a check of the node names one, or if the accelerator of one of its `ranks`, and no other, has failed
    again. `indices` are those of the accelerators in the order of the ranks, where they are known.
    """
    found = [check for check in checks if check.get("accelerators")]
    failure = blamed_failure(events)
    rank = failure and failure["rank"]
    if not found and failure is not None and rank is not None and rank in ranks:
        text = f"rank {rank} failed on it twice in a row, and no other rank: {failure['message']}"
        hint = "look for its cause: trainworks health"
        event = NodeCheckEvent(kind="node_check", node=node, message=f"an accelerator is at fault: {text}", hint=hint)
        if indices:
            event["accelerators"] = [BrokenAccelerator(index=indices[rank - ranks[0]], message=text)]
        found.append(event)
    return found


def failure_of(cause: Cause, evidence: Mapping[str, str]) -> FailureReason:
    """The failure of a job whose accelerators are out of service, by their names and the evidence."""
    message = "; ".join(drained_accelerator(name, reason) for name, reason in evidence.items())
    hint = f"once it is repaired: trainworks drain {next(iter(evidence))} --undo"
    return FailureReason(cause=cause, message=message, hint=hint)
