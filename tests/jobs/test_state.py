"""The states of a job are a table, and the table is whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trainworks
from trainworks.jobs.state import TRANSITIONS, Cause, JobState, parse_cause, parse_state

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
    assert TRANSITIONS[state] == {JobState.QUEUED, JobState.STARTING}


@pytest.mark.parametrize("state", [JobState.LOST, JobState.CREATED])
def test_what_is_only_seen_from_outside_is_never_entered(state: JobState) -> None:
    assert not any(state in following for following in TRANSITIONS.values())


def test_a_job_of_unknown_state_may_turn_out_to_be_in_any_state_that_is_entered() -> None:
    entered = frozenset[JobState]().union(*(following for state, following in TRANSITIONS.items() if state in LIVE))
    assert TRANSITIONS[JobState.UNKNOWN] == entered


@pytest.mark.parametrize("state", JobState)
def test_a_job_waits_holds_its_nodes_or_has_ended(state: JobState) -> None:
    named = state in (JobState.CREATED, JobState.UNKNOWN)
    assert [state.waits, state.holds_resources, state.is_final, named].count(True) == 1


@pytest.mark.parametrize(
    ("text", "cause"), [("oom", Cause.OOM), ("gremlins", Cause.UNKNOWN), ("", Cause.UNKNOWN), (None, None)]
)
def test_a_cause_is_read_from_its_own_name(text: str | None, cause: Cause | None) -> None:
    assert parse_cause(text) is cause


def test_the_causes_that_are_written_are_known() -> None:
    """Of ranks, agents and supervisors; whoever adds one adds its facts."""
    source = Path(trainworks.__file__).parent
    texts = [
        file.read_text(encoding="utf-8")
        for folder in ("worker", "scheduler")
        for file in (source / folder).rglob("*.py")
    ]
    written = {word for text in texts for word in re.findall(r"(?:cause(?:\"?: |=)|Failure\(\s*)\"(\w+)\"", text)}
    assert len(written) > 5
    assert written <= set(map(str, Cause))


@pytest.mark.parametrize("state", JobState)
def test_a_state_is_read_from_its_own_name(state: JobState) -> None:
    assert parse_state(str(state)) is state


@pytest.mark.parametrize("text", ["", "running", "COMPLETING", "is_final"])
def test_any_other_text_is_unknown(text: str) -> None:
    assert parse_state(text) is JobState.UNKNOWN
