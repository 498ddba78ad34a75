"""Events of a job: its nodes, agents, states, decisions, failures and notices."""

from collections.abc import Mapping
from typing import Literal, NotRequired, TypedDict

from trainworks.record.events.training import Stamp


class SettingChange(TypedDict):
    """A setting of the run file that a resume changed."""

    key: str
    before: object
    after: object


class ChangedEvent(Stamp):
    """The run is resumed with other settings."""

    kind: Literal["changed"]
    changes: list[SettingChange]
    """key, before and after of each."""


class SubmittedEvent(Stamp):
    """A user submits or resumes the job, or the job gets its nodes another time."""

    kind: Literal["submitted"]
    nodes: int
    processes_per_node: int
    restarts: int
    """Earlier allocations; 0 if a user submits or resumes it."""
    hosts: NotRequired[list[str]]
    """On a cluster."""
    job: NotRequired[str]
    """Id that the cluster gave."""
    turn: NotRequired[int]
    """Times that Slurm requeued the job."""
    started_at: NotRequired[float | None]
    """Start of the allocation, in seconds since the epoch."""


class BrokenAccelerator(TypedDict):
    """An accelerator that a check names."""

    index: int
    """Number by which the driver of its node counts it."""
    message: str
    """What the checks say of it."""


class NodeCheckEvent(Stamp):
    """A node was checked before its ranks start (`job.health`), or its accelerators after one of them failed."""

    kind: Literal["node_check"]
    node: int
    host: NotRequired[str]
    message: str
    """Empty if the node passed."""
    hint: str
    accelerators: NotRequired[list[BrokenAccelerator]]
    """Accelerators whose own faults are all that failed."""


class AcceleratorDrainedEvent(Stamp):
    """An accelerator of the job failed, and is out of service from now on."""

    kind: Literal["accelerator_drained"]
    node: int
    """Number among all nodes."""
    accelerator: str
    """Its name in the queue: `box1:2`."""
    message: str
    """The evidence."""


class NodesUnhealthyEvent(Stamp):
    """Ranks do not start on these nodes."""

    kind: Literal["nodes_unhealthy"]
    nodes: list[int]
    """Numbers among all nodes."""
    message: str


class StateEvent(Stamp):
    """The job enters a state, as its supervisor sees it: the fields of `status.End`."""

    kind: Literal["state"]
    state: str
    cause: str | None
    message: str | None
    hint: NotRequired[str | None]
    exit_code: NotRequired[int | None]
    ended_at: NotRequired[float]
    """End of the allocation in seconds since the epoch, if it ended before this was written."""


class AgentStartedEvent(Stamp):
    """The agent of a node starts."""

    kind: Literal["agent_started"]
    node: int


class EnvironmentEvent(Stamp):
    """The packages of the ranks are there."""

    kind: Literal["environment"]
    node: int
    key: str
    seconds: float
    """0 if the node had them."""


class AgentLostEvent(Stamp):
    """The agent of a node ended."""

    kind: Literal["agent_lost"]
    node: int
    exit_code: int
    """Negative signal number if a signal ended it."""


class RestartEvent(Stamp):
    """The supervisor starts an agent again."""

    kind: Literal["restart"]
    node: int | None
    """Null: those of all nodes."""
    role: NotRequired[str]
    """Those of one role alone, by a restart of its own."""


class DecisionEvent(Stamp):
    """What follows the failure of a node."""

    kind: Literal["decision"]
    node: int
    action: str
    message: str


class ResizedEvent(Stamp):
    """The job continues on other nodes."""

    kind: Literal["resized"]
    nodes: int
    places: list[int]
    """Their numbers among all nodes."""
    layout: str
    step_s: float
    message: str


class StragglerEvent(Stamp):
    """The others wait for a rank."""

    kind: Literal["straggler"]
    rank: int
    node: int
    extra_s: float
    """Beyond the median of its peers."""
    step_s: float
    message: str


class FailureReason(TypedDict):
    """Why a job, an attempt or a rank ended."""

    cause: str
    message: str
    hint: NotRequired[str | None]


class FailureEvent(FailureReason, Stamp):
    """A rank or an agent failed."""

    kind: Literal["failure"]
    rank: int | None
    node: int
    exit_code: int
    role: NotRequired[str]
    """Role of the node, in a job with roles."""
    attempt: NotRequired[int]
    host: NotRequired[str]
    pid: NotRequired[int | None]
    signal: NotRequired[str | None]
    traceback: NotRequired[str]
    step: NotRequired[int]
    phase: NotRequired[str]
    silent_s: NotRequired[float]
    """Time since a hung rank made its last mark."""
    waiting: NotRequired[Mapping[str, str | None]]
    """What each other rank waits for, by rank, where one hung; null if that is not known."""
    stacks: NotRequired[Mapping[str, str]]
    """Lines of each rank's main thread, the innermost last, where one hung; ranks that did not answer are left out."""
    memory: NotRequired[Mapping[str, str | int | None] | None]
    """Fields of `MemoryAtFailure`."""
    fingerprint: NotRequired[str]
    """Equal for the same failure."""
    rendezvous: NotRequired[str]
    """Equal for all failures of one start of the ranks."""


class RestartRefusedEvent(Stamp):
    """A failure is final although restarts are left."""

    kind: Literal["restart_refused"]
    node: int | None
    rank: int | None
    cause: str
    rendezvous: str | None
    message: str
    """The reason."""


class NoticeEvent(Stamp):
    """The metadata service of the cloud says something of a node."""

    kind: Literal["notice"]
    node: int
    cloud: str
    what: str
    ends: bool
    """Whether the node ends."""
    deadline_at: float | None
    """End of the node in seconds since the epoch."""


class NoticeAnsweredEvent(Stamp):
    """The job ends for a notice."""

    kind: Literal["notice_answered"]
    node: int
    cloud: str
    what: str
    saves: bool
    left_s: float
    """Time until the node ends."""
    needed_s: float | None
    """Time that a save needs; null before the first one."""
    message: str


class IdleEvent(Stamp):
    """The job counts as idle; its use is that of the busiest node since then."""

    kind: Literal["idle"]
    since: float
    accelerator: float | None
    cpu_cores: float
    io_bytes_per_s: float


class BusyEvent(Stamp):
    """The job uses its nodes again."""

    kind: Literal["busy"]
    idle_for_s: float


class StopRequestedEvent(Stamp):
    """The job is asked to end."""

    kind: Literal["stop_requested"]
    reason: str


class StoppedEvent(Stamp):
    """The ranks ended early, with a checkpoint."""

    kind: Literal["stopped"]
    step: int
    callbacks_s: NotRequired[list[float]]
    """Seconds of each of `workload.callbacks` after the last step, on rank 0."""
