"""The failure that a person wants to hear about is the first one that is nobody else's consequence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.recover.failures import describe_failure, explains_exit, first_failure, latest_launch_events


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


def test_a_failure_of_the_next_start_replaces_those_before_even_if_its_ranks_never_met() -> None:
    old, new = failure(1.0) | {"rendezvous": "h:1"}, failure(2.0) | {"rendezvous": "h:2"}
    assert first_failure([event("attempt"), old, new]) == new


def test_failures_of_one_start_stay_together_until_all_ranks_have_met() -> None:
    early = failure(2.0) | {"rendezvous": "h:2"}
    met = event("attempt", 3.0) | {"attempt": 2, "rendezvous": "h:2"}
    late = failure(4.0, "peer_lost") | {"rendezvous": "h:2"}
    assert first_failure([early, met, late]) == early


def test_a_lost_node_is_history_once_its_agent_has_started_again() -> None:
    lost = failure(1.0, "node_lost") | {"rank": None, "node": 1}
    of_a_rank = failure(2.0) | {"rank": 3, "node": 1}
    again = event("agent_started", 3.0) | {"node": 1}
    assert first_failure([lost, event("agent_started", 3.0) | {"node": 0}]) == lost
    assert first_failure([lost, again]) is None
    assert first_failure([of_a_rank, again]) == of_a_rank


def test_a_failure_that_was_final_says_why() -> None:
    final = failure(1.0) | {"message": "KeyError: 3", "node": 0, "rank": 1, "rendezvous": "h:2"}
    refused = event("restart_refused") | {"node": 0, "rank": 1, "rendezvous": "h:2", "message": "it is repeated"}
    assert describe_failure(final, [final, refused]) == "KeyError: 3; not restarted: it is repeated"
    assert describe_failure(final | {"rendezvous": "h:1"}, [final, refused]) == "KeyError: 3"
    assert describe_failure(final | {"cause": "peer_lost"}, [final, refused]) == "KeyError: 3"


def test_another_turn_of_a_job_is_not_a_new_start_by_the_user() -> None:
    first, turn, resumed = event("submitted", 1.0), event("submitted", 2.0) | {"restarts": 1}, event("submitted", 3.0)
    assert latest_launch_events([first, turn]) == [first, turn]
    assert latest_launch_events([first, turn, resumed]) == [resumed]
    assert latest_launch_events([]) == []


@pytest.mark.parametrize(
    ("events", "is_explained"),
    [
        ([], False),
        ([{"cause": "killed", "node": 1, "exit_code": -9}], True),
        ([{"cause": "killed", "node": 1, "exit_code": -9}, event("attempt")], False),  # the ranks have started again
        ([{"cause": "killed", "node": 0, "exit_code": -9}], False),
        ([{"cause": "killed", "node": 1, "exit_code": -11}], False),
        ([{"cause": "user_error", "node": 1, "exit_code": 137}], True),
        ([{"cause": "peer_lost", "node": 1, "exit_code": 75}], False),
        ([{"cause": "agent_lost", "node": 1, "exit_code": -9}], False),  # its fork server: it ends by that signal
        ([{"cause": "step_lost", "node": 1, "exit_code": -9}], False),  # of the agent before
    ],
)
def test_an_agent_that_ends_with_the_code_of_its_rank_has_said_so(
    events: list[dict[str, Any]], is_explained: bool
) -> None:
    written = [failure(1.0) | one if "kind" not in one else one for one in events]
    assert explains_exit(written, 1, 137) is is_explained
