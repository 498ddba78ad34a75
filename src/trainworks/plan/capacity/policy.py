"""A capacity policy: fixed nodes, and elastic nodes that follow the queue.

Spot nodes cost checkpoints, lost work and restarts of the jobs on them. Symbols:
    T   checkpoint interval, s             C   writing one checkpoint, s
    M   mean life of a spot node, s        N   notice before it is taken back, s
    n   nodes of the job                   w   work since the job's last start, s
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainworks.plan.reliability import checkpoint_interval

FIXED, SPOT, ON_DEMAND = "fixed", "spot", "on-demand"
"""Classes of nodes, in the order in which a job is tried: what is paid anyway first, then the cheaper one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """Nodes ordered when the queue needs them, paid by the second from the order on."""

    max_nodes: int = 0
    start_latency_s: float = 300.0
    """Time from the order to the first step."""
    min_billing_s: float = 60.0
    idle_timeout_s: float = 900.0
    """An idle node is given back after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot(Elastic):
    """Elastic nodes that can be taken back. Lifetimes are drawn from an exponential distribution."""

    mean_life_s: float = 8 * 3600.0
    notice_s: float = 120.0
    """Time between the warning and the end."""
    checkpoint_write_s: float = 60.0
    """One checkpoint; inside of the notice it saves all work."""
    restart_s: float = 600.0
    """Restart time of an interrupted job, without the wait for nodes: image, processes, loading the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Capacity and the rules of its queue."""

    node_accelerators: int
    fixed_nodes: int
    on_demand: Elastic = Elastic()
    spot: Spot = Spot()
    backlog_s: float = 0.0
    """Nodes are ordered while queued accelerator-seconds over accelerators at hand exceed this; 0: as soon as a job
    has to wait."""
    patience_s: float = math.inf
    """Nodes are ordered, too, for a job that has waited so long."""
    backfill: bool = True
    """A job may overtake if the first one in the queue does not start later for it (EASY)."""
    seed: int = 1
    """Seed of the lifetimes of spot nodes."""


def optimal_interval_s(spot: Spot, nodes: int) -> float:
    """Checkpoint interval that loses least in all, with a job MTTF of M / n: its nodes die independently."""
    return checkpoint_interval.optimal_interval_s(stall_s=spot.checkpoint_write_s, mttf_s=spot.mean_life_s / nodes)


def slowdown(spot: Spot, nodes: int, own_interval_s: float) -> float:
    """Seconds on spot nodes for one second of work: 1 + C / T.

    Args:
        spot: terms of the nodes.
        nodes: of the job.
        own_interval_s: checkpoints that the job writes everywhere, so that its run time has them; NaN without any.
    """
    return 1.0 + spot.checkpoint_write_s / optimal_interval_s(spot, nodes) if math.isnan(own_interval_s) else 1.0


def kept_s(spot: Spot, nodes: int, own_interval_s: float, work_s: float) -> float:
    """Work that an interruption leaves: w - min(w mod T, N) if a checkpoint fits into the notice, else w - w mod T."""
    interval_s = optimal_interval_s(spot, nodes) if math.isnan(own_interval_s) else own_interval_s
    lost_s = math.fmod(work_s, interval_s)
    return work_s - (min(lost_s, spot.notice_s) if spot.checkpoint_write_s <= spot.notice_s else lost_s)
