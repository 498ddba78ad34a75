"""How often to save: the cost of saving against the work that a failure loses."""

from __future__ import annotations

import math

from trainworks.spec.quantities import CheckpointInterval

__all__ = ["checkpoint_interval", "young_interval_s"]


def young_interval_s(*, save_s: float, job_mttf_s: float) -> float:
    """Best time between checkpoints: sqrt(2 C M).

    Args:
        save_s: C, time for which training stands still per checkpoint.
        job_mttf_s: M, mean time between failures of the whole job, far above C.

    Source: Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.

    >>> young_interval_s(save_s=2.0, job_mttf_s=3600.0)
    120.0
    """
    return math.sqrt(2 * save_s * job_mttf_s)


def checkpoint_interval(
    wanted: CheckpointInterval, *, save_s: float, node_mttf_s: float, num_nodes: int
) -> tuple[int | None, float | None]:
    """Steps, or seconds, between checkpoints: what was asked for, else Young's interval.

    Failures of nodes are independent: the job's mean time to failure is the node's divided by the nodes.
    """
    if wanted.steps is not None:
        return wanted.steps, None
    if wanted.seconds is not None:
        return None, wanted.seconds
    return None, young_interval_s(save_s=save_s, job_mttf_s=node_mttf_s / num_nodes)
