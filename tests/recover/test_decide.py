"""What follows a failure, for every combination of failure, node and what the job has left."""

from __future__ import annotations

from itertools import product

import pytest

from trainworks.config.recovery import Guard
from trainworks.jobs.state import TRANSITIONS, JobState
from trainworks.record.events.log import Event
from trainworks.recover.decisions import (
    Action,
    NodeStanding,
    Options,
    RecoveryDecision,
    SkipReason,
    Verdict,
    decide,
    decide_after_skip,
    standing_of_lost,
)

EVERY_OPTION = [Options(*values) for values in product([False, True], repeat=4)]
EVERY_CASE = list(product(Verdict, NodeStanding, EVERY_OPTION))
LOST: Event = {"kind": "agent_lost", "node": 1}
ALL_LEFT = Options(True, True, True, True)


def chosen(node: NodeStanding, options: Options) -> Action:
    return decide(Verdict.RESTART, node, options).action


@pytest.mark.parametrize(("verdict", "node", "options"), EVERY_CASE)
def test_every_case_has_a_decision_with_a_reason(verdict: Verdict, node: NodeStanding, options: Options) -> None:
    decision = decide(verdict, node, options)
    assert isinstance(decision, RecoveryDecision) and decision.reason


@pytest.mark.parametrize(("verdict", "node", "options"), EVERY_CASE)
def test_a_job_is_given_up_only_if_the_failure_is_final_or_nothing_is_left(
    verdict: Verdict, node: NodeStanding, options: Options
) -> None:
    stops = decide(verdict, node, options).action is Action.STOP
    is_rank = node is NodeStanding.FIT
    could_restart = options.has_restart and node not in (NodeStanding.UNFIT, NodeStanding.INCOMPLETE)
    could_move = options.other_nodes and (node is NodeStanding.UNFIT or could_restart) and not is_rank
    if node is NodeStanding.INCOMPLETE:
        could_move = options.other_accelerators and options.has_restart
    could_shrink = options.fewer_nodes and not is_rank
    nothing_left = not (could_restart or could_move or could_shrink or node is NodeStanding.SLOW)
    assert stops == (verdict is not Verdict.RESTART or nothing_left)


@pytest.mark.parametrize(("verdict", "node", "options"), EVERY_CASE)
def test_a_decision_never_takes_what_the_job_does_not_have(
    verdict: Verdict, node: NodeStanding, options: Options
) -> None:
    action = decide(verdict, node, options).action
    assert action is not Action.ELSEWHERE or options.other_nodes
    assert action is not Action.SMALLER or options.fewer_nodes
    assert action is not Action.IN_PLACE or options.has_restart
    assert action is not Action.ELSEWHERE or options.has_restart or node is NodeStanding.UNFIT
    assert action is not Action.OTHER_ACCELERATOR or (options.has_restart and options.other_accelerators)


@pytest.mark.parametrize("options", EVERY_OPTION)
def test_ranks_never_start_again_on_a_node_that_failed_its_check(options: Options) -> None:
    assert chosen(NodeStanding.UNFIT, options) not in (Action.IN_PLACE, Action.CARRY_ON)
    assert chosen(NodeStanding.INCOMPLETE, options) not in (Action.IN_PLACE, Action.CARRY_ON, Action.ELSEWHERE)


@pytest.mark.parametrize("has_restart", [False, True])
def test_one_machine_goes_on_with_fewer_accelerators_before_it_waits_for_others(has_restart: bool) -> None:
    here = Options(has_restart, other_nodes=False, fewer_nodes=True, other_accelerators=True)
    assert chosen(NodeStanding.INCOMPLETE, here) is Action.SMALLER


@pytest.mark.parametrize("options", EVERY_OPTION)
def test_slowness_alone_never_ends_a_job(options: Options) -> None:
    assert chosen(NodeStanding.SLOW, options) is not Action.STOP


@pytest.mark.parametrize(("node", "options"), list(product(NodeStanding, EVERY_OPTION)))
def test_having_more_left_never_ends_a_job_that_would_have_gone_on(node: NodeStanding, options: Options) -> None:
    if chosen(node, options) is not Action.STOP:
        assert chosen(node, ALL_LEFT) is not Action.STOP


@pytest.mark.parametrize(
    ("node", "action"),
    [
        (NodeStanding.FIT, Action.IN_PLACE),
        (NodeStanding.LOST, Action.IN_PLACE),
        (NodeStanding.LOST_AGAIN, Action.ELSEWHERE),
        (NodeStanding.SLOW, Action.ELSEWHERE),
        (NodeStanding.UNFIT, Action.ELSEWHERE),
        (NodeStanding.INCOMPLETE, Action.OTHER_ACCELERATOR),
    ],
)
def test_with_everything_left_only_a_bad_node_is_left_out(node: NodeStanding, action: Action) -> None:
    assert chosen(node, ALL_LEFT) is action


EVERY_GUARD = [
    Guard(nonfinite=nonfinite, spike=spike, max_skips=2, max_rollbacks=rollbacks)
    for nonfinite, spike, rollbacks in product(["skip", "rollback", "stop"], ["skip", "rollback"], [0, 1])
]


@pytest.mark.parametrize(
    ("reason", "guard", "in_a_row", "rollbacks"), list(product(SkipReason, EVERY_GUARD, [1, 2, 3], [0, 1, 2]))
)
def test_a_faulty_step_is_answered_as_the_guard_says_until_its_limit(
    reason: SkipReason, guard: Guard, in_a_row: int, rollbacks: int
) -> None:
    policy = guard.spike if reason is SkipReason.SPIKE else guard.nonfinite
    decision = decide_after_skip(reason, guard, in_a_row=in_a_row, rollbacks=rollbacks)
    at_limit = {"stop": True, "skip": in_a_row > 2, "rollback": rollbacks >= guard.max_rollbacks}[policy]
    within = Action.ROLL_BACK if policy == "rollback" else Action.CARRY_ON
    assert decision.action is (Action.STOP if at_limit else within)
    assert decision.reason


def test_every_state_leads_to_an_end() -> None:
    for state in JobState:
        reached, new = set(), {state}
        while new:
            reached |= new
            new = {after for each in new for after in TRANSITIONS[each]} - reached
        assert any(after.is_final for after in reached), state


@pytest.mark.parametrize(
    ("events", "standing"),
    [
        ([LOST], NodeStanding.LOST),
        ([LOST, LOST], NodeStanding.LOST_AGAIN),
        ([LOST, {"kind": "attempt"}, LOST], NodeStanding.LOST),
        ([LOST, {"kind": "submitted"}, LOST], NodeStanding.LOST),
        ([{"kind": "agent_lost", "node": 0}, LOST], NodeStanding.LOST),
    ],
)
def test_a_node_is_lost_again_if_the_job_has_not_trained_between(events: list[Event], standing: NodeStanding) -> None:
    assert standing_of_lost(1, events) is standing
