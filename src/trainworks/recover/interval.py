"""Interval between checkpoints from measured costs, for ranks, which do not plan.

The numbers are those of `plan.reliability.checkpoint_interval`.

    sqrt(2 C M) (1 + 1/3 sqrt(C / 2M) + C / 18M) - C     for C < 2M, else M

with stall C and mean time between failures M; at least the write w less C and one step, at most an hour.

Source: Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
"""

from __future__ import annotations

import math

LONGEST_S = 3600.0
_LEAST_STALL_S = 1e-6


def daly_interval_s(*, stall_s: float, mttf_s: float, write_s: float, shortest_s: float) -> float:
    """Training time between two checkpoints that loses least to saving and to failures.

    >>> round(daly_interval_s(stall_s=2.0, mttf_s=3600.0, write_s=0.0, shortest_s=0.0), 1)
    118.7
    """
    stall = max(stall_s, _LEAST_STALL_S)
    daly = mttf_s
    if stall < 2 * mttf_s and math.isfinite(mttf_s):
        ratio = stall / mttf_s
        daly = math.sqrt(2 * stall * mttf_s) * (1 + math.sqrt(ratio / 2) / 3 + ratio / 18) - stall
    return max(min(daly, LONGEST_S), write_s - stall, shortest_s)
