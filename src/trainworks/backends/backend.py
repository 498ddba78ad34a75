"""What every backend does with a job: render, which is pure, then act, then look."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Never, Self

from trainworks.agent.allocation import signs_of_life
from trainworks.errors import UsageError
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.state import Cause, JobState
from trainworks.record.run_dir import RunDir

if TYPE_CHECKING:
    from trainworks.config.run_file import Cluster
    from trainworks.jobs.program import Program
    from trainworks.jobs.store import JobStore

__all__ = ["Backend", "Capability", "JobStatus", "NodeState", "NodeStatus", "RenderedJob"]

NodeState = Literal["free", "mixed", "taken", "draining", "drained", "down", "unknown"]

Capability = Literal["priority", "hold", "exclude", "depends_on", "min_nodes", "drain", "time_limit", "memory"]
"""What a backend may lack; a job spec that asks for it is refused before anything is submitted."""


@dataclass(frozen=True, slots=True)
class RenderedJob:
    """What would be submitted; `--dry-run` prints its text."""

    spec: JobSpec
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job as its backend sees it now."""

    state: JobState
    raw: str = ""
    """The engine's own word."""
    reason: str | None = None
    """Why it waits, or why it ended, in the engine's words."""
    cause: Cause | None = None
    nodes: tuple[str, ...] = ()
    """One for each node of the job; where backends let them share a machine, a name may stand here twice."""
    restarts: int = 0
    exit_code: int | None = None
    starts_at: float | None = None
    """Estimated, of one that waits; of others when their last start was. Seconds since the epoch."""
    ended_at: float | None = None
    """When a job ended that has ended, as its backend says."""
    last_cause: Cause | None = None
    """Why the job lost its nodes the last time, while its backend still knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A node as its backend sees it now."""

    name: str
    state: NodeState
    raw: str = ""
    reason: str | None = None
    """Why it is drained or down."""
    cores: float = 0.0
    cores_taken: float = 0.0
    accelerators: int = 0
    accelerators_taken: int = 0
    accelerator: str | None = None
    memory_bytes: int = 0
    jobs: tuple[str, ...] = field(default=())


class Backend(abc.ABC):
    """Runs jobs.

    A subclass is final. It promises:
    1. `render` touches nothing: no file, no process, no network.
    2. `submit` returns a handle when the job exists for sure; else it raises, and leaves nothing behind. The one
       exception is an UnansweredError: the backend may have the job. The same run, submitted twice, gives the same
       job, or an error that names the first.
    3. `look` tells the truth of one moment for all jobs at once. A job that the backend does not know any more is left
       out; a backend that cannot be reached raises UnreachableError, which says nothing about any job.
    4. `stop` asks for a clean end, with the ticket's grace, and returns at once. Twice ends it at once. A job that has
       ended already is left alone.
    5. What stands in the run directory is the job's own; a backend never writes its metrics, checkpoints or events.
    """

    name: ClassVar[str]
    unsupported: ClassVar[frozenset[Capability]] = frozenset()
    shares_files: ClassVar[bool] = True
    """Whether the job's nodes see the run directory where it is seen here; else `output` is what can be read."""

    needs_program: ClassVar[bool] = False
    """Whether the nodes lack Trainworks: `connect` then gets the program, and workloads are refused."""

    @classmethod
    def connect(cls, cluster: Cluster, *, store: JobStore | None = None, program: Program | None = None) -> Self:
        """Create the backend of a run file's `cluster`; every backend that is looked up by its name defines this.

        Args:
            cluster: its options.
            store: the open store of this machine's queue.
            program: what the job runs, if the backend `needs_program`; without it, nothing can be rendered.

        Raises:
            UsageError: an option has an invalid value.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        """What `submit` would submit."""

    def adapted(self, spec: JobSpec) -> JobSpec:
        """The job spec in the engine's own names, such as those of its accelerators; the backend is asked for them.

        Raises:
            UsageError: the backend has nothing of that name.
            UnreachableError: it does not answer.
        """
        return spec

    @abc.abstractmethod
    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        """Submit the job; returns the engine's own name of it."""

    @abc.abstractmethod
    def find(self, run_dir: RunDir) -> str | None:
        """The handle of the job of a run that was submitted and has not ended; None where there is none.

        Raises:
            UnreachableError: the backend does not answer.
        """

    @abc.abstractmethod
    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """What the backend knows of these jobs, in one question."""

    @abc.abstractmethod
    def stop(self, handle: str, *, at_once: bool = False) -> None:
        """Ask the job for a clean end."""

    def hold(self, handle: str) -> None:
        """Keep a job that waits from starting."""
        self._has_no("hold")

    def release(self, handle: str) -> None:
        """Let a held job start."""
        self._has_no("hold")

    def retry(self, rendered: RenderedJob, run_dir: RunDir, handle: str) -> str:
        """Queue a failed or stopped job again; it continues in its run directory. Returns its new handle."""
        return self.submit(rendered, run_dir)

    def last_end(self, run_dir: RunDir, handle: str) -> tuple[Cause, float]:
        """Why and when a job that waits again lost its nodes, if its record does not say so."""
        return Cause.NODE_LOST, signs_of_life(run_dir)

    def output(self, handle: str, *, node: int | None = None, follow: bool = False) -> Iterator[str]:
        """Lines that the job's nodes have written, without their ends; of a backend that does not share its files.

        Args:
            handle: of the job.
            node: one node only.
            follow: continue until the job ends.
        """
        return iter(())

    @abc.abstractmethod
    def nodes(self) -> list[NodeStatus]:
        """All nodes, in order of their names."""

    def drain(self, node: str, reason: str) -> None:
        """Give the node no more jobs; running ones continue."""
        self._has_no("drain")

    def undrain(self, node: str) -> None:
        """Give the node jobs again."""
        self._has_no("drain")

    def probe(self, spec: JobSpec) -> None:
        """Ask the backend whether it would take such a job now; nothing is submitted.

        Raises:
            UsageError: it would not, in its words.
            UnreachableError: it does not answer.
        """
        return

    def _has_no(self, ability: Capability) -> Never:
        raise UsageError(f"{self.name} has no `{ability}`", hint="its jobs can be stopped, and submitted anew")

    def check(self, spec: JobSpec) -> None:
        """Refuse what this backend cannot do, without asking the cluster.

        Raises:
            UsageError: naming the first unsupported key.
        """
        asked: dict[Capability, bool] = {
            "priority": spec.priority != JobSpec.__dataclass_fields__["priority"].default,
            "hold": spec.hold,
            "exclude": bool(spec.exclude),
            "depends_on": bool(spec.depends_on),
            "min_nodes": spec.min_nodes != spec.max_nodes,
            "time_limit": spec.time_limit_s is not None,
            "memory": spec.node.memory_bytes is not None,
        }
        missing = next((ability for ability, wanted in asked.items() if wanted and ability in self.unsupported), None)
        if missing is not None:
            raise UsageError(
                f"{self.name} has no `{missing}`", hint=f"leave `job.{missing}` out, or take another engine"
            )
