"""The figures of a soak: goodput from the record, its prediction, and flat use of files and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainworks.measure.drill.drill_fault import DrillFault
from trainworks.measure.drill.drill_report import Goodput, Soak, UsageSample, counting_steps, soak_goodput
from trainworks.measure.drill.outcome import FaultOutcome

CYCLE_S, RESTART_S, EVERY = 40.0, 4.0, 5
"""A fault after every 40 steps of one second; a checkpoint every 5 of them."""


def soaked(cycles: int, *, damaged: bool = False, first_step_s: float = 1.0) -> tuple[Any, Any, Any]:
    """A record whose run fails 2 to 3 steps behind a checkpoint, and is back 4 s later.

    Returns:
        Rows, events and outcomes.
    """
    rows: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    t, step = 0.0, 0
    for attempt in range(1, cycles + 1):
        for number in range(int(CYCLE_S) + 2):
            step_s = first_step_s if number == 0 and attempt > 1 else 1.0
            t, step = t + step_s, step + 1
            rows.append({"step": step, "attempt": attempt, "t": t, "step_s": step_s, "checkpoint_s": 0.0})
            if step % EVERY == 0:
                saved = {"t": t, "kind": "checkpoint", "step": step, "attempt": attempt}
                events.append(saved | {"stall_s": 0.0, "write_s": 0.1})
        t += RESTART_S
        step -= step % EVERY + EVERY * damaged
    fault = DrillFault.FLIP_BIT if damaged else DrillFault.KILL_RANK
    outcomes = [FaultOutcome(fault, 1, noticed_s=1.0, back_s=RESTART_S + 1.0) for _ in range(cycles - 1)]
    return rows, events, outcomes


@pytest.mark.parametrize("damaged", [False, True], ids=["killed", "checkpoint-damaged"])
def test_the_simulation_finds_the_work_that_faults_lose(damaged: bool) -> None:
    rows, events, outcomes = soaked(60, damaged=damaged)
    found = soak_goodput(rows, events, outcomes, rows[-1]["t"])
    assert found is not None
    assert found.measured == pytest.approx(len({row["step"] for row in rows}) / found.wall_s)
    assert found.measured < 0.92 - 0.1 * damaged
    assert found.is_predicted
    assert found.low < found.simulated < found.high


def test_a_slow_first_step_of_an_attempt_is_no_work() -> None:
    rows, events, outcomes = soaked(10, first_step_s=3.0)
    found = soak_goodput(rows, events, outcomes, rows[-1]["t"])
    assert found is not None
    assert found.work_s == len({row["step"] for row in rows})


def test_steps_after_the_soak_are_left_out() -> None:
    rows, events, outcomes = soaked(10)
    found = soak_goodput(rows, events, outcomes[:4], until := rows[200]["t"])
    assert found is not None
    assert found.wall_s == until


@pytest.mark.parametrize("missing", ["outcomes", "checkpoints"])
def test_without_faults_or_checkpoints_there_is_no_prediction(missing: str) -> None:
    rows, events, outcomes = soaked(3)
    given = ([], outcomes) if missing == "checkpoints" else (events, [])
    assert soak_goodput(rows, *given, rows[-1]["t"]) is None


def test_a_repeated_step_counts_as_it_was_written_last() -> None:
    rows = [{"step": step, "attempt": attempt} for attempt, step in [(1, 1), (1, 2), (2, 2)]]
    assert counting_steps(rows) == {1: rows[0], 2: rows[2]}


FLAT = UsageSample(0.0, processes=8, files=40, resident_bytes=100)


@pytest.mark.parametrize(
    ("last", "num_samples", "is_flat"),
    [
        (FLAT, 9, True),
        (replace(FLAT, processes=7, files=48, resident_bytes=110), 9, True),
        (replace(FLAT, processes=9), 9, False),
        (replace(FLAT, files=49), 9, False),
        (replace(FLAT, resident_bytes=111), 9, False),
        (replace(FLAT, files=49), 5, None),
    ],
    ids=["same", "allowed", "process-left", "files-grew", "memory-grew", "too-few"],
)
def test_use_is_flat_by_the_first_and_the_last_third(last: UsageSample, num_samples: int, is_flat: bool | None) -> None:
    usage = [FLAT] * (num_samples - 3) + [last] * 3
    assert Soak(1800.0, num_samples, None, tuple(usage)).is_flat is is_flat


@pytest.mark.parametrize(("simulated", "is_predicted"), [(0.76, True), (0.849, True), (0.851, False), (0.749, False)])
def test_a_prediction_is_within_five_points(simulated: float, is_predicted: bool) -> None:
    assert Goodput(80.0, 100.0, simulated, 0.0, 1.0).is_predicted is is_predicted
