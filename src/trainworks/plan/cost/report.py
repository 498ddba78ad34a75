"""Costs of a run or a year with the notes that a reader needs beside them."""

from __future__ import annotations

from dataclasses import dataclass

from trainworks.plan.cost.comparison import Comparison, per_million
from trainworks.plan.trace import Traced
from trainworks.results import Result

__all__ = ["CostReport"]


@dataclass(frozen=True, slots=True)
class CostReport(Result):
    """A cost comparison and its notes."""

    title: str
    comparison: Comparison
    grid: str
    count: Traced | None = None
    """Tokens or images of a run; None for a year."""
    noun: str = "tokens"
    sentences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def figures(self) -> list[Traced]:
        """Figures that can be explained."""
        count = self.count
        if count is None:
            return self.comparison.roots
        return [
            *self.comparison.roots,
            *(per_million(line.first, count, self.noun) for line in self.comparison.lines),
        ]
