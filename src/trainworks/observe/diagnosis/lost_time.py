"""The result of a diagnosis: causes of lost time, each with its evidence and a remedy."""

from __future__ import annotations

from typing import Literal

from trainworks.config.spec import Frozen
from trainworks.record.measured.step_anchor import StepAnchor
from trainworks.results import Result

CauseName = Literal[
    "data",
    "straggler",
    "network",
    "communication",
    "bubble",
    "small_batches",
    "recompute",
    "throttling",
    "slow_compute",
    "checkpoints",
    "evaluation",
    "callbacks",
    "start",
    "restarts",
    "lost_steps",
    "other",
]


class LostTime(Frozen):
    """One cause, and the time that it cost. Each second of the time ledger counts for one cause at most."""

    name: CauseName
    title: str
    lost_s: float
    """Seconds that the accelerators were held, and that the run would not have needed without this cause."""
    once_s: float = 0.0
    """Part of `lost_s` that a run pays once, however long it is: its first start."""
    evidence: tuple[str, ...]
    """Figures of the record, one sentence each."""
    remedy: str
    """What to change, in the imperative."""
    setting: str | None = None
    """Lines of the run file that apply the remedy, or a command; None where the run file cannot express it."""
    saves_s: float | None = None
    """Predicted gain of the remedy over the recorded time, at most `lost_s`; None where the planner cannot price it."""


class Diagnosis(Result, Frozen):
    """Where the time of a run was lost, the largest lasting loss first."""

    format_version: int = 1
    run_id: str
    state: str
    held_s: float
    """Time that the accelerators were held: the wall clock of the ledger without its idle time."""
    runtime_goodput: float | None
    num_steps: int
    """Effective steps."""
    step_s: float | None
    """Median duration of a step after the first ones; None without steps."""
    planned_step_s: float | None = None
    """First prediction; None for a command."""
    anchor: StepAnchor | None = None
    """The plan as the first quiet steps anchored it, or why they could not; None in records of older versions."""
    causes: tuple[LostTime, ...]
    """Causes of at least 1 % of the held time, by their seconds without `once_s`."""
    small_s: float
    """Sum of the causes below 1 %."""
    notes: tuple[str, ...]
    """What the record lacks to judge, and what disturbs the judgement."""

    @property
    def lost_s(self) -> float:
        """Sum over all causes."""
        return sum(cause.lost_s for cause in self.causes) + self.small_s
