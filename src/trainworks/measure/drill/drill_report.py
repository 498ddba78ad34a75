"""The result of a drill."""

from __future__ import annotations

from dataclasses import dataclass

from trainworks.measure.drill.outcome import FaultOutcome, RecordChecks
from trainworks.results import Result


@dataclass(frozen=True, slots=True)
class Soak:
    """What a run under faults shows besides their outcomes."""

    seconds: float
    faults: int
    goodput: float
    """Share of the time in which steps that count were trained, at the step time of the undisturbed run."""
    simulated_goodput: float
    """The simulation's, for these failures, restarts and checkpoints."""
    files_before: int
    files_after: int
    """Open files of supervisor and agents."""
    bytes_before: int
    bytes_after: int
    """Their resident memory."""


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
        """True if the run finished, each step counts once, and it survived every fault that was injected."""
        clean = self.checks == RecordChecks(0, 0) and self.state == "SUCCEEDED"
        return clean and all(outcome.is_survived for outcome in self.outcomes)
