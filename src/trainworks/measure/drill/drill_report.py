"""The result of a drill."""

from __future__ import annotations

from dataclasses import dataclass

from trainworks.measure.drill.outcome import FaultOutcome, RecordChecks
from trainworks.measure.drill.soak import Soak
from trainworks.results import Result


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
