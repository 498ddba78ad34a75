"""Fair share in the queue's decision: the factors are those of Slurm, and order jobs of one priority."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.queueing.queues import node, nodes, running, shape, snapshot, waiting
from trainworks.queueing.decide import decide
from trainworks.queueing.fair_share import ShareUse, decayed, ranks, standings, use_of
from trainworks.queueing.snapshot import Reason

AHEAD, BEHIND = ShareUse("team speech", 0.3, 0.5), ShareUse("team vision", 0.7, 0.5)
HALF_LIFE_S = 1000.0


@pytest.mark.parametrize(
    ("use", "factors"),
    [
        ({}, {"a": 1.0, "b": 1.0, "c": 1.0}),
        ({"a": 50.0, "b": 25.0, "c": 25.0}, {"a": 0.5, "b": 0.5, "c": 0.5}),
        ({"a": 100.0}, {"a": 0.25, "b": 1.0, "c": 1.0}),
        ({"b": 100.0}, {"a": 1.0, "b": 0.0625, "c": 1.0}),
        ({"a": 75.0, "c": 25.0}, {"a": 2**-1.5, "b": 1.0, "c": 0.5}),
    ],
)
def test_the_factor_is_two_to_the_minus_use_over_share(use: dict[str, float], factors: dict[str, float]) -> None:
    found = standings({"a": 2.0, "b": 1.0, "c": 1.0}, use)
    assert {name: one.factor for name, one in found.items()} == pytest.approx(factors)


def test_a_team_stands_among_teams_and_users_without_one_and_its_users_among_themselves() -> None:
    accounts = {1: ("team vision", "user ann"), 2: ("team vision", "user bob"), 3: ("user carol",)}
    found = ranks(accounts, {"team vision": 2.0, "team speech": 1.0}, {1: 30.0, 2: 10.0, 3: 60.0})
    assert found == {
        1: (ShareUse("team vision", 0.4, 0.5), ShareUse("user ann", 0.75, 0.5)),
        2: (ShareUse("team vision", 0.4, 0.5), ShareUse("user bob", 0.25, 0.5)),
        3: (ShareUse("user carol", 0.6, 0.25),),
    }


TIMES = st.lists(st.floats(0, 1e5), min_size=4, max_size=4).map(sorted)


@given(TIMES)
def test_use_does_not_depend_on_when_it_was_summed(times: list[float]) -> None:
    began, between, ended, now = times

    def use(began: float, ended: float, now: float) -> float:
        return use_of(0.5, began=began, ended=ended, now=now, half_life_s=HALF_LIFE_S)

    in_parts = decayed(use(began, between, between), now - between, HALF_LIFE_S) + use(between, ended, now)
    assert use(began, ended, now) == pytest.approx(in_parts, abs=1e-6)


def test_use_for_ever_is_worth_a_half_life_over_ln_2_and_half_of_it_a_half_life_later() -> None:
    whole = use_of(1.0, began=-1e6, ended=0.0, now=0.0, half_life_s=HALF_LIFE_S)
    assert whole == pytest.approx(HALF_LIFE_S / math.log(2))
    assert decayed(whole, HALF_LIFE_S, HALF_LIFE_S) == whole / 2


def test_a_job_with_the_better_share_goes_before_an_older_one_but_not_before_a_higher_priority() -> None:
    older, better = waiting(1, rank=(BEHIND,)), waiting(2, rank=(AHEAD,))
    decision = decide(snapshot([node("n1")], [older, better]))
    assert [start.job_id for start in decision.starts] == [2]
    urgent = waiting(1, rank=(BEHIND,), priority=51)
    assert [start.job_id for start in decide(snapshot([node("n1")], [urgent, better])).starts] == [1]


def test_a_job_behind_another_one_for_its_share_says_so() -> None:
    queue = [waiting(1, rank=(BEHIND,)), waiting(2, rank=(AHEAD,)), waiting(3, rank=(AHEAD,))]
    pending = decide(snapshot([node("n1")], queue, [running(9, shape(), "n1")])).pending
    assert pending[1].detail == (
        "behind job 2 (priority 50): team vision has 50% of the shares and made 70% of the use"
    )
    assert pending[3].detail == "behind job 2 (priority 50)"


def test_a_job_of_another_queue_gets_what_it_could_start_on_and_is_named_by_the_job_that_waits() -> None:
    other = waiting(-1, rank=(AHEAD,), elsewhere="bob's job lm-7")
    decision = decide(snapshot(nodes(2), [waiting(1, rank=(BEHIND,)), waiting(2, rank=(BEHIND,)), other]))
    assert [start.job_id for start in decision.starts] == [1]
    assert list(decision.pending) == [2]
    assert decision.pending[2].reason is Reason.RESOURCES
    assert decision.pending[2].detail.endswith(
        "; behind bob's job lm-7 (priority 50): team vision has 50% of the shares and made 70% of the use"
    )


@pytest.mark.parametrize("blocked", [{"of": shape(16)}, {"held": True}, {"of": shape(exclude=frozenset({"n1", "n2"}))}])
def test_a_job_of_another_queue_that_cannot_start_keeps_nothing(blocked: dict[str, object]) -> None:
    other = waiting(-1, rank=(AHEAD,), elsewhere="bob's job lm-7", **blocked)  # type: ignore[arg-type]
    starts = decide(snapshot(nodes(2), [waiting(1), waiting(2), other])).starts
    assert [start.job_id for start in starts] == [1, 2]


def test_no_job_is_preempted_for_one_of_another_queue() -> None:
    other = waiting(-1, priority=90, elsewhere="bob's job lm-7")
    busy = running(9, shape(), "n1", preemptible=True)
    assert decide(snapshot([node("n1")], [other], [busy])).preempts == ()
