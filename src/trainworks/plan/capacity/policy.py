"""A capacity policy: fixed nodes, and elastic nodes that follow the queue."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
    """Elastic nodes that can be taken back. Each lives for an exponential time, independently of the others."""

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
