"""One count of restarts for every level: ranks, agents, turns in the queue."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.jobs.state import Cause, JobState
from trainworks.recover.restarts import (
    AGENT_RESTART,
    BEGUN_STATES,
    FREE_CAUSES,
    NEXT_TURN,
    RANK_RESTART,
    WAITING_STATES,
    Begin,
    RestartLimit,
    backoff_s,
    earlier_turns,
    lives_of,
    may_restart,
    restarts_used,
)

Events = list[dict[str, Any]]


def submitted(restarts: int = 0) -> dict[str, Any]:
    return {"kind": "submitted", "restarts": restarts}


def state(state: str, cause: str | None = None) -> dict[str, Any]:
    return {"kind": "state", "state": state, "cause": cause}


def agent(node: int | None) -> dict[str, Any]:
    return {"kind": "restart", "node": node}


STARTING = state("STARTING")
RANKS = {"kind": "ranks_started"}
COMMAND = [STARTING, {"kind": "attempt", "attempt": 1}]
LIFE = [STARTING, RANKS, {"kind": "attempt", "attempt": 1}]


@pytest.mark.parametrize(
    ("events", "used"),
    [
        ([], 0),
        ([submitted()], 0),
        ([submitted(), *LIFE], 0),
        ([submitted(), *LIFE, RANKS], 1),
        ([submitted(), STARTING, agent(None), agent(None)], 2),
        ([submitted(), *LIFE, agent(1), RANKS], 1),
        ([submitted(), *LIFE, agent(1), agent(1), RANKS], 2),
        ([submitted(), *LIFE, agent(0), RANKS, agent(1), RANKS], 2),
        ([submitted(), *LIFE, submitted(1), *LIFE], 1),
        ([submitted(), *LIFE, {"kind": "resized"}, RANKS, {"kind": "resized"}, RANKS], 0),
        ([submitted(), *LIFE, agent(1), {"kind": "resized"}, RANKS, RANKS], 2),
        ([submitted(), *LIFE, state("QUEUED", "node_lost"), submitted(1), *LIFE, RANKS], 2),
        ([submitted(), *LIFE, agent(1), state("QUEUED", "node_lost"), submitted(1), *LIFE], 1),
        ([submitted(), *COMMAND, agent(None), state("QUEUED", "node_lost"), submitted(1), *COMMAND], 1),
        ([submitted(), *COMMAND, agent(None), *COMMAND, state("QUEUED", "node_lost"), submitted(1), *COMMAND], 2),
        ([submitted(), *LIFE, agent(1), RANKS, state("QUEUED", "node_lost"), submitted(1), *LIFE], 2),
        ([submitted(), *LIFE, agent(1), submitted(1), *LIFE, submitted(1), *LIFE], 2),
        ([submitted(), *LIFE, RANKS, state("FAILED", "killed"), submitted(), *LIFE], 0),
    ],
)
def test_a_restart_of_any_level_is_one_restart(events: Events, used: int) -> None:
    assert restarts_used(events) == used


def test_agents_that_are_lost_together_are_one_restart() -> None:
    assert restarts_used([submitted(), *LIFE, agent(0), agent(1), RANKS]) == 1


@pytest.mark.parametrize("cause", ["preempted", "no_capacity"])
def test_a_turn_that_was_taken_away_costs_no_restart(cause: str) -> None:
    assert restarts_used([submitted(), *LIFE, state("PREEMPTED", cause), submitted(1), *LIFE]) == 0


def test_restarts_within_a_turn_that_was_taken_away_are_counted() -> None:
    assert restarts_used([submitted(), *LIFE, RANKS, state("PREEMPTED", "preempted"), submitted(1), *LIFE]) == 1


def test_a_launch_that_began_nothing_costs_no_restart() -> None:
    assert restarts_used([submitted(), state("QUEUED", "launch_failed"), submitted(1), *LIFE]) == 0


def test_a_start_after_a_killed_supervisor_is_a_restart() -> None:
    assert restarts_used([submitted(), *LIFE, state("RUNNING"), submitted(1)]) == 1


@pytest.mark.parametrize("then", [RANK_RESTART, AGENT_RESTART, NEXT_TURN])
@pytest.mark.parametrize("max_restarts", [0, 1, 3])
def test_the_budget_is_the_number_of_lives_minus_one(then: dict[str, Any], max_restarts: int) -> None:
    events: Events = [submitted(), *LIFE]
    lives = 1
    while may_restart(events, RestartLimit(max_restarts), then):
        events += [then, *LIFE[:1], *LIFE[2:]]
        lives += 1
        assert lives < 10
    assert lives == 1 + max_restarts


def test_the_record_reads_causes_and_states_as_jobs_have_them() -> None:
    assert frozenset(cause for cause in Cause if not cause.counts_as_restart) == FREE_CAUSES
    assert frozenset(state for state in JobState if state.holds_resources) == BEGUN_STATES
    assert frozenset(state for state in JobState if state.waits) == WAITING_STATES


TOKENS = st.sampled_from([RANKS, STARTING, agent(None), agent(0), agent(1), submitted(1), state("QUEUED", "killed")])


@given(st.lists(TOKENS), st.lists(TOKENS))
def test_what_happens_later_never_gives_a_restart_back(before: Events, after: Events) -> None:
    assert restarts_used([submitted(), *before]) <= restarts_used([submitted(), *before, *after])


@given(st.lists(TOKENS))
def test_a_user_who_submits_again_has_all_restarts_again(before: Events) -> None:
    assert restarts_used([submitted(), *before, submitted()]) == 0


@pytest.mark.parametrize(
    ("events", "turns"),
    [
        ([], 0),
        ([submitted(), STARTING, state("QUEUED", "agent_lost")], 1),
        ([submitted(), STARTING, state("PREEMPTED", "preempted"), submitted(1), state("QUEUED")], 2),
        ([submitted(), STARTING, state("FAILED", "killed")], 0),
        ([submitted(), STARTING, state("FAILED"), submitted(), STARTING, state("QUEUED", "killed")], 1),
        ([submitted(), STARTING], 0),
    ],
)
def test_only_a_job_that_waits_for_another_turn_has_had_some(events: Events, turns: int) -> None:
    assert earlier_turns(events) == turns


def timed(event: dict[str, Any], t: float) -> dict[str, Any]:
    return event | {"t": t}


def test_restarts_outside_of_the_window_do_not_count() -> None:
    events = [timed(event, 0.0) for event in [submitted(), *LIFE]] + [timed(RANKS, t) for t in (10.0, 100.0, 200.0)]
    assert [restarts_used(events, window) for window in (50.0, 100.0, 190.0)] == [1, 2, 3]


def test_a_job_that_fails_seldom_goes_on_for_ever() -> None:
    events: Events = [timed(submitted(), 0.0), timed(RANKS, 0.0)]
    for hour in range(1, 100):
        assert may_restart([*events, timed({"kind": "failure"}, hour * 3600.0)], RestartLimit(1, 3500.0), RANK_RESTART)
        events.append(timed(RANKS, hour * 3600.0))


@pytest.mark.parametrize(("restarts", "wait"), [(0, 0.0), (1, 2.0), (2, 4.0), (3, 8.0), (50, 300.0)])
def test_each_restart_without_a_new_checkpoint_waits_twice_as_long(restarts: int, wait: float) -> None:
    assert backoff_s([submitted(), *LIFE, *[RANKS] * restarts], RestartLimit(99, backoff_s=2.0)) == wait


def test_a_job_that_makes_progress_between_failures_never_waits() -> None:
    events = [submitted(), *LIFE, RANKS, RANKS, {"kind": "checkpoint", "step": 8}]
    assert backoff_s(events, RestartLimit(99, backoff_s=2.0)) == 0.0
    assert backoff_s([*events, RANKS], RestartLimit(99, backoff_s=2.0)) == 2.0


def attempt(step: int | None = None) -> dict[str, Any]:
    return {"kind": "attempt"} | ({} if step is None else {"resumed_from_step": step})


def failed(cause: str, t: float, rank: int | None = None, node: int = 1) -> dict[str, Any]:
    return {"kind": "failure", "cause": cause, "message": f"it was {cause}", "rank": rank, "node": node, "t": t}


def test_every_life_of_a_job_says_why_the_one_before_it_ended_and_from_which_step_it_goes_on() -> None:
    events = [
        submitted(),
        *(STARTING, RANKS, attempt(0)),
        *(failed("peer_lost", 1.0, rank=0, node=0), failed("killed", 1.1, rank=3), RANKS, attempt(10)),
        *(failed("agent_lost", 2.0), {"kind": "agent_lost", "node": 1, "exit_code": -9}, agent(1)),
        *({"kind": "agent_started", "node": 1}, RANKS, attempt(20)),
        *(failed("step_lost", 3.0), agent(1), failed("step_lost", 3.1, node=0), agent(0), RANKS, attempt(30)),
        *(state("QUEUED", "requeued") | {"message": "why"}, submitted(1), RANKS, attempt(40)),
        *(failed("node_lost", 5.0, node=0), state("QUEUED", "node_lost") | {"message": "gone"}, submitted(2), RANKS),
        *(state("FAILED", "oom"), submitted(), RANKS, attempt(50)),
    ]
    told = [(life.begin, life.attempt, life.cause, life.part, life.resumed_from_step) for life in lives_of(events)]
    assert told == [
        (Begin.SUBMIT, 1, None, None, 0),
        (Begin.RANKS, 1, "killed", "rank 3 on node 1", 10),
        (Begin.AGENT, 1, "agent_lost", "agent of node 1", 20),
        (Begin.AGENT, 1, "step_lost", "step of node 1", 30),
        (Begin.REQUEUE, 2, "requeued", None, 40),
        (Begin.REQUEUE, 3, "node_lost", "node 0", None),
        (Begin.RESUME, 4, None, None, 50),
    ]


def test_lives_of_a_command_have_no_step_and_those_on_other_nodes_a_reason() -> None:
    lost = {"kind": "agent_lost", "node": 1, "exit_code": 75}
    events = [submitted(), STARTING, attempt(), lost, agent(None), attempt()]
    assert [(life.begin, life.cause, life.part, life.resumed_from_step) for life in lives_of(events)] == [
        (Begin.SUBMIT, None, None, None),
        (Begin.RANKS, "agent_lost", "agent of node 1", None),
    ]
    back = {"kind": "resized", "message": "the missing nodes are back"}
    (_, last) = lives_of([submitted(), RANKS, attempt(0), back, RANKS, attempt(5)])
    assert (last.begin, last.cause, last.message, last.resumed_from_step) == (Begin.RESIZE, None, back["message"], 5)
    assert lives_of([]) == []
