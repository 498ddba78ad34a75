"""State of the queue and nodes at one time, and the decision about it."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from trainworks.queueing.fair_share import Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """One node, with all that it has, used or not."""

    name: str
    """Unique in a snapshot."""
    cores: float
    accelerators: int
    accelerator: str | None
    """Kind of its accelerators; None where it has none."""
    memory_bytes: int
    rack: str | None = None
    """Rack; None if unknown. Such a node shares a rack with no other."""
    drained: str | None = None
    """Reason for not taking new jobs; None while it takes them."""
    down: str | None = None
    """Why it does not answer; None while it does."""

    @property
    def in_service(self) -> bool:
        """True if jobs may start on it."""
        return self.down is None and self.drained is None


@dataclass(frozen=True, slots=True, kw_only=True)
class GangShape:
    """A gang: the same share of so many different nodes, or of those of each role, all or nothing."""

    nodes_min: int
    """Minimum, at least 1."""
    nodes_max: int
    """Maximum, at least `nodes_min`; the gang takes as many nodes as are free, up to this."""
    cores_per_node: float
    accelerators_per_node: int
    accelerator: str | None
    """The only kind that will do; None takes any node."""
    memory_per_node_bytes: int
    exclude: frozenset[str] = frozenset()
    """Names of nodes that it never takes."""
    same_rack: bool = False
    """True if all its nodes must be in the same rack."""
    roles: tuple[GangShape, ...] = ()
    """Shapes of its roles, each of a fixed number of nodes of its own. The amounts above are then the most that a node
    of any role takes, and the numbers of nodes the sum."""

    @property
    def groups(self) -> tuple[GangShape, ...]:
        """Shapes whose nodes have the same share: those of its roles, or itself."""
        return self.roles or (self,)

    def amounts(self, nodes: int) -> tuple[float, int]:
        """Cores and accelerators that it holds on so many nodes; with roles, on all of them."""
        if not self.roles:
            return nodes * self.cores_per_node, nodes * self.accelerators_per_node
        held = [role.amounts(role.nodes_min) for role in self.roles]
        return sum(cores for cores, _ in held), sum(accelerators for _, accelerators in held)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job in the queue."""

    job_id: int
    shape: GangShape
    priority: int
    """0 to 100; more is earlier."""
    submitted_at: float
    time_limit_s: float | None
    """Time after which it is ended; None for no limit."""
    held: bool = False
    begins_at: float | None = None
    """Not before; None is any time."""
    depends: Literal["met", "waiting", "failed"] = "met"
    """State of the jobs that must succeed before this one."""
    accounts: tuple[str, ...] = ()
    """Accounts that it counts against, such as `team vision`; see `Quota`."""
    rank: Rank = ()
    """Its fair share, by which jobs of one priority are ordered before their age."""
    elsewhere: str = ""
    """Such as `bob's job lm-7`, for a job in another queue of these nodes. It keeps its place in the order and gets the
    nodes that it could start on, but the decision neither starts it nor preempts jobs for it."""

    @property
    def label(self) -> str:
        """The job in messages."""
        return self.elsewhere or f"job {self.job_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that holds nodes."""

    job_id: int
    shape: GangShape
    nodes: tuple[str, ...]
    """Its nodes, those of one role after those of another; it holds the shape's share of each."""
    priority: int
    started_at: float
    time_limit_s: float | None
    preemptible: bool
    """True if it may be put back into the queue for a job of higher priority."""
    grace_s: float
    """Longest time between the request to end and the end."""
    ending: bool = False
    """True if a request to end has been sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoursQuota:
    """Accelerator hours of an account in one month, and those that its jobs have held."""

    limit: float
    used: float
    """Also of running jobs, until now."""
    month: str
    """Such as `2026-11`."""
    ends: str
    """First moment of the next month, `2026-12-01 00:00 UTC`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Most that the running jobs of an account hold at once, and what they hold."""

    account: str
    """Such as `team vision` or `user ann`."""
    max_cores: float = math.inf
    max_accelerators: float = math.inf
    cores_used: float = 0.0
    accelerators_used: int = 0
    holders: tuple[str, ...] = ()
    """Who holds that, for messages: `ann (lm-1)`."""
    hours: HoursQuota | None = None
    """Accelerator hours of this month; None for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that a decision rests on; the order of the tuples does not matter."""

    now: float
    nodes: tuple[NodeInfo, ...]
    waiting: tuple[QueuedJob, ...] = ()
    running: tuple[RunningJob, ...] = ()
    quotas: tuple[Quota, ...] = ()
    """An account without one has no limit."""


def queue_key(priority: int, submitted_at: float, number: int) -> tuple[int, float, int]:
    """Sort key of the queue: higher priorities first, then earlier submissions, then lower job numbers."""
    return (-priority, submitted_at, number)


class Reason(enum.StrEnum):
    """Reason why a job waits, under Slurm's name if it has one."""

    PRIORITY = "Priority"
    """Jobs before it wait too."""
    RESOURCES = "Resources"
    """It is the first in the queue, and its resources are in use."""
    DEPENDENCY = "Dependency"
    BEGIN_TIME = "BeginTime"
    HELD = "Held"
    """Slurm's JobHeldUser."""
    NODES_UNAVAILABLE = "NodesUnavailable"
    """Too few nodes that could have it are in service, even if they were empty."""
    QUOTA = "Quota"
    """Its team or user holds as much as it may at once; Slurm's AssocGrpCpuLimit and AssocGrpGRES."""
    PREEMPTING = "Preempting"
    """The jobs that are preempted for it have not gone yet."""


class Pending(NamedTuple):
    """Reason and estimated start of a waiting job. A tuple, because there can be ten thousand."""

    reason: Reason
    detail: str
    """The reason in a sentence, with its numbers."""
    position: int
    """1 is next; jobs that are held, too early or dependent come last."""
    starts_at: float | None
    """Estimated start from the time limits; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a waiting job."""

    job_id: int
    nodes: tuple[str, ...]
    """Nodes in the order of their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """Ask a running job to end and put it back into the queue."""

    job_id: int
    for_job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Take a waiting job out of the queue that can never run: a job that it depends on did not succeed."""

    job_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Decision about a snapshot; every waiting job is in exactly one of `starts`, `cancels` and `pending`."""

    starts: tuple[Start, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    cancels: tuple[Cancel, ...] = ()
    pending: dict[int, Pending] = field(default_factory=dict)
    """Pending jobs in the order of their positions."""
