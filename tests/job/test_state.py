"""The states of a job are a table, and the table is whole."""

from __future__ import annotations

import pytest

from trainworks.job.state import TRANSITIONS, JobState, parse_state

FINAL = [state for state in JobState if state.is_final]
LIVE = [state for state in JobState if not state.is_final and state is not JobState.UNKNOWN]


def reachable(state: JobState) -> set[JobState]:
    """Every state that may follow, sooner or later."""
    found: set[JobState] = set()
    while new := {after for before in {state, *found} for after in TRANSITIONS[before]} - found:
        found |= new
    return found


def test_every_state_stands_in_the_table() -> None:
    assert set(TRANSITIONS) == set(JobState)


@pytest.mark.parametrize("state", LIVE)
def test_a_live_job_can_end_in_every_way_that_is_written(state: JobState) -> None:
    assert {JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED} <= reachable(state)


@pytest.mark.parametrize("state", FINAL)
def test_a_final_state_is_left_by_a_new_start_alone(state: JobState) -> None:
    assert TRANSITIONS[state] == {JobState.STARTING}


@pytest.mark.parametrize("state", [JobState.LOST, JobState.UNKNOWN, JobState.CREATED])
def test_what_is_only_seen_from_outside_is_never_entered(state: JobState) -> None:
    assert not any(state in following for following in TRANSITIONS.values())


def test_an_unknown_state_leads_nowhere() -> None:
    assert TRANSITIONS[JobState.UNKNOWN] == frozenset()


@pytest.mark.parametrize("state", JobState)
def test_a_state_is_read_from_its_own_name(state: JobState) -> None:
    assert parse_state(str(state)) is state


@pytest.mark.parametrize("text", ["", "running", "PREEMPTED", "is_final"])
def test_any_other_text_is_unknown(text: str) -> None:
    assert parse_state(text) is JobState.UNKNOWN
