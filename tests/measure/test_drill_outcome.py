"""What became of a fault is read from the record alone."""

from __future__ import annotations

from typing import Any

import pytest

from trainworks.measure.drill.drill_fault import DrillFault, ordered
from trainworks.measure.drill.outcome import FaultOutcome, Injection, RecordChecks, check_record, outcome

UNDISTURBED = {step: 10.0 - step / 10 for step in range(1, 40)}


def row(step: int, t: float, attempt: int = 1, loss: float | None = None) -> dict[str, Any]:
    return {"step": step, "t": t, "attempt": attempt, "loss": UNDISTURBED[step] if loss is None else loss}


def event(kind: str, t: float, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "t": t, **fields}


BEFORE = [row(step, float(step)) for step in range(1, 13)]
AFTER = [row(step, 20.0 + step - 10, attempt=2) for step in range(11, 16)]
FAULT = Injection(DrillFault.KILL_RANK, 12.5, 12)
EVENTS = [
    event("checkpoint", 10.1, step=10),
    event("failure", 12.7, step=14),
    event("ranks_started", 13.0),
    event("attempt", 20.5, attempt=2, resumed_from_step=10),
]


def test_a_killed_rank_is_noticed_and_costs_the_steps_since_the_checkpoint() -> None:
    assert outcome(FAULT, 99.0, EVENTS, [*BEFORE, *AFTER], UNDISTURBED) == FaultOutcome(
        DrillFault.KILL_RANK,
        12,
        noticed_s=pytest.approx(0.2),
        decision="restart in place",
        back_s=pytest.approx(8.5),
        steps_lost=3,
        loss_difference=0.0,
    )


def test_a_loss_that_differs_is_seen() -> None:
    wrong = [*BEFORE, *AFTER[:-1], row(15, 25.0, 2, loss=9.0)]
    assert outcome(FAULT, 99.0, EVENTS, wrong, UNDISTURBED).loss_difference == pytest.approx(0.5)


def test_a_run_that_does_not_come_back_is_not_survived() -> None:
    found = outcome(FAULT, 99.0, EVENTS[:2], BEFORE, UNDISTURBED)
    assert (found.back_s, found.is_survived) == (None, False)


@pytest.mark.parametrize(("layout", "survived"), [("dp_replicate 2", False), ("one process", True)])
def test_a_loss_may_round_differently_only_in_another_layout(layout: str, survived: bool) -> None:
    first = event("attempt", 0.5, attempt=1, resumed_from_step=0, layout="dp_replicate 2")
    met = EVENTS[-1] | {"layout": layout}
    rounded = [*BEFORE, *AFTER[:-1], row(15, 25.0, 2, loss=UNDISTURBED[15] + 1e-4)]
    found = outcome(FAULT, 99.0, [first, *EVENTS[:-1], met], rounded, UNDISTURBED)
    assert (found.has_new_layout, found.is_survived) == (survived, survived)


def test_the_next_fault_is_none_of_this_one() -> None:
    found = outcome(FAULT, 24.0, [*EVENTS, event("failure", 24.5)], [*BEFORE, *AFTER], UNDISTURBED)
    assert found.noticed_s == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("more", "resumed_at", "decision"),
    [
        ([event("decision", 12.8, action="continue on fewer nodes")], [], "continue on fewer nodes"),
        ([event("checkpoint_damaged", 14.0)], [], "restart in place, roll back one checkpoint"),
        ([event("straggler", 22.0)], [], "restart in place"),
        ([], [13.5], "end, resume"),
        ([event("stopped", 13.1)], [13.5], "stop with a checkpoint, resume"),
        ([event("submitted", 13.2, restarts=1)], [], "queue again"),
        ([event("stopped", 13.1), event("submitted", 13.2, restarts=1)], [], "stop with a checkpoint, queue again"),
    ],
)
def test_the_decision_is_what_the_record_shows(more: list[Any], resumed_at: list[float], decision: str) -> None:
    found = outcome(FAULT, 99.0, [*EVENTS, *more], [*BEFORE, *AFTER], UNDISTURBED, resumed_at)
    assert found.decision == decision


def test_a_job_that_waits_for_its_nodes_again_has_noticed() -> None:
    waits = event("state", 12.6, state="QUEUED", cause="agent_lost")
    assert outcome(FAULT, 99.0, [waits, *EVENTS], [*BEFORE, *AFTER], UNDISTURBED).noticed_s == pytest.approx(0.1)


def test_a_slow_rank_needs_no_restart() -> None:
    slow = Injection(DrillFault.SLOW_RANK, 12.5, 12)
    found = outcome(slow, 99.0, [event("straggler", 14.0)], [*BEFORE, row(13, 13.0)], UNDISTURBED)
    assert (found.decision, found.steps_lost, found.back_s) == ("name the rank, continue", 0, 0.5)


@pytest.mark.parametrize(
    ("rows", "checks"),
    [
        ([*BEFORE, *AFTER], RecordChecks(0, 0)),
        ([*BEFORE, *AFTER[1:]], RecordChecks(0, 0)),
        ([*BEFORE[:5], *AFTER], RecordChecks(5, 0)),
        ([*BEFORE, *AFTER, AFTER[-1]], RecordChecks(0, 1)),
        ([*BEFORE, *AFTER, BEFORE[-1]], RecordChecks(0, 1)),
    ],
    ids=["resumed", "from-further-on", "missing", "twice-by-one-attempt", "two-attempts-at-once"],
)
def test_every_step_counts_once_and_attempts_never_mix(rows: list[Any], checks: RecordChecks) -> None:
    assert check_record(rows, 15) == checks


def test_a_seed_decides_the_order_of_the_faults() -> None:
    orders = [ordered(list(DrillFault), seed) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert set(orders[0]) == set(DrillFault)
