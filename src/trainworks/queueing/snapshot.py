"""What a scheduler knows at one moment, and what it decides: nodes and jobs in, starts and preemptions out."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = [
    "Cancel",
    "Decision",
    "Node",
    "Pending",
    "Preempt",
    "Reason",
    "Running",
    "Shape",
    "Snapshot",
    "Start",
    "Waiting",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node, with all that it has, used or not."""

    name: str
    """Unique in a snapshot."""
    cores: float
    accelerators: int
    accelerator: str | None
    """Kind of its accelerators; None where it has none."""
    memory_bytes: int
    rack: str | None = None
    """None where nobody said; such a node shares a rack with no other."""
    drained: str | None = None
    """Why it takes no new jobs; None while it takes them."""
    alive: bool = True

    @property
    def in_service(self) -> bool:
        """Whether jobs may start on it."""
        return self.alive and self.drained is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A gang: the same share of so many different nodes, all or nothing."""

    nodes_min: int
    """At least 1."""
    nodes_max: int
    """At least `nodes_min`; the gang takes as many nodes as are free, up to this."""
    cores_per_node: float
    accelerators_per_node: int
    accelerator: str | None
    """The only kind that will do; None takes any node."""
    memory_per_node_bytes: int
    exclude: frozenset[str] = frozenset()
    """Names of nodes that it never takes."""
    same_rack: bool = False
    """Whether all its nodes must stand in one rack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A job in the queue."""

    job_id: int
    shape: Shape
    priority: int
    """0 to 100; more is earlier."""
    submitted_at: float
    time_limit_s: float | None
    """After so long it is ended; None never."""
    held: bool = False
    begins_at: float | None = None
    """Not before; None is any time."""
    depends: Literal["met", "waiting", "failed"] = "met"
    """How the jobs stand that must have succeeded before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A job that holds nodes."""

    job_id: int
    shape: Shape
    nodes: tuple[str, ...]
    """Those it got; it holds the shape's share of each."""
    priority: int
    started_at: float
    time_limit_s: float | None
    preemptible: bool
    """Whether it may be put back into the queue for a job of higher priority."""
    grace_s: float
    """From being asked to end to being gone, at most."""
    ending: bool = False
    """Whether it has been asked to end, by a preemption or by anybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that a decision rests on; the order of the tuples does not matter."""

    now: float
    nodes: tuple[Node, ...]
    waiting: tuple[Waiting, ...] = ()
    running: tuple[Running, ...] = ()


class Reason(enum.StrEnum):
    """Why a job waits, in Slurm's words where it has one."""

    PRIORITY = "Priority"
    """Jobs before it wait too."""
    RESOURCES = "Resources"
    """It is the first in line, and what it needs is in use."""
    DEPENDENCY = "Dependency"
    BEGIN_TIME = "BeginTime"
    HELD = "Held"
    """Slurm's JobHeldUser."""
    NODES_UNAVAILABLE = "NodesUnavailable"
    """Too few nodes that could have it are in service, even if they were empty."""
    PREEMPTING = "Preempting"
    """The jobs that are preempted for it have not gone yet."""


class Pending(NamedTuple):
    """Why a job does not start now, and when it may. A tuple: there is one for each of ten thousand jobs."""

    reason: Reason
    detail: str
    """The reason in a sentence, with its numbers."""
    position: int
    """1 is next; jobs that are held, too early or dependent come after all others."""
    starts_at: float | None
    """Estimate, from the time limits; None where nothing can be said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a waiting job."""

    job_id: int
    nodes: tuple[str, ...]
    """In the order of their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """Ask a running job to end and put it back into the queue."""

    job_id: int
    for_job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Take a waiting job that can never run out of the queue."""

    job_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now; every waiting job is in exactly one of `starts`, `cancels` and `pending`."""

    starts: tuple[Start, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    cancels: tuple[Cancel, ...] = ()
    pending: dict[int, Pending] = field(default_factory=dict)
    """By job, in the order of their positions."""
