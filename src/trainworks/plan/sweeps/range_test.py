"""Read a learning-rate range test: the loss while the rate rises exponentially over one short run.

Source: L. Smith, "Cyclical Learning Rates for Training Neural Networks" (2017), section 3.3; the choice of a rate from
the curve follows the learning-rate finder of fastai.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainworks.results import Result

_SMOOTHING = 0.9
"""Weight of the past in the mean of the losses."""
DIVERGED = 4.0
"""A smoothed loss of so many times the lowest one has diverged."""
_BELOW_LOWEST = 10.0


@dataclass(frozen=True, slots=True)
class RangeTest:
    """What a range test found."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    """Smoothed, up to the step at which they diverged."""
    suggested: float | None
    """A tenth of the rate with the lowest loss, at least the smallest rate; None if the loss never fell."""
    steepest: float | None
    """Rate at which the loss falls fastest per decade."""
    diverged_at: float | None
    """Rate from which the loss has diverged; None if it has not."""


@dataclass(frozen=True, slots=True)
class RangeTestResult(Result):
    """A range test and the run that made it."""

    run: str
    test: RangeTest


def smooth(losses: Sequence[float]) -> list[float]:
    """Exponential mean with the bias of its start removed: m_t / (1 - b^t), m_t = b m_(t-1) + (1 - b) l_t."""
    found, mean = [], 0.0
    for number, loss in enumerate(losses, 1):
        mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
        found.append(mean / (1 - _SMOOTHING**number))
    return found


def has_diverged(losses: Sequence[float]) -> bool:
    """Whether the smoothed loss is not finite, or far above its lowest value."""
    curve = smooth(losses)
    return bool(curve) and (not math.isfinite(curve[-1]) or curve[-1] > DIVERGED * min(curve))


def read_range_test(rates: Sequence[float], losses: Sequence[float]) -> RangeTest:
    """The result of a range test from the learning rate and the loss of each step, in order."""
    curve = smooth(losses)
    end = next((i for i in range(len(curve)) if has_diverged(losses[: i + 1])), len(curve))
    kept, steps = curve[:end], list(rates[:end])
    diverged_at = float(rates[end]) if end < len(curve) else None
    lowest = int(np.argmin(kept)) if kept else 0
    if lowest == 0:
        return RangeTest(tuple(steps), tuple(kept), None, None, diverged_at)
    slopes = np.gradient(np.asarray(kept[: lowest + 1]), np.log10(np.asarray(steps[: lowest + 1])))
    return RangeTest(
        tuple(steps),
        tuple(kept),
        max(steps[lowest] / _BELOW_LOWEST, steps[0]),
        steps[int(np.argmin(slopes))],
        diverged_at,
    )
