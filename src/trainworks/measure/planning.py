"""How a workload is planned: what is measured, and what earlier runs may correct."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from trainworks.catalog.cluster import ClusterDescription
from trainworks.errors import UsageError
from trainworks.record.measured.measurement import ClusterMeasurement


@dataclass(frozen=True, slots=True)
class Planning:
    """How the plan of a workload on this machine comes about."""

    again: bool = False
    """Measure again what is in the cache."""
    learning: bool = True
    """Whether finished runs on this machine correct the plan."""
    tune: int = 0
    """Layouts to train for a few steps each, of which the fastest is taken; 0 takes the best by the plan."""
    announce: Callable[[str], None] = lambda text: None
    """Receives a line before each step that takes long."""

    def refuse_tuning(self) -> None:
        """Refuse to tune what has no layouts to compare here.

        Raises:
            UsageError: layouts are to be tuned.
        """
        if self.tune:
            raise UsageError(
                "`--tune` trains layouts of a `causal-lm` on this machine",
                hint="leave it out; a job for another cluster is planned on its nodes, and other models are measured",
            )


Learned = Callable[[ClusterDescription], Sequence[ClusterMeasurement]]
"""Measurements of the kind of a cluster, which correct the predictions of runs on it."""


def no_measurements(cluster: ClusterDescription) -> Sequence[ClusterMeasurement]:
    """Nothing was measured on any cluster."""
    return ()


AS_USUAL: Final[Planning] = Planning()
