"""Processes of a run: how many, on what, and with which environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from trainworks.config.spec import Spec


class Processes(Spec):
    """Ranks and the resources of each."""

    nodes: int
    processes_per_node: int
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

    def starts_on(self, node: int) -> int:
        """Processes that this node's agent starts."""
        return self.processes_per_node if self.starts != "once" else int(node == 0)

    @property
    def world_size(self) -> int:
        """All ranks of the job."""
        return self.nodes * self.processes_per_node

    @property
    def num_accelerators(self) -> int:
        """Accelerators whose price the job pays: those that a command requests, else one per rank."""
        return self.nodes * (self.accelerators_per_node or self.processes_per_node)

    @property
    def backend(self) -> str:
        """Collective library of the device."""
        return "nccl" if self.device == "cuda" else "gloo"
