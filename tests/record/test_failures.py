"""The failure that a person wants to hear about is the first one that is nobody else's consequence."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trainworks.record.failures import first_failure


def failure(t: float, cause: str = "user_error") -> dict[str, Any]:
    """A failure at a time."""
    return {"kind": "failure", "t": t, "cause": cause}


def event(kind: str, t: float = 0.0) -> dict[str, Any]:
    """Any other event."""
    return {"kind": kind, "t": t}


def test_without_failures_there_is_none() -> None:
    assert first_failure([event("submitted"), event("attempt"), event("finished")]) is None


@given(st.permutations([failure(1.0), failure(2.0), failure(0.5, "peer_lost"), failure(3.0, "peer_lost")]))
def test_the_earliest_is_found_in_whatever_order_they_were_written(events: list[dict[str, Any]]) -> None:
    assert first_failure(events) == failure(1.0)


def test_a_lost_peer_counts_if_there_is_nothing_else() -> None:
    assert first_failure([failure(2.0, "peer_lost"), failure(1.0, "peer_lost")]) == failure(1.0, "peer_lost")


def test_failures_before_the_last_start_are_history() -> None:
    assert first_failure([failure(1.0), event("attempt", 2.0), failure(3.0)]) == failure(3.0)
    assert first_failure([failure(1.0), event("submitted", 2.0)]) is None


def test_other_events_do_not_end_the_search() -> None:
    events = [failure(1.0), event("agent_lost", 2.0), event("state", 3.0), event("checkpoint_failed", 4.0)]
    assert first_failure(events) == failure(1.0)


def test_a_rank_may_fail_before_the_first_node_says_that_the_attempt_began() -> None:
    own, old = failure(2.0) | {"attempt": 2}, failure(1.0) | {"attempt": 1}
    assert first_failure([old, own, event("attempt", 3.0) | {"attempt": 2}]) == own
