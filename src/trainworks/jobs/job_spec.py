"""The job a run submits to a queue: its resources, time limit and priority, and the jobs that it waits for."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Literal

ARRAY_ID = "TRAINWORKS_ARRAY_ID"
"""Variable with the id of the array that a command is one of."""
_ARRAY_LETTERS = "bcdfghjkmnpqrstvwxz"  # spell no words


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """Resources of every node of a job; None means no requirement."""

    cores: float | None = None
    accelerators: int = 0
    accelerator: str | None = None
    """Accelerator type by its name on the backend: `A100`, `h100`."""
    alternatives: tuple[str, ...] = ()
    """Other accelerators that would do, for backends that choose: `H100:8`."""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """Nodes of one role of a job; its command is in the resolved run."""

    name: str
    nodes: int
    node: NodeResources
    decides: bool = True
    """Whether the job succeeds only when the role has."""
    depends_on: tuple[str, ...] = ()
    """Roles that must succeed before it starts."""
    restarts: int = 0
    """How often it may start again alone."""
    image: str | None = None
    """Container image of its own; that of the job when None."""
    exclude: tuple[str, ...] = ()
    """Nodes that it never takes, besides those that the job excludes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Resources, time limit and priority a job requests.

    The resolved run in the run directory says what the job executes on its nodes.
    """

    run_id: str
    name: str
    min_nodes: int
    max_nodes: int
    """Gang size: the job starts on at least `min_nodes` and at most `max_nodes` nodes at once."""
    node: NodeResources
    """Resources of each node; in a job with roles, the most that any of its nodes requests."""
    roles: tuple[RoleSpec, ...] = ()
    """Groups of nodes with resources of their own, allocated together; the job has their sum of nodes."""
    tasks_per_node: int = 1
    """Slurm tasks per node for a batch script with its own launcher; 1 for every other job."""
    time_limit_s: float | None = None
    """Time limit of one attempt."""
    grace_s: float = 120.0
    priority: int = 50
    preemptible: bool = True
    exclude: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    """Jobs, by number or run, that must succeed before this one starts."""
    hold: bool = False
    health: bool = False
    """Check every node before the ranks start."""
    max_restarts: int = 0
    """Automatic restarts after a failure that a restart can fix."""
    restart_window_s: float = 86_400.0
    """Restarts that lie further back do not count."""
    working_folder: str = "."
    keep_code: bool = False
    """Whether `working_folder` is a copy of the code that was made at submission."""
    team: str = ""
    """Team that the job is billed to."""
    array: str | None = None
    """Id of the array that the job is one of: `array-kxbwtq`."""
    environment: Literal["lock", "conda", "image"] | None = None
    """Kind of the packages that the run file names for its ranks."""

    @property
    def groups(self) -> tuple[RoleSpec, ...]:
        """Its roles; all nodes as one where it has none."""
        return self.roles or (RoleSpec(name="", nodes=self.max_nodes, node=self.node),)

    @property
    def num_accelerators(self) -> int:
        """Accelerators of all nodes."""
        return sum(group.nodes * group.node.accelerators for group in self.groups)


def new_array_id() -> str:
    """Draw an id for an array, unlike any run id: `array-kxbwtq`."""
    return "array-" + "".join(secrets.choice(_ARRAY_LETTERS) for _ in range(6))


def is_array_id(name: str) -> bool:
    """Whether a name has the form of an array's id."""
    return re.fullmatch(f"array-[{_ARRAY_LETTERS}]{{6}}", name) is not None


ANY_END = "afterany:"


@dataclass(frozen=True, slots=True)
class Dependency:
    """One job that must end first."""

    job: str
    """Number or run of the job."""
    needs_success: bool = True

    def __str__(self) -> str:
        return self.job if self.needs_success else f"{ANY_END}{self.job}"


def parse_dependency(text: str) -> Dependency:
    """Read an entry of `job.depends_on`.

    >>> parse_dependency("tokenize-1"), parse_dependency("afterany:12")
    (Dependency(job='tokenize-1', needs_success=True), Dependency(job='12', needs_success=False))
    """
    return Dependency(text.removeprefix(ANY_END), needs_success=not text.startswith(ANY_END))
