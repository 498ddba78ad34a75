"""The result of a drill: outcomes, and what a soak shows besides: goodput against its prediction, and use of files and
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import Any

import numpy as np

from trainworks.measure.drill.outcome import FaultOutcome, RecordChecks
from trainworks.plan.reliability.scenario import Scenario
from trainworks.plan.reliability.simulation import simulate
from trainworks.record.events.log import Event, of_kind
from trainworks.record.events.training import CheckpointEvent
from trainworks.results import Result

_TRIALS = 500
_LEAST_SAMPLES = 6
"""Samples from which on their first and last third are compared."""
_MORE_FILES = 8
"""Open files by which a use still counts as flat: connections that are made and closed."""
_MORE_MEMORY = 1.1
_PREDICTED = 0.05

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class UsageSample:
    """Use of a run's lasting processes, its supervisor and its agents, while it trains."""

    at: float
    """Seconds since the epoch."""
    processes: int
    """Processes of the whole run, ranks and fork servers too."""
    files: int
    """Open files of supervisor and agents."""
    resident_bytes: int
    """Memory of supervisor and agents."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Share of the time in which steps that count were trained, measured and simulated."""

    work_s: float
    """Time of the steps that count, without their saves; the first step of an attempt counts as the median."""
    wall_s: float
    """Time from the start of the first step to the end of the last."""
    simulated: float
    """Mean of the simulated runs."""
    low: float
    """A tenth of the simulated runs is below."""
    high: float
    """A tenth of the simulated runs is above."""

    @property
    def measured(self) -> float:
        """Work over wall clock."""
        return self.work_s / self.wall_s

    @property
    def is_predicted(self) -> bool:
        """True if the simulation is within 5 points of the measurement."""
        return abs(self.measured - self.simulated) <= _PREDICTED


@dataclass(frozen=True, slots=True)
class Soak:
    """A run under random faults."""

    seconds: float
    """Time from the first step to the end of the soak, or of the run."""
    faults: int
    goodput: Goodput | None
    """None without a fault, or without a checkpoint."""
    usage: tuple[UsageSample, ...]
    """A sample before every fault."""

    @property
    def is_flat(self) -> bool | None:
        """True if the medians of the last third of the samples do not exceed those of the first.

        Eight more open files and a tenth more memory are allowed. None with fewer than six samples.
        """
        if len(self.usage) < _LEAST_SAMPLES:
            return None
        first, last = self.first_and_last("processes"), self.first_and_last("files")
        memory = self.first_and_last("resident_bytes")
        return first[1] <= first[0] and last[1] <= last[0] + _MORE_FILES and memory[1] <= memory[0] * _MORE_MEMORY

    def first_and_last(self, field: str) -> tuple[float, float]:
        """Medians of a field over the first and the last third of the samples."""
        values = [float(getattr(sample, field)) for sample in self.usage]
        third = max(1, len(values) // 3)
        return median(values[:third]), median(values[-third:])


def counting_steps(rows: Iterable[Row]) -> dict[int, Row]:
    """The row of each step that counts: the last one written, since a restarted attempt repeats steps."""
    return {row["step"]: row for row in rows}


def soak_goodput(
    rows: Sequence[Row], events: Sequence[Event], outcomes: Sequence[FaultOutcome], until: float
) -> Goodput | None:
    """Goodput of a run until a time, and what the planner's simulation predicts for what its parts cost.

    The simulation gets the rate of the faults, the interval of checkpoints and the cost of a save. It has to find out
    how much work is lost. A drill hits a run only once it trains again. The rate is therefore that of the time outside
    recovery, and the mean time to be back is added for each simulated fault. A fault that damages the newest checkpoint
    costs one interval more than a failure that the simulation knows, so that its share of the faults times the interval
    is added, too. `rows` are all steps in the order of writing, the repeated ones too. Steps after `until` are left
    out, because no faults hit them.
    """
    rows = [row for row in rows if row["t"] <= until]
    came_back = [each for each in outcomes if each.back_s is not None]
    steps = _steps_between_checkpoints(events)
    if not came_back or not steps:
        return None
    counting = counting_steps(rows)
    first_of_attempt = {id(row) for before, row in pairwise(rows) if row["attempt"] != before["attempt"]}
    step_s = median(row["step_s"] - row["checkpoint_s"] for row in counting.values())
    work_s = sum(
        step_s if id(row) in first_of_attempt else row["step_s"] - row["checkpoint_s"] for row in counting.values()
    )
    wall_s = rows[-1]["t"] - rows[0]["t"] + rows[0]["step_s"]
    saved = of_kind(events, CheckpointEvent)
    interval_s = steps * work_s / len(counting)
    save_s, write_s = (median(float(event[key]) for event in saved) for key in ("stall_s", "write_s"))
    back_s = mean(each.back_s or 0.0 for each in came_back) - step_s
    damaged = mean(each.fault.damages_checkpoint for each in came_back)
    outcome = simulate(
        Scenario(
            num_nodes=1,
            work_s=work_s,
            interval_s=interval_s,
            other_mttf_s=(wall_s - back_s * len(outcomes)) / len(outcomes),
            save_s=save_s,
            write_s=min(write_s, interval_s),
        ),
        trials=_TRIALS,
    )
    goodput = outcome.work_s / (outcome.wall_s + outcome.failures * (back_s + damaged * (interval_s + save_s)))
    low, high = np.quantile(goodput, (0.1, 0.9))
    return Goodput(work_s, wall_s, simulated=float(goodput.mean()), low=float(low), high=float(high))


def _steps_between_checkpoints(events: Sequence[Event]) -> float | None:
    """Median number of steps between two checkpoints of one attempt; None without two of them."""
    saved = of_kind(events, CheckpointEvent)
    apart = [
        after["step"] - before["step"] for before, after in pairwise(saved) if after["attempt"] == before["attempt"]
    ]
    return median(apart) if apart else None


@dataclass(frozen=True, slots=True)
class DrillReport(Result):
    """Outcome of every fault of a drill."""

    run: str
    seed: int
    nodes: int
    steps: int
    outcomes: tuple[FaultOutcome, ...]
    checks: RecordChecks
    state: str
    """Last state of the run."""
    soak: Soak | None = None

    @property
    def is_survived(self) -> bool:
        """True if the run finished, each step counts once, it survived every fault, and a soak used no more at last."""
        clean = self.checks == RecordChecks(0, 0) and self.state == "SUCCEEDED"
        is_flat = self.soak is None or self.soak.is_flat is not False
        return clean and is_flat and all(outcome.is_survived for outcome in self.outcomes)
