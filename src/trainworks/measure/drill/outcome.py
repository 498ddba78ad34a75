"""What became of a fault, from the record of the run alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainworks.measure.drill.drill_fault import DrillFault
from trainworks.record.events.job import DecisionEvent, FailureEvent, SubmittedEvent
from trainworks.record.events.log import Event, of_kind
from trainworks.record.events.training import AttemptEvent
from trainworks.recover.restarts import WAITING_STATES

_NOTICED = (
    *("failure", "agent_lost", "checkpoint_damaged", "checkpoint_failed"),
    *("straggler", "stop_requested", "stopped"),
)
_ROUNDING = 1e-2
"""Largest difference of a loss after sums over another number of ranks: an assumption for runs of a drill's length."""


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that was injected."""

    fault: DrillFault
    at: float
    """Seconds since the epoch."""
    step: int
    """Last step that was written down before it."""


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    """What became of one fault."""

    fault: DrillFault
    step: int | None = None
    """Last step before it; None if it was not injected."""
    noticed_s: float | None = None
    """Time until the record, or the drill in place of a queue, shows it; None if nothing had to be done."""
    decision: str = ""
    back_s: float | None = None
    """Time until the next finished step; None if there was none."""
    steps_lost: int = 0
    """Steps that had to be trained again."""
    loss_difference: float | None = None
    """Largest difference of a loss to the undisturbed run until the next fault; None without a step to compare."""
    has_new_layout: bool = False
    """Whether the run continued with another layout, whose sums round differently."""
    problem: str = ""
    """What is wrong besides, such as a copy that is missing in the store."""
    skipped: str = ""
    """Why it was not injected."""

    @property
    def is_survived(self) -> bool:
        """True if the run trained on, with the losses of an undisturbed run; within rounding in another layout."""
        allowed = _ROUNDING if self.has_new_layout else 0.0
        is_back = self.back_s is not None and (self.loss_difference or 0.0) <= allowed
        return bool(self.skipped) or (is_back and not self.problem)


def outcome(
    injection: Injection,
    until: float,
    events: Sequence[Event],
    rows: Sequence[Mapping[str, Any]],
    undisturbed: Mapping[int, float],
    resumed_at: Sequence[float] = (),
) -> FaultOutcome:
    """Find a fault's outcome between its injection and the next one, or the end of the run.

    `rows` are all steps of the run in order, the repeated ones too. `undisturbed` has the loss by step of a run without
    faults. The drill resumed the run at the times `resumed_at`.
    """
    since = [event for event in events if injection.at <= event["t"] < until]
    seen = [event["t"] for event in since if event["kind"] in _NOTICED or event.get("state") in WAITING_STATES]
    resumed = [at for at in resumed_at if injection.at <= at < until]
    met = next(iter(of_kind(since, AttemptEvent)), None)
    layouts = [event.get("layout") for event in of_kind(events, AttemptEvent) if event["t"] < until]
    after = [row for row in rows if injection.at < row["t"] < until and (met is None or row["t"] > met["t"])]
    apart = [abs(row["loss"] - undisturbed[row["step"]]) for row in after if row["step"] in undisturbed]
    return FaultOutcome(
        injection.fault,
        injection.step,
        noticed_s=min([*seen, *resumed]) - injection.at if seen or resumed else None,
        decision=_decision(since, resumed=bool(resumed)),
        back_s=after[0]["t"] - injection.at if after else None,
        steps_lost=_steps_lost(injection, met, since, rows),
        loss_difference=max(apart, default=None),
        has_new_layout=any(layout != layouts[0] for layout in layouts),
    )


def _decision(since: Sequence[Event], *, resumed: bool) -> str:
    """What the job did: the last decision about its nodes, or what the record shows of its ranks."""
    said = [event["action"] for event in of_kind(since, DecisionEvent)]
    kinds = {event["kind"] for event in since}
    found = said[-1] if said else "restart in place" if "ranks_started" in kinds else "continue"
    if any(event.get("restarts") for event in of_kind(since, SubmittedEvent)):
        found = "stop with a checkpoint, queue again" if "stopped" in kinds else "queue again"
    if resumed:
        found = "stop with a checkpoint, resume" if "stopped" in kinds else "end, resume"
    elif "straggler" in kinds and found == "continue":
        found = "name the rank, continue"
    return f"{found}, roll back one checkpoint" if "checkpoint_damaged" in kinds else found


def _steps_lost(
    injection: Injection, met: AttemptEvent | None, since: Sequence[Event], rows: Sequence[Mapping[str, Any]]
) -> int:
    """Steps of the old attempt behind the checkpoint that the new one resumed from."""
    if met is None:
        return 0
    written = [row["step"] for row in rows if row["t"] < met["t"]]
    failed_in = [event["step"] - 1 for event in of_kind(since, FailureEvent) if event.get("step")]
    last: int = max([injection.step, *written[-1:], *failed_in])
    return max(0, last - met.get("resumed_from_step", 0))


@dataclass(frozen=True, slots=True)
class RecordChecks:
    """Whether a record holds what a run without faults leaves."""

    steps_missing: int
    """Steps of the plan without a row."""
    steps_twice: int
    """Steps that count twice: one attempt wrote them twice, or an earlier attempt wrote them after a later one."""


def check_record(rows: Sequence[Mapping[str, Any]], num_steps: int) -> RecordChecks:
    """Check that every step counts once, and that no two attempts wrote at the same time."""
    twice = 0
    seen: set[tuple[int, int]] = set()
    newest = 0
    for row in rows:
        key = row["attempt"], row["step"]
        twice += key in seen or row["attempt"] < newest
        seen.add(key)
        newest = max(newest, row["attempt"])
    return RecordChecks(num_steps - len({row["step"] for row in rows}), twice)
