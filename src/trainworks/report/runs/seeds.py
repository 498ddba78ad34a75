"""Runs that differ by their seed alone: their curves as one, the mean with its spread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Points = Sequence[tuple[float, float]]

_OF_THE_PLACE = frozenset({"name", "host.name"})
"""Settings that say which run it is and where it ran."""


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """n runs with the same settings but for the seed; with n = 1 the curve of that run."""

    runs: tuple[int, ...]
    """Their positions in the sequence that was grouped."""
    mean: Points
    """Step and mean over the runs, at the steps of the first one that all of them have reached; ascending."""
    low: Points
    high: Points
    """Mean - s and mean + s with s the standard deviation of the n values, by n - 1. Equal to the mean for n = 1."""

    @property
    def final(self) -> tuple[float, float, float] | None:
        """Last common step, the mean there and s; None without a common step."""
        if not self.mean:
            return None
        (step, mean), (_, high) = self.mean[-1], self.high[-1]
        return step, mean, high - mean


def group_by_seed(settings: Sequence[Mapping[str, object]], curves: Sequence[Points]) -> list[SeedGroup]:
    """Runs in groups of those that differ by settings named `seed` alone, in the order of their first runs.

    Names, and the node that a run was on, do not count. A setting is named by its last part: `workload.seed`,
    `envs.SEED`. A run without a point is in no group.

    Args:
        settings: of each run, by dotted name.
        curves: step and value of each run, ascending in the step.

    >>> curves = [[(0, 1.0), (10, 3.0)], [(0, 3.0), (10, 5.0)]]
    >>> [group] = group_by_seed([{"seed": 1, "lr": 0.1}, {"seed": 2, "lr": 0.1}], curves)
    >>> group.mean
    [(0.0, 2.0), (10.0, 4.0)]
    """
    members: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, (given, curve) in enumerate(zip(settings, curves, strict=True)):
        if curve:
            members[
                frozenset(
                    (name, str(value))
                    for name, value in given.items()
                    if name not in _OF_THE_PLACE and name.rpartition(".")[2].lower() != "seed"
                )
            ].append(index)
    return [_group(tuple(indices), [curves[index] for index in indices]) for indices in members.values()]


def _group(runs: tuple[int, ...], curves: Sequence[Points]) -> SeedGroup:
    """Curves between their recorded steps are straight lines, because each run may be thinned differently."""
    columns = [np.asarray(curve, dtype=np.float64).T for curve in curves]
    first, last = max(steps[0] for steps, _ in columns), min(steps[-1] for steps, _ in columns)
    steps = columns[0][0]
    steps = steps[(steps >= first) & (steps <= last)]
    values = np.array([np.interp(steps, *column) for column in columns])
    mean = values.mean(axis=0)
    spread = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros_like(mean)
    low, line, high = (
        list(zip(steps.tolist(), each.tolist(), strict=True)) for each in (mean - spread, mean, mean + spread)
    )
    return SeedGroup(runs, line, low, high)
