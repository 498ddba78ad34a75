"""What every engine does with a job: render, which is pure, then act, then look."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from trainworks.errors import UsageError
from trainworks.job.state import Cause, JobState
from trainworks.job.ticket import Ticket
from trainworks.record.run_dir import RunDir

__all__ = ["Ability", "Engine", "NodeFacts", "Script", "Sight"]

Ability = Literal["priority", "hold", "exclude", "depends_on", "min_nodes", "drain", "time_limit", "memory"]
"""What an engine may lack; a ticket that asks for it is refused before anything is submitted."""


@dataclass(frozen=True, slots=True)
class Script:
    """What would be submitted; `--dry-run` prints its text."""

    ticket: Ticket
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A job as its engine sees it now."""

    state: JobState
    raw: str = ""
    """The engine's own word."""
    reason: str | None = None
    """Why it waits, or why it ended, in the engine's words."""
    cause: Cause | None = None
    nodes: tuple[str, ...] = ()
    restarts: int = 0
    exit_code: int | None = None
    starts_at: float | None = None
    """Estimated, of one that waits; seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node as its engine sees it now."""

    name: str
    state: Literal["free", "mixed", "taken", "draining", "drained", "down", "unknown"]
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


class Engine(abc.ABC):
    """Runs jobs.

    A subclass is final. It promises:
    1. `render` touches nothing: no file, no process, no network.
    2. `submit` returns a handle when the job exists for sure; else it raises, and leaves nothing behind. The
       same run, submitted twice, gives the same job, or an error that names the first.
    3. `look` tells the truth of one moment for all jobs at once. A job that the engine does not know any more is left
       out; an engine that cannot be reached raises UnreachableError, which says nothing about any job.
    4. `stop` asks for a clean end, with the ticket's grace, and returns at once. Twice ends it at once. A job that has
       ended already is left alone.
    5. What stands in the run directory is the job's own; an engine never writes its metrics, checkpoints or events.
    """

    name: ClassVar[str]
    lacks: ClassVar[frozenset[Ability]] = frozenset()

    @abc.abstractmethod
    def render(self, ticket: Ticket, run_dir: RunDir) -> Script:
        """What `submit` would submit."""

    @abc.abstractmethod
    def submit(self, script: Script, run_dir: RunDir) -> str:
        """Submit the job; returns the engine's own name of it."""

    @abc.abstractmethod
    def look(self, handles: Sequence[str]) -> dict[str, Sight]:
        """What the engine knows of these jobs, in one question."""

    @abc.abstractmethod
    def stop(self, handle: str, *, at_once: bool = False) -> None:
        """Ask the job for a clean end."""

    @abc.abstractmethod
    def hold(self, handle: str) -> None:
        """Keep a job that waits from starting."""

    @abc.abstractmethod
    def release(self, handle: str) -> None:
        """Let a held job start."""

    @abc.abstractmethod
    def retry(self, handle: str) -> None:
        """Put a job that has ended without success back into the queue, with the run directory that it has.

        Raises:
            UsageError: it has not ended, or it has succeeded.
        """

    @abc.abstractmethod
    def nodes(self) -> list[NodeFacts]:
        """All nodes, in order of their names."""

    @abc.abstractmethod
    def drain(self, node: str, reason: str) -> None:
        """Give the node no more jobs; those that run there go on."""

    @abc.abstractmethod
    def undrain(self, node: str) -> None:
        """Give the node jobs again."""

    def check(self, ticket: Ticket) -> None:
        """Refuse what this engine cannot do.

        Raises:
            UsageError: naming the first such wish.
        """
        asked: dict[Ability, bool] = {
            "priority": ticket.priority != Ticket.__dataclass_fields__["priority"].default,
            "hold": ticket.hold,
            "exclude": bool(ticket.exclude),
            "depends_on": bool(ticket.depends_on),
            "min_nodes": ticket.min_nodes != ticket.max_nodes,
            "time_limit": ticket.time_limit_s is not None,
            "memory": ticket.node.memory_bytes is not None,
        }
        missing = next((ability for ability, wanted in asked.items() if wanted and ability in self.lacks), None)
        if missing is not None:
            raise UsageError(
                f"{self.name} has no `{missing}`", hint=f"leave `job.{missing}` out, or take another engine"
            )
