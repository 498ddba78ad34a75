"""Cost of the accelerators of a job that has not started: an interval by its plan, or a bound by its time limit."""

from __future__ import annotations

from dataclasses import dataclass

from trainworks.catalog.exchange import DOLLAR, Exchange
from trainworks.units import HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCost:
    """What equal jobs will cost together: usd = jobs * accelerators * usd_per_accelerator_hour * seconds / 3600."""

    accelerators: int
    """Accelerators of one job, on all nodes."""
    usd_per_accelerator_hour: float
    low_s: float | None
    """Shortest time of a job in the 80 % interval of its plan; None without a plan."""
    high_s: float
    """Longest time of a job in that interval; without a plan the time limit of one start."""
    jobs: int = 1
    exchange: Exchange = DOLLAR
    """Currency of the budget, else that of the price."""

    @property
    def low_usd(self) -> float | None:
        """Lower end of the interval; None without a plan."""
        return None if self.low_s is None else self._usd(self.low_s)

    @property
    def high_usd(self) -> float:
        """Upper end of the interval; without a plan the most that one start of each job can cost."""
        return self._usd(self.high_s)

    def _usd(self, seconds: float) -> float:
        return self.jobs * self.accelerators * self.usd_per_accelerator_hour * seconds / HOUR_S
