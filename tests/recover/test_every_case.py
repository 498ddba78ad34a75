"""The decisions over their whole state space: every failure, and every course of a job up to four faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import pytest

from trainworks.jobs.state import Cause
from trainworks.record.events.log import Event
from trainworks.recover.decisions import (
    TRANSIENT,
    UNPROVEN,
    Action,
    FailureRecord,
    NodeStanding,
    Options,
    RecoveryDecision,
    Verdict,
    decide,
    decide_restart,
    decide_resume,
    restart_verdict,
    standing_of_lost,
)
from trainworks.recover.restarts import (
    AGENT_RESTART,
    LONGEST_BACKOFF_S,
    NEXT_TURN,
    RANK_RESTART,
    RestartLimit,
    backoff_s,
    may_restart,
    restarts_used,
)

FAILURES = [
    FailureRecord(cause, fingerprint, step, by_signal=by_signal, cannot_start=cannot_start)
    for cause, fingerprint, step, by_signal, cannot_start in product(
        Cause, [None, "a", "b"], [None, 8, 9], [False, True], [False, True]
    )
]
EVERY_FAILURE = list(product(FAILURES, [False, True]))
BEFORE = [FailureRecord("user_error", "a", 9), FailureRecord("killed", None, None, by_signal=True)]


def test_every_failure_has_a_verdict_and_every_verdict_a_failure() -> None:
    found = {decide_restart(failure, BEFORE, first_step_done=done) for failure, done in EVERY_FAILURE}
    assert found == set(Verdict)


def test_only_a_proven_failure_or_a_final_cause_ends_a_job() -> None:
    for failure, done in EVERY_FAILURE:
        verdict = decide_restart(failure, BEFORE, first_step_done=done)
        from_outside = failure.by_signal or failure.cause in TRANSIENT
        is_seen = failure.fingerprint == "a" and failure.step == 9
        is_proven = failure.cause in UNPROVEN and (not done or is_seen)
        is_final = failure.cause not in TRANSIENT | UNPROVEN or failure.cannot_start
        assert (verdict is not Verdict.RESTART) == (not from_outside and (is_proven or is_final)), failure


def test_more_failures_before_never_turn_a_final_one_into_a_restart() -> None:
    for failure, done in EVERY_FAILURE:
        if decide_restart(failure, [], first_step_done=done) is not Verdict.RESTART:
            assert decide_restart(failure, BEFORE, first_step_done=done) is not Verdict.RESTART


def test_a_cause_that_another_start_of_the_ranks_helps_is_one_that_another_turn_of_the_job_helps() -> None:
    assert all(Cause(cause).another_start_helps for cause in TRANSIENT)


@pytest.mark.parametrize(
    ("damaged", "has_loadable", "action"),
    [
        (0, False, Action.CARRY_ON),
        (0, True, Action.CARRY_ON),
        (1, True, Action.ROLL_BACK),
        (3, True, Action.ROLL_BACK),
        (1, False, Action.STOP),
        (3, False, Action.STOP),
    ],
)
def test_a_run_never_starts_again_without_a_checkpoint_that_it_had(
    damaged: int, has_loadable: bool, action: Action
) -> None:
    decision = decide_resume(damaged=damaged, has_loadable=has_loadable)
    assert decision.action is action and decision.reason


@dataclass(frozen=True, slots=True)
class Course:
    """A job after some faults, as its supervisor and its agents would have continued it."""

    most: int
    """Restarts that it has."""
    other_nodes: bool
    nodes: int
    fewest: int
    events: tuple[Event, ...] = ({"kind": "submitted"}, {"kind": "state", "state": "STARTING"}, RANK_RESTART)
    last: RecoveryDecision | None = None
    costly: int = 0
    """Faults so far that cost a restart, or ask for one."""

    @property
    def limit(self) -> RestartLimit:
        return RestartLimit(self.most, backoff_s=200.0)

    @property
    def trained(self) -> tuple[Event, ...]:
        return (*self.events, {"kind": "attempt", "resumed_from_step": 0})

    def after(self, fault: str) -> Course:
        """The job after one more fault, of the last of its nodes."""
        events, verdict, standing, restart = self.trained, Verdict.RESTART, NodeStanding.FIT, RANK_RESTART
        if fault in RANK_FAULTS:
            failure = {"kind": "failure", "step": 9, **RANK_FAULTS[fault]}
            verdict = restart_verdict(failure, self.events, [self.trained[-1], failure])
            events = (*events, failure)
        elif fault.startswith("lost"):
            lost: Event = {"kind": "agent_lost", "node": self.nodes - 1}
            events = (*(self.events if fault == "lost before it trained" else events), lost)
            standing, restart = standing_of_lost(self.nodes - 1, events), AGENT_RESTART | {"node": self.nodes - 1}
        elif fault == "accelerator":
            events = (*events, {"kind": "failure", "step": 9, "cause": "gpu_fault", "rank": self.nodes - 1})
            standing, restart = NodeStanding.INCOMPLETE, AGENT_RESTART | {"node": self.nodes - 1}
        else:
            standing = {"slow": NodeStanding.SLOW, "unfit": NodeStanding.UNFIT}[fault]
            restart = AGENT_RESTART | {"node": self.nodes - 1}
        others = self.other_nodes  # a queue of them has other accelerators
        options = Options(may_restart(events, self.limit, restart), others, self.nodes > self.fewest, others)
        decision = decide(verdict, standing, options)
        is_free = standing in (NodeStanding.UNFIT, NodeStanding.SLOW)
        return self._continued(events, decision, restart, is_free=is_free)

    def _continued(
        self, events: tuple[Event, ...], decision: RecoveryDecision, restart: Event, *, is_free: bool
    ) -> Course:
        done = replace(self, last=decision, costly=self.costly + (not is_free))
        match decision.action:
            case Action.IN_PLACE:
                own = () if restart == RANK_RESTART else (restart,)
                return replace(done, events=(*events, *own, RANK_RESTART))
            case Action.SMALLER:
                return replace(done, nodes=self.nodes - 1, events=(*events, {"kind": "resized"}, RANK_RESTART))
            case Action.ELSEWHERE | Action.OTHER_ACCELERATOR:
                cause = "node_unhealthy" if decision.action is Action.ELSEWHERE else "gpu_fault"
                waits = {"kind": "state", "state": "QUEUED", "cause": cause}
                begins = {"kind": "state", "state": "STARTING"}
                return replace(done, events=(*events, waits, NEXT_TURN, begins, RANK_RESTART))
            case _:
                return replace(done, events=events)


RANK_FAULTS: dict[str, Event] = {
    "killed": {"cause": "killed", "signal": "SIGKILL"},
    "hang": {"cause": "hang"},
    "exception": {"cause": "user_error", "fingerprint": "a"},
    "diverged": {"cause": "diverged"},
}
FAULTS = [*RANK_FAULTS, "lost", "lost before it trained", "slow", "unfit", "accelerator"]
DEPTH = 4
STARTS = [
    Course(most, other_nodes, nodes=3, fewest=fewest)
    for most, other_nodes, fewest in product([0, 1, 2], [False, True], [2, 3])
]


def courses(course: Course, depth: int = DEPTH) -> Iterator[tuple[str, Course, Course]]:
    """Every fault of every course: its name, the job before it and after it."""
    for fault in FAULTS if depth else []:
        after = course.after(fault)
        yield fault, course, after
        if after.last is not None and after.last.action is not Action.STOP:
            yield from courses(after, depth - 1)


def check(fault: str, before: Course, after: Course) -> None:
    """What holds for one fault of one course."""
    assert after.last is not None and after.last.reason
    action = after.last.action
    assert restarts_used(after.events) <= after.most, "the budget is respected at every level together"
    assert 0.0 <= backoff_s(after.events, after.limit) <= LONGEST_BACKOFF_S
    assert after.nodes >= after.fewest
    assert (action is Action.SMALLER) == (after.nodes < before.nodes)
    if action is Action.STOP and fault in ("killed", "hang", "lost"):
        assert restarts_used(before.events) == before.most, f"{fault} ended a job that had a restart left"
    if action is Action.STOP and fault == "accelerator":
        has_none = restarts_used(before.events) == before.most or not before.other_nodes
        assert has_none and before.nodes == before.fewest
    if action is Action.STOP and fault == "unfit":
        assert not before.other_nodes and before.nodes == before.fewest
    shrinks = 3 - after.fewest
    if after.costly > after.most + shrinks and not after.other_nodes:
        assert action in (Action.STOP, Action.CARRY_ON, Action.SMALLER), "every course ends"


def test_every_course_of_faults_respects_budget_and_nodes_loses_no_job_and_ends() -> None:
    seen: set[Action] = set()
    number = 0
    for start in STARTS:
        for fault, before, after in courses(start):
            check(fault, before, after)
            assert after.last is not None
            seen.add(after.last.action)
            number += 1
    assert seen == set(Action) - {Action.ROLL_BACK}, "a roll-back is of steps and checkpoints, and not of nodes"
    assert number > 5_000
