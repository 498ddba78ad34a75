"""Who is to blame for a silence."""

from __future__ import annotations

import dataclasses

import pytest

from trainworks.worker.health.hang import HangLimits, RankObservation, find_hang
from trainworks.worker.health.heartbeat import Beat, Phase

STEPS_S = [0.1, 0.1, 5.0]


def rank(number, silent_s=15.0, *, phase=Phase.COMPUTE, waits_for=None, state="S", **changes):
    """A rank in step 61 that was asked five seconds ago."""
    limits = HangLimits()
    observation = RankObservation(
        rank=number,
        beat=Beat(1000, phase, 61),
        silent_s=silent_s,
        limit_s=limits.of(phase, STEPS_S),
        stop_limit_s=limits.step_limit_s(STEPS_S),
        state=state,
        asked_s=5.0,
        waits_for=waits_for,
        where="data.py:7 `gather`",
    )
    return dataclasses.replace(observation, **changes)


def waiting(number, silent_s=15.0, what="gloo:all_reduce #5 of [[7]]", **changes):
    return rank(number, silent_s, waits_for=what, **changes)


def working(number, silent_s=15.0, **changes):
    return rank(number, silent_s, waits_for="", **changes)


def test_nobody_is_judged_before_a_limit_has_passed():
    assert find_hang([working(0, 9.0), waiting(1, 9.0)]) is None


def test_the_rank_that_does_not_wait_is_the_culprit_and_the_others_are_its_victims():
    hang = find_hang([waiting(0), working(1), waiting(2)])
    assert hang is not None
    assert ([c.rank for c in hang.culprits], [v.rank for v in hang.victims]) == ([1], [0, 2])
    assert hang.message() == (
        "rank 1 hung at data.py:7 `gather` for 15 s in step 61, forward and backward; ranks 0 and 2 waited for it"
    )


def test_a_victim_that_is_overdue_waits_on_while_the_culprit_is_within_its_limit():
    assert find_hang([waiting(0), working(1, phase=Phase.CHECKPOINT)]) is None


def test_nobody_is_judged_before_all_have_answered():
    assert find_hang([working(0), rank(1, asked_s=1.0)]) is None


def test_a_rank_that_has_answered_nothing_for_long_is_the_culprit():
    hang = find_hang([waiting(0), rank(1)])
    assert hang is not None
    assert "rank 1 did not answer, its interpreter blocked, for 15 s" in hang.message()


def test_a_stopped_rank_is_enough_and_may_be_in_any_phase():
    hang = find_hang([rank(0, 1.0, asked_s=0.0), rank(1, state="T", phase=Phase.STARTING)])
    assert hang is not None
    assert hang.message().startswith("rank 1 was stopped by a signal for 15 s")


def test_a_rank_that_was_stopped_a_moment_ago_is_left_alone():
    assert find_hang([rank(1, 3.0, state="T")]) is None


def test_a_rank_that_the_kernel_holds_is_said_to_be_in_io():
    hang = find_hang([waiting(0), rank(1, state="D")])
    assert hang is not None
    assert "blocked in kernel I/O" in hang.message()


def test_ranks_that_all_wait_are_a_deadlock_that_says_for_what():
    hang = find_hang([waiting(0, what="`recv`"), waiting(1)])
    assert hang is not None and hang.is_deadlock
    assert hang.message() == (
        "all ranks have waited for different things for 15 s in step 61: "
        "rank 0 in `recv`; rank 1 in gloo:all_reduce #5 of [[7]]"
    )


def test_ranks_that_all_wait_are_left_alone_while_one_is_within_its_limit():
    assert find_hang([waiting(0), waiting(1, 9.0)]) is None


@pytest.mark.parametrize(
    ("steps_s", "phase", "limit_s"),
    [
        ([0.1], Phase.COMPUTE, 10.0),
        ([2.0, 3.0, 90.0], Phase.COMPUTE, 60.0),
        ([2.0, 3.0, 90.0], Phase.DATA, 180.0),
        ([0.1], Phase.CHECKPOINT, 600.0),
        ([90.0], Phase.CHECKPOINT, 18_000.0),
        ([], Phase.COMPUTE, 600.0),
    ],
    ids=["floor", "median", "data", "saving", "saving-with-long-steps", "before-steps-are-known"],
)
def test_the_automatic_limit_follows_the_median_step(steps_s, phase, limit_s):
    assert HangLimits().of(phase, steps_s) == limit_s


def test_a_limit_of_the_run_file_holds_for_steps_and_not_for_starting():
    limits = HangLimits(2.0)
    phases = (Phase.OPTIMIZER, Phase.DATA, Phase.LOADING, Phase.STARTING)
    assert [limits.of(phase, [0.1]) for phase in phases] == [2.0, 6.0, 600.0, 120.0]


@pytest.mark.parametrize(
    ("phase", "limit_s"),
    [
        (Phase.STARTING, 200.0),
        (Phase.RENDEZVOUS, 200.0),
        (Phase.GROUPS, 200.0),
        (Phase.BUILD, 200.0),
        (Phase.FIRST_STEP, 600.0),
        (Phase.DATASET, 1000.0),
        (Phase.COMPILE, 1000.0),
        (Phase.LOADING, 1000.0),
    ],
)
def test_each_phase_of_a_start_has_its_limit(phase, limit_s):
    assert HangLimits(start_timeout_s=200.0, planned_step_s=30.0).of(phase, []) == limit_s


def test_a_start_that_hangs_is_named_by_its_phase_with_the_stacks_of_all():
    starting = {"beat": Beat(3, Phase.GROUPS), "limit_s": 120.0}
    ranks = [
        waiting(0, 130.0, what="`new_group`", stack="mesh.py:5 new_group", **starting),
        working(1, 125.0, stack="nic.py:9 reset", **starting),
    ]
    hang = find_hang(ranks)
    assert hang is not None
    assert hang.message() == "rank 1 hung at data.py:7 `gather` for 2m 5s in process groups; rank 0 waited for it"
    assert hang.stacks == {"0": "mesh.py:5 new_group", "1": "nic.py:9 reset"}
    assert hang.hint("rank-1.log") == (
        "stacks of all ranks are in rank-1.log; if it may be silent for more than 2m 0s, raise `recover.start_timeout`"
    )


def test_a_rank_that_never_started_is_missing():
    missing = rank(1, 121.0, beat=Beat(), limit_s=120.0)
    hang = find_hang([waiting(0, 121.0, beat=Beat(2, Phase.RENDEZVOUS), limit_s=120.0), missing])
    assert hang is not None
    assert hang.message().startswith("rank 1 has not begun for 2m 1s in starting; rank 0 waited")
