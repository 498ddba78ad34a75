"""The interface of every backend: render a job, submit it, poll it, stop it."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Never, Self

from trainworks.errors import UsageError
from trainworks.jobs.cluster_job import ClusterJob
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.program import Program, program_of
from trainworks.jobs.state import Cause, JobState
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.recover.node_history import NodeHistory

if TYPE_CHECKING:
    from trainworks.config.run_file import Cluster, RunFile
    from trainworks.host.network import Machines
    from trainworks.jobs.store import JobStore

NodeState = Literal["free", "mixed", "taken", "draining", "drained", "down", "unknown"]

Capability = Literal[
    "priority",
    "hold",
    "edit",
    "exclude",
    "depends_on",
    "min_nodes",
    "roles",
    "drain",
    "drain.accelerator",
    "time_limit",
    "memory",
    "health",
    "keep_code",
    "environment.lock",
    "environment.conda",
    "environment.image",
]
"""Feature that a backend may lack; a job that uses it is refused before submission."""


@dataclass(frozen=True, slots=True)
class RenderedJob:
    """A job in the backend's own language, as `--dry-run` prints it."""

    spec: JobSpec
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """Status of a job as last reported by its backend."""

    state: JobState
    raw: str = ""
    """State in the backend's own words."""
    reason: str | None = None
    """Why the job waits, or why it ended, in the backend's own words."""
    cause: Cause | None = None
    ended_by: str | None = None
    """Who ended a stopped job, as `cancelled in Slurm by ada`, where the backend knows it."""
    hint: str | None = None
    nodes: tuple[str, ...] = ()
    """One name for each node of the job; twice the same where two of its nodes share a machine."""
    restarts: int = 0
    """How often the backend has given the job nodes again."""
    restarts_used: int | None = None
    """Restarts of an ended job by its own record, in place and on other nodes, where the record is not here."""
    exit_code: int | None = None
    starts_at: float | None = None
    """Estimated start of a waiting job, last start of any other; seconds since the epoch."""
    ended_at: float | None = None
    """End of an ended job as its backend reports it; seconds since the epoch."""
    last_cause: Cause | None = None
    """Why the job last lost its nodes, while its backend still knows."""
    tag: str | None = None
    """Tag of the job, from a backend that may give its handle to another job later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """Status of a node as its backend reports it."""

    name: str
    state: NodeState
    raw: str = ""
    reason: str | None = None
    """Why it is drained or down, or which of its accelerators are out of service, and why."""
    cores: float = 0.0
    cores_taken: float = 0.0
    accelerators: int = 0
    """Those in service."""
    accelerators_taken: int = 0
    accelerator: str | None = None
    memory_bytes: int = 0
    jobs: tuple[str, ...] = field(default=())
    switch: str | None = None
    """Leaf switch to which it is connected, where the backend knows it."""
    history: NodeHistory | None = None
    """How often its hardware failed under the jobs of the job store; a backend leaves it None."""

    def could_hold(self, wanted: NodeResources) -> bool:
        """Whether the node has the accelerators, cores and memory that a job requests of one, used or not."""
        enough = self.accelerators >= wanted.accelerators and self.cores >= (wanted.cores or 0.0)
        return enough and self.memory_bytes >= (wanted.memory_bytes or 0)


@dataclass(frozen=True, slots=True)
class AllocatedNodes:
    """Nodes of the job that this process runs in, and its share of each."""

    nodes: int
    cores_per_node: int
    accelerators_per_node: int
    machines: Machines | None
    """How to start a process on each of them; None where this node stands for all."""


class Backend(abc.ABC):
    """Runs jobs. A subclass is final and keeps five promises.

    1. `render` touches nothing: no file, no process, no network.
    2. `submit` returns a handle once the job exists. Otherwise it raises and leaves nothing behind. The exception is
       UnansweredError: the backend may have the job. The same run, submitted twice, gives the same job, or an error
       that names the first.
    3. `poll` reports one moment for all jobs at once and omits jobs unknown to the backend. UnreachableError says
       nothing about any job.
    4. `stop` asks for a clean end within the grace of the job and returns at once. A second call ends the job at once.
       An ended job stays as it is.
    5. The run directory belongs to the job: a backend never writes its metrics, checkpoints or events; `fetch` copies
       what the job wrote.
    """

    name: ClassVar[str]
    unsupported: ClassVar[frozenset[Capability]] = frozenset()
    without_accelerator: ClassVar[str] = ""
    """How an operator leaves one accelerator of a node out, where `drain.accelerator` is not supported."""
    shares_files: ClassVar[bool] = True
    """Whether the run directory here has the record of a job: the nodes see it, or each poll may `fetch` it. Otherwise
    `fetch` is called for a report alone, and may do nothing."""

    patience_s: float = 2.0
    """Longest time for which a list of jobs waits for the backend."""

    gives_other_accelerators: ClassVar[bool] = False
    """Whether a job continues without an accelerator that failed: with another one, on other nodes, or in new pods."""
    needs_program: ClassVar[bool] = False
    """Whether the nodes lack Trainworks: `connect` then gets the program, for a workload that of `workload_program`."""

    @classmethod
    def connect(cls, cluster: Cluster, *, store: JobStore | None = None, program: Program | None = None) -> Self:
        """Create the backend of a run file's `cluster`; every backend that is looked up by its name defines this.

        `store` is the open store of this machine's queue. `program` is what the job runs, if the backend
        `needs_program`; without it, nothing can be rendered.

        Raises:
            UsageError: an option has an invalid value.
        """
        raise NotImplementedError

    @classmethod
    def workload_program(cls, run_file: RunFile) -> Program:
        """The program with which nodes that lack Trainworks install it, and train the workload of a run file.

        Raises:
            UsageError: the backend cannot do this.
        """
        return program_of(run_file)

    @classmethod
    def allocated_nodes(cls) -> AllocatedNodes:
        """Nodes of the job that this process runs in, on its first node: a workload is planned on them.

        Raises:
            TrainworksError: this process runs in no such job, or the backend runs commands alone.
        """
        raise UsageError(f"{cls.name} cannot plan a workload on its nodes", hint="submit a command")

    @abc.abstractmethod
    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        """Render the job that `submit` would submit."""

    def adapted(self, spec: JobSpec) -> JobSpec:
        """Translate names, such as those of accelerators, into the backend's own; asks the backend for them.

        Raises:
            UsageError: the backend does not know the name.
            UnreachableError: it does not answer.
        """
        return spec

    @abc.abstractmethod
    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        """Submit the job and return its handle: the backend's own name for it."""

    @abc.abstractmethod
    def find(self, run_dir: RunDir) -> str | None:
        """Handle of the submitted job of a run that has not ended; None if there is none.

        Raises:
            UnreachableError: the backend does not answer.
        """

    @abc.abstractmethod
    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """Status of several jobs, from one query."""

    @classmethod
    def check_trains(cls, cluster: Cluster) -> None:
        """Refuse a cluster whose options let no workload start, or keep its checkpoints.

        Raises:
            UsageError: an option is missing; the message names the first.
        """
        return

    @classmethod
    def is_here(cls) -> bool:
        """Whether this machine can ask for the cluster's nodes without a run file."""
        return False

    def hurried(self) -> Self:
        """This backend with `patience_s` as the time limit of each query; itself where queries have no limit."""
        return self

    @abc.abstractmethod
    def stop(self, handle: str, *, at_once: bool = False) -> None:
        """Ask the job for a clean end."""

    def hold(self, handle: str) -> None:
        """Keep a waiting job from starting."""
        self._refuse("hold")

    def release(self, handle: str) -> None:
        """Let a held job start."""
        self._refuse("hold")

    def edit(self, handle: str, before: JobSpec, after: JobSpec) -> None:
        """Change a waiting job on the backend from `before` to `after`, which differs only in fields of
        `editing.EDITABLE` and has passed `check`.

        Raises:
            UsageError: the backend cannot change one of the fields, or the job does not wait. Nothing has changed.
        """
        self._refuse("edit")

    def retry(self, rendered: RenderedJob, run_dir: RunDir, handle: str) -> str:
        """Queue a failed or stopped job again; it continues in its run directory. Returns its new handle."""
        return self.submit(rendered, run_dir)

    def requeue(self, handle: str) -> None:
        """Return a job to the queue that left its nodes for another turn, though the backend still shows it on them.

        A backend that notices this by itself does nothing.
        """
        return

    def has_lost(self, seen_at: float, now: float) -> bool:
        """Whether a job that the backend had at `seen_at`, and does not list `now`, was lost in a crash of the backend.

        False if the job may have ended as well. A backend that never loses a job returns False.

        Raises:
            UnreachableError: the backend does not answer.
        """
        return False

    def last_end(self, run_dir: RunDir, handle: str) -> tuple[Cause, float] | None:
        """Cause and time at which a job that waits again lost its nodes, if its record does not say so.

        None if the backend does not know either: a node was lost after the last sign of life.
        """
        return None

    def fetch(self, run_dirs: Sequence[RunDir]) -> bool:
        """Bring the records of jobs into their run directories, if the jobs write them elsewhere.

        Returns:
            False if there is more, which the next call brings.

        Raises:
            UnreachableError: the backend does not answer.
        """
        return True

    def last_status(self, run_dir: RunDir) -> RunStatus:
        """How the record of a job that has ended says that it did, if its nodes do not share the run directory."""
        return RunStatus(state=JobState.UNKNOWN)

    def output(self, handle: str, *, node: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the lines that the nodes of a job write, or one `node`, without their ends, if the backend does not
        share files; with `follow` until the job ends.
        """
        return iter(())

    def last_output(self, handle: str) -> Iterator[str]:
        """Last lines of a job that has ended, if the engine deletes them with its nodes; they are kept with the run."""
        return iter(())

    def enter(
        self, run_dir: RunDir, handle: str, command: Sequence[str], *, node: int = 0, terminal: bool = False
    ) -> list[str]:
        """Argument vector of a program on this machine that runs a command beside the ranks of a running job.

        The command gets the environment of the first rank of the node, and the program its input, output and exit code.
        A command `("-m", MODULE, ...)` is started with the Python that has Trainworks there. `node` is the index of the
        node in the job. With `terminal` the command gets one of its own; leave it out where a program reads the output.

        Raises:
            UsageError: the backend cannot do this, or the job does not run there.
        """
        hint = "log in to the node with the tools of the cluster"
        raise UsageError(f"{self.name} cannot run a command in a job", hint=hint)

    def forward(self, run_dir: RunDir, handle: str, port: int, local_port: int, *, node: int = 0) -> list[str] | None:
        """Argument vector of a program that forwards a port of this machine's loopback to one of a node's loopback.

        None if every connection is a command of `enter`.

        Raises: as `enter`.
        """
        return None

    @abc.abstractmethod
    def nodes(self) -> list[NodeStatus]:
        """Status of all nodes, in order of their names."""

    def queue(self) -> list[ClusterJob]:
        """Jobs of all users: those that wait or run, and those that ended a short time ago.

        Raises:
            UsageError: the backend does not list the jobs of other users.
            UnreachableError: it does not answer.
        """
        raise UsageError(f"{self.name} does not list the jobs of other users")

    def drain(self, node: str, reason: str) -> None:
        """Give the node no more jobs; running ones continue.

        With `drain.accelerator`, `NODE:2` is its accelerator of this index, or UUID, alone.
        """
        self._refuse("drain")

    def undrain(self, node: str) -> None:
        """Give the node jobs again."""
        self._refuse("drain")

    def preempt(self, handle: str) -> None:
        """Take the nodes of a running job, as for a job with a higher priority; it waits again.

        Raises:
            UsageError: the backend cannot do this, or not for this user.
        """
        raise UsageError(f"{self.name} cannot take the nodes of a job on request")

    def set_down(self, node: str, reason: str) -> None:
        """Declare a node down, as if it did not answer: its jobs lose it. `undrain` takes this back.

        Raises:
            UsageError: the backend cannot do this, or not for this user.
        """
        raise UsageError(f"{self.name} cannot declare a node down on request")

    def probe(self, spec: JobSpec) -> None:
        """Ask the backend whether it would accept the job now, without submitting it.

        Raises:
            UsageError: it would refuse the job; the message is its own.
            UnreachableError: it does not answer.
        """
        return

    def _refuse(self, feature: Capability) -> Never:
        raise UsageError(f"{self.name} does not support `{feature}`", hint="stop the job and submit it again")

    def check(self, spec: JobSpec) -> None:
        """Refuse what this backend cannot do, without asking the cluster.

        Raises:
            UsageError: the job uses an unsupported feature; the message names the first.
        """
        used: dict[Capability, bool] = {
            "priority": spec.priority != JobSpec.__dataclass_fields__["priority"].default,
            "hold": spec.hold,
            "exclude": bool(spec.exclude),
            "depends_on": bool(spec.depends_on),
            "min_nodes": spec.min_nodes != spec.max_nodes,
            "time_limit": spec.time_limit_s is not None,
            "roles": bool(spec.roles),
            "memory": spec.node.memory_bytes is not None,
            "health": spec.health,
            "keep_code": spec.keep_code,
            "environment.lock": spec.environment == "lock",
            "environment.conda": spec.environment == "conda",
            "environment.image": spec.environment == "image",
        }
        missing = next((name for name, is_used in used.items() if is_used and name in self.unsupported), None)
        if missing is not None:
            key = missing if missing.startswith(("environment", "roles")) else f"job.{missing}"
            hint = f"leave out `{key}`, or use another backend"
            raise UsageError(f"{self.name} does not support `{missing}`", hint=hint)
