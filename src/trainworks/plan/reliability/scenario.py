"""A run as its failures see it, and what became of many such runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainworks.errors import UsageError
from trainworks.plan.reliability.defaults import Failures
from trainworks.plan.uncertainty import Z80
from trainworks.units import format_duration

_ROUNDING = 1e-9
Array = npt.NDArray[np.float64]

CAUSES = (
    "checkpoint",
    "lost work",
    "recovery",
    "waiting for nodes",
    "straggling",
    "fewer nodes",
    "preempted",
    "queueing",
)
"""Causes of lost wall-clock time; each second belongs to one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that decides when a synchronous job is done. Times in seconds; `inf` for what never happens.

    Raises:
        UsageError: a time or count that cannot be, or checkpoints that follow each other faster than they are written.
    """

    num_nodes: int
    """Nodes of the job, without spares."""
    work_s: float
    """Time on all nodes without failures or checkpoints."""
    interval_s: float
    """Work between the end of one checkpoint and the start of the next."""
    work_spread: float = 0.0
    """Standard deviation of the logarithm of `work_s`: how unsure its prediction is."""
    node_mttf_s: float = math.inf
    """Mean time to a failure that takes the node away for repair."""
    other_mttf_s: float = math.inf
    """Mean time of the job to a failure that leaves all nodes usable, such as a software fault."""
    save_s: float = 0.0
    """Time that training stops for each checkpoint."""
    write_s: float = 0.0
    """Time from the end of that stall until the checkpoint can be restored: 0 for a synchronous one."""
    detect_s: float = 0.0
    """Time from a failure until its detection."""
    restart_s: float = 0.0
    """Time from having all nodes until training resumes: processes, communicators, loading."""
    swap_s: float = 0.0
    """Time to bring another node into the job; 0 for a hot spare."""
    repair_s: float = 0.0
    """Mean, exponentially distributed; the repaired node becomes a spare."""
    spares: int = 0
    replicas: int = 1
    """Equal parts of the job that can leave it one by one."""
    min_replicas: int = 1
    """Fewest replicas with which the job continues; equal to `replicas` if it is not elastic."""
    rejoin_s: float | None = None
    """Pause when a missing replica comes back; by default as long as a restart."""
    slow_mttf_s: float = math.inf
    """Mean time until a node becomes a straggler."""
    slow_speed: float = 1.0
    """Speed of a job that has one, as a share."""
    slow_found_s: float = math.inf
    """Time until a straggler is found and replaced, after a save."""
    capacity_life_s: float = math.inf
    """Mean life of the capacity, which is taken away as a whole."""
    notice_s: float = 0.0
    """Warning before; long enough for a checkpoint, it saves all work."""
    capacity_wait_s: float = 0.0
    """Mean wait for new capacity, exponentially distributed."""
    queue_s: float = 0.0
    """Wait before the first start."""

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or not 1 <= self.min_replicas <= self.replicas <= self.num_nodes:
            counts = f"{self.num_nodes} nodes, {self.min_replicas} to {self.replicas} replicas"
            raise UsageError(f"{counts}: nodes >= replicas >= fewest replicas >= 1 is needed")
        for name in (
            "work_s",
            "interval_s",
            "node_mttf_s",
            "other_mttf_s",
            "slow_mttf_s",
            "slow_speed",
            "capacity_life_s",
        ):
            if not getattr(self, name) > 0:
                raise UsageError(f"`{name}` must be greater than 0, got {getattr(self, name):g}")
        if self.spares < 0 or self.slow_speed > 1:
            raise UsageError(f"{self.spares} spares or a straggler's speed of {self.slow_speed:g} cannot be")
        if (self.interval_s + self.save_s) * (1 + _ROUNDING) < self.write_s:
            raise UsageError(
                f"a checkpoint every {format_duration(self.interval_s + self.save_s)} cannot be kept up: "
                f"writing one takes {format_duration(self.write_s)}",
                hint="save less often, or write faster",
            )

    @property
    def replica_nodes(self) -> int:
        """Nodes that leave together."""
        return self.num_nodes // self.replicas

    @property
    def saves_before_preemption(self) -> bool:
        """True if the notice is long enough for a checkpoint."""
        return self.notice_s >= self.save_s + self.write_s


def scenario_of(failures: Failures, *, work_s: float, interval_s: float, **more: Any) -> Scenario:
    """Simulation scenario of failures with a known expectation; `more` sets its other fields."""
    other, life = failures.other_mttf, failures.capacity_life
    return Scenario(
        num_nodes=round(failures.num_nodes.value),
        work_s=work_s,
        interval_s=interval_s,
        node_mttf_s=failures.node_mttf.value,
        other_mttf_s=math.inf if other is None else other.value,
        save_s=failures.save.value,
        write_s=failures.write.value,
        detect_s=failures.detect.value,
        restart_s=failures.restart.value,
        repair_s=failures.repair.value,
        capacity_life_s=math.inf if life is None else life.value,
        notice_s=failures.notice.value,
        capacity_wait_s=failures.capacity_wait.value,
        **more,
    )


def nodes_per_replica(accelerators_per_replica: int, accelerators_per_node: int) -> int:
    """Whole nodes that one copy of the model touches, and that leave with it."""
    return max(1, -(-accelerators_per_replica // accelerators_per_node))


def elastic_replicas(num_nodes: int, nodes_each: int, fewest_nodes: int) -> tuple[int, int]:
    """Replicas of a job, and the fewest with which it continues.

    >>> elastic_replicas(64, 4, 50)
    (16, 13)
    """
    replicas = max(1, num_nodes // nodes_each)
    return replicas, min(replicas, -(-fewest_nodes // nodes_each))


def spread_of(low: float, high: float) -> float:
    """Standard deviation of a logarithm with a known 80 % interval: log(high / low) / 2.563.

    >>> spread_of(1.0, 1.0)
    0.0
    """
    return math.log(high / low) / (2 * Z80)


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """Many simulated runs; arrays have one entry per trial."""

    work_s: Array
    badput_s: dict[str, Array]
    """Lost time by cause, in the order of `CAUSES`; with the work it adds up to the wall-clock time."""
    failures: npt.NDArray[np.int64]
    preemptions: npt.NDArray[np.int64]

    @property
    def wall_s(self) -> Array:
        """Time from submission to the last checkpoint."""
        total: Array = self.work_s + np.sum(list(self.badput_s.values()), axis=0)
        return total

    @property
    def held_s(self) -> Array:
        """Time for which the nodes are held, and paid."""
        duration: Array = self.wall_s - self.badput_s["preempted"] - self.badput_s["queueing"]
        return duration

    @property
    def runtime_goodput(self) -> float:
        """Productive time over time holding the accelerators, over all trials."""
        return float(self.work_s.sum() / self.held_s.sum())

    @property
    def ettr(self) -> float:
        """Productive time over the whole wall-clock time with queueing, over all trials."""
        return float(self.work_s.sum() / self.wall_s.sum())

    def quantile_s(self, share: float) -> float:
        """Wall-clock time within which this share of the trials is done."""
        return float(np.quantile(self.wall_s, share))

    def chance(self, deadline_s: float) -> float:
        """Share of the trials that are done in time."""
        return float(np.mean(self.wall_s <= deadline_s))

    def shares(self) -> dict[str, float]:
        """Share of all wall-clock time by cause, work first; adds up to 1."""
        total = self.wall_s.sum()
        parts = {"work": self.work_s, **self.badput_s}
        return {name: float(seconds.sum() / total) for name, seconds in parts.items()}
