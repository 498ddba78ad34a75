"""Checkpoint interval of every command and of `checkpoint.every: auto`.

    C   stall: time for which training stops per checkpoint           M   mean time between failures of the job
    w   write: time from then until the checkpoint can be restored

    Daly's interval    sqrt(2 C M) (1 + 1/3 sqrt(C / 2M) + C / 18M) - C     for C < 2M, else M

The interval is at most the longest acceptable loss, at least one step, and long enough for the write in the background,
because a save waits for the previous one.

Sources: Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; Daly, "A higher
order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
"""

from __future__ import annotations

from functools import lru_cache

from trainworks.config.quantities import CheckpointInterval
from trainworks.plan.assumptions import GIVEN, assumed
from trainworks.plan.trace import Traced, fact, maximum, minimum, sqrt, where


def optimal_interval(*, stall: Traced, mttf: Traced, write: Traced, shortest: Traced) -> Traced:
    """Training time between two checkpoints that loses least to saving and to failures.

    Args:
        stall: C, above 0.
        mttf: M of the whole job, of everything that loses work.
        write: w; 0 for a synchronous save.
        shortest: lower bound, such as one step.
    """
    frequent = sqrt(2 * stall * mttf) * (1 + sqrt(stall / mttf / 2) / 3 + stall / mttf / 18) - stall
    daly = where(stall < 2 * mttf, frequent, mttf).named("Daly's interval", "s", stall=stall, mttf=mttf)
    longest = assumed("longest checkpoint interval")
    return maximum(minimum(daly, longest), write - stall, shortest).named(
        "checkpoint interval", "s", daly=daly, longest=longest, write=write, stall=stall, shortest=shortest
    )


@lru_cache(maxsize=4096)
def optimal_interval_s(*, stall_s: float, mttf_s: float, write_s: float = 0.0, shortest_s: float = 0.0) -> float:
    """The value of `optimal_interval`, in seconds.

    >>> round(optimal_interval_s(stall_s=2.0, mttf_s=3600.0), 1)
    118.7
    """
    names = {"stall": stall_s, "mttf": mttf_s, "write": write_s, "shortest": shortest_s}
    return optimal_interval(**{name: fact(name, value, "s", source=GIVEN) for name, value in names.items()}).value


def checkpoint_interval(
    interval: CheckpointInterval,
    *,
    stall_s: float,
    node_mttf_s: float,
    num_nodes: int,
    write_s: float = 0.0,
    step_s: float = 0.0,
) -> tuple[int | None, float | None]:
    """Steps, or seconds, between checkpoints: the configured ones, else the optimal interval.

    Failures of nodes are independent: the job's mean time to failure is the node's divided by the nodes.
    """
    if interval.steps is not None:
        return interval.steps, None
    if interval.seconds is not None:
        return None, interval.seconds
    mttf_s = node_mttf_s / num_nodes
    return None, optimal_interval_s(stall_s=stall_s, mttf_s=mttf_s, write_s=write_s, shortest_s=step_s)
