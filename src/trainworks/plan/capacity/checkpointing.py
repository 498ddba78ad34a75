"""Cost of spot nodes for the jobs on them: checkpoints, lost work and restarts.

Symbols:
    T   checkpoint interval, s             C   writing one checkpoint, s
    M   mean life of a spot node, s        N   notice before it is taken back, s
    n   nodes of the job                   w   work since the job's last start, s
"""

from __future__ import annotations

import math

from trainworks.plan.capacity.policy import Spot
from trainworks.plan.reliability import checkpoint_interval


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
