"""Which accelerator the record blames: one that failed its rank again, and never after one failure."""

from __future__ import annotations

from typing import Any

import pytest

from trainworks.record.events.log import Event
from trainworks.recover.accelerator_faults import blamed_failure

START: Event = {"kind": "ranks_started"}


def fault(rank: int, step: int | None = 9, **changes: Any) -> Event:
    """A rank whose accelerator has reported an error."""
    return {
        "kind": "failure",
        "cause": "gpu_fault",
        "rank": rank,
        "node": 0,
        "step": step,
        "fingerprint": "a",
    } | changes


@pytest.mark.parametrize(
    "events",
    [
        [START, fault(3, 9), START, fault(3, 14)],
        [START, fault(3, 9), {"kind": "failure", "cause": "peer_lost", "rank": 1}, START, fault(3, 9, fingerprint="b")],
        [START, fault(0), START, fault(3, None), START, fault(3, 14)],
    ],
    ids=["at another step", "another error", "after a failure of another one"],
)
def test_an_accelerator_that_failed_its_rank_twice_in_a_row_is_blamed(events: list[Event]) -> None:
    found = blamed_failure(events)
    assert found is not None and found is events[-1] and found["rank"] == 3


@pytest.mark.parametrize(
    "events",
    [
        [],
        [START, fault(3)],
        [START, fault(3, 9), START, fault(3, 9)],
        [START, fault(3, None), START, fault(3, None)],
        [START, fault(3, 9), START, fault(2, 14)],
        [START, fault(3, 9), fault(2, 9), START, fault(3, 14)],
        [START, fault(3, 9), START, {"kind": "failure", "cause": "killed", "rank": 3}, START, fault(3, 14)],
        [START, fault(3, 9), START],
        [START, fault(3, 9), {"kind": "submitted"}, START, fault(3, 14)],
        [START, fault(3, 9), {"kind": "resized"}, START, fault(3, 14)],
        [START, fault(3, 9, cause="user_error"), START, fault(3, 14)],
    ],
    ids=[
        *("nothing", "once", "the same error at the same step", "before any step, both times", "two of them"),
        *("two at once", "another failure between", "the second start runs", "on other nodes", "on fewer nodes"),
        "an error of the program",
    ],
)
def test_nothing_else_blames_one(events: list[Event]) -> None:
    assert blamed_failure(events) is None
