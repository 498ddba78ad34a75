"""Result of a replay: the runs of each job, the waiting times and the capacity bought."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class JobRun(NamedTuple):
    """A job on its nodes, from its start to its end or interruption."""

    job: int
    pool: str
    start_s: float
    end_s: float
    nodes: tuple[int, ...]
    each: int
    """Accelerators on every node."""
    setup_s: float
    """Before the first work."""
    stretch: float
    """Seconds for one second of work."""

    @property
    def accelerators(self) -> int:
        """Accelerators on all its nodes."""
        return len(self.nodes) * self.each


@dataclass(slots=True)
class Replay:
    """Waiting and end times of the jobs, by their index in the trace, and the capacity used."""

    wait_s: list[float]
    """Time in the queue and for starting nodes, before the first start and after every interruption."""
    end_s: list[float]
    runs: list[JobRun] = field(default_factory=list)
    bought_accelerator_s: dict[str, float] = field(default_factory=dict)
    """Paid, by class of nodes; of the fixed nodes until the last job has ended."""
    most_nodes: dict[str, int] = field(default_factory=dict)
    """Largest number of nodes at one time, by class."""
    wasted_accelerator_s: float = 0.0
    """Accelerator-seconds of restarts, lost work, and checkpoints taken because of spot nodes."""
    interruptions: int = 0
