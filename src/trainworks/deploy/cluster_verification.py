"""Verdicts on the nodes of a cluster: what each of them runs, and what its stack says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainworks.results import Result

Outcome = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """One thing of one host: what it is, and what the stack says."""

    host: str
    check: str
    outcome: Outcome
    found: str
    expected: str


@dataclass(frozen=True, slots=True)
class ClusterVerification(Result):
    """Verdicts on every host of a stack."""

    cluster: str
    verdicts: tuple[NodeVerdict, ...]

    @property
    def failed(self) -> bool:
        """Whether something is not as the stack says."""
        return any(verdict.outcome == "fail" for verdict in self.verdicts)
