"""The result of a diagnosis: causes of lost time, each with its evidence and a remedy."""

from __future__ import annotations

from typing import Literal

from trainworks.config.spec import Frozen
from trainworks.record.measured.step_anchor import StepAnchor
from trainworks.results import Result, ResultVerdict
from trainworks.units import format_duration

WORTH = 0.01
"""Share of the held time from which a cause is listed."""

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
    evidence: tuple[str, ...]
    """Figures of the record, one sentence each."""
    action: str
    """What to do first, in the imperative, without a full stop."""
    remedy: str = ""
    """How to do it, and what else to try, in sentences."""
    setting: str | None = None
    """Lines of the run file that apply the remedy, or a command; None where the run file cannot express it."""
    saves_s: float | None = None
    """Predicted gain of the remedy over the recorded time, at most `lost_s`; 0 where the run cannot do without that
    time, None where it is not predicted."""

    @property
    def mendable_s(self) -> float:
        """Most that the remedy can gain: what it is predicted to, else all of the loss."""
        return self.lost_s if self.saves_s is None else min(self.saves_s, self.lost_s)


class Diagnosis(Result, Frozen):
    """Where the time of a run was lost: what can be mended, by seconds, and the start apart from it."""

    format_version: int = 2
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
    """Causes of at least 1 % of the held time without the first start, by what can be gained from them, then by their
    seconds."""
    start: LostTime | None = None
    """The first start, which a run pays once, however long it is; its gain is what it took beyond the plan. None where
    it is not known."""
    small_s: float
    """Sum of the causes below 1 %."""
    notes: tuple[str, ...]
    """What the record lacks to judge, and what disturbs the judgement."""

    @property
    def lost_s(self) -> float:
        """Sum over all causes without the first start."""
        return sum(cause.lost_s for cause in self.causes) + self.small_s

    @property
    def first(self) -> LostTime | None:
        """What to mend first; None where nothing can be gained.

        The start comes first only if it can gain more than all lasting causes together: these grow with the run.
        """
        lasting = next((cause for cause in self.causes if cause.mendable_s > 0), None)
        gains_s = sum(cause.mendable_s for cause in self.causes)
        start = self.start
        return start if start is not None and start.mendable_s > max(gains_s, WORTH * self.held_s) else lasting

    @property
    def verdict(self) -> ResultVerdict:
        """What to mend first, and what that is predicted to gain."""
        first = self.first
        if first is None:
            lost = max(self.causes, key=lambda cause: cause.lost_s, default=None)
            none = f"no cause that can be mended cost 1 % of {format_duration(self.held_s)} or more"
            unless = "" if lost is None else f"{_in_sentence(lost.title)}, for {format_duration(lost.lost_s)}"
            return ResultVerdict("Leave it as it is", none, unless)
        costs = f"{format_duration(first.lost_s)} of {format_duration(self.held_s)}"
        figure = f"{_in_sentence(first.title)}, which costs {costs}, {first.lost_s / self.held_s:.0%}".replace(
            "%", " %"
        )
        if first.saves_s is None:
            gain = "the gain is not predicted"
        elif first.saves_s < first.lost_s:
            gain = f"the predicted gain is {format_duration(first.saves_s)}"
        else:
            gain = "the predicted gain is all of it"
        return ResultVerdict(first.action, figure, gain, "check")


def _in_sentence(title: str) -> str:
    """A title as a part of a sentence; names such as NCCL keep their capitals."""
    return title if title[1:2].isupper() else f"{title[:1].lower()}{title[1:]}"
