"""Processes of a run: how many, on what, and with which environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from trainworks.config.spec import Spec


@dataclass(frozen=True, slots=True)
class RoleNodes:
    """Nodes of a job with equal processes: those of a role, or all of a job without roles."""

    role: str | None
    processes: Processes
    first_node: int
    """Number of its first node among all of the job."""
    first_rank: int
    """Number of its first rank among all of the job."""
    first_accelerator: int
    """Accelerators of the groups before it."""

    @property
    def nodes(self) -> range:
        """Numbers of its nodes among all of the job."""
        return range(self.first_node, self.first_node + self.processes.nodes)

    def ranks_of(self, node: int) -> range:
        """Numbers of the ranks that a node of the group starts, among all of the job."""
        place = node - self.first_node
        first = self.first_rank + place * self.processes.processes_per_node
        return range(first, first + self.processes.starts_on(place))


class Processes(Spec):
    """Ranks and the resources of each."""

    nodes: int
    processes_per_node: int
    """Ranks of each node; in a job with roles, the most of any."""
    threads_per_process: int
    device: str
    """`cpu` or `cuda`."""
    accelerators_per_node: int = 0
    """Accelerators shared by the processes of a node, if a command requests them; 0: one per rank."""
    starts: Literal["per_rank", "per_node", "once"] = "per_rank"
    """Unit that a command starts once for; it starts further processes itself."""
    nccl_environment: Mapping[str, str] = Field(default_factory=dict)
    """Variables that NCCL needs on this network, from the description of the cluster; the environment of a rank takes
    precedence."""

    roles: Mapping[str, Processes] = Field(default_factory=dict)
    """Processes of each role in order, of which this is the sum; nodes and ranks are numbered through all of them."""

    @classmethod
    def of_roles(cls, roles: Mapping[str, Processes]) -> Processes:
        """The processes of a job that has roles."""
        each = roles.values()
        return cls(
            nodes=sum(one.nodes for one in each),
            processes_per_node=max(one.processes_per_node for one in each),
            threads_per_process=max(one.threads_per_process for one in each),
            device="cuda" if any(one.device == "cuda" for one in each) else "cpu",
            roles=roles,
        )

    def groups(self) -> list[RoleNodes]:
        """Its roles in order; one group without a role where there are none."""
        found, node, rank, accelerator = list[RoleNodes](), 0, 0, 0
        for role, one in self.roles.items() or [(None, self)]:
            found.append(RoleNodes(role, one, node, rank, accelerator))
            node, rank = node + one.nodes, rank + one.world_size
            accelerator += one.num_accelerators if one.device == "cuda" else 0
        return found

    def group_of(self, node: int) -> RoleNodes:
        """The group that a node belongs to."""
        return next(group for group in self.groups() if node in group.nodes)

    def rank_name(self, rank: int) -> str | None:
        """Role of a rank and its number there, `rollout-0`; None without roles."""
        group = next(group for group in reversed(self.groups()) if rank >= group.first_rank)
        return None if group.role is None else f"{group.role}-{rank - group.first_rank}"

    def starts_on(self, node: int) -> int:
        """Processes that this node's agent starts."""
        return self.processes_per_node if self.starts != "once" else int(node == 0)

    @property
    def world_size(self) -> int:
        """All ranks of the job."""
        return sum(one.world_size for one in self.roles.values()) or self.nodes * self.processes_per_node

    @property
    def num_accelerators(self) -> int:
        """Accelerators whose price the job pays: those that a command requests, else one per rank."""
        if self.roles:
            return sum(one.num_accelerators for one in self.roles.values() if one.device == "cuda")
        return self.nodes * (self.accelerators_per_node or self.processes_per_node)

    @property
    def backend(self) -> str:
        """Collective library of the device."""
        return "nccl" if self.device == "cuda" else "gloo"
