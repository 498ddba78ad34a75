"""What is bought and when: fixed nodes, and elastic ones that come with the queue and go when idle."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["FIXED", "ON_DEMAND", "SPOT", "Elastic", "Policy", "Spot"]

FIXED, SPOT, ON_DEMAND = "fixed", "spot", "on-demand"
"""Classes of nodes, in the order in which a job is tried: what is paid anyway first, then the cheaper one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """Nodes that are ordered when the queue asks for them. They are paid from the order on, in seconds."""

    max_nodes: int = 0
    start_latency_s: float = 300.0
    """From the order to the first step."""
    min_billing_s: float = 60.0
    idle_timeout_s: float = 900.0
    """An idle node is given back after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot(Elastic):
    """Elastic nodes that can be taken back. Each lives for an exponential time, independently of the others."""

    mean_life_s: float = 8 * 3600.0
    notice_s: float = 120.0
    """Between the warning and the end."""
    checkpoint_write_s: float = 60.0
    """One checkpoint; inside of the notice it saves all work."""
    restart_s: float = 600.0
    """Of a job that was interrupted, on top of waiting for its nodes: image, processes, loading the checkpoint."""


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
    """Of the lives of spot nodes."""
