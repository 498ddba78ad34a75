"""Whether ranks start again after a failure is a table over its cause, and over what failed before."""

from __future__ import annotations

from typing import Any

import pytest

from trainworks.jobs.state import Cause
from trainworks.record.events.log import Event
from trainworks.recover.decisions import (
    TRANSIENT,
    UNPROVEN,
    FailureRecord,
    Verdict,
    command_verdict,
    decide_restart,
    restart_verdict,
)

SUBMITTED: Event = {"kind": "submitted"}
ATTEMPT: Event = {"kind": "attempt", "resumed_from_step": 0}


def failure(cause: str = "user_error", fingerprint: str | None = "a", step: int = 9, **more: Any) -> FailureRecord:
    """A rank that failed in step 9."""
    return FailureRecord(cause, fingerprint, step, **more)


def event(fingerprint: str = "a", step: int = 9, cause: str = "user_error", **fields: Any) -> Event:
    """The same, in the record."""
    return {"kind": "failure", "cause": cause, "fingerprint": fingerprint, "step": step, **fields}


@pytest.mark.parametrize("first_step_done", [False, True])
@pytest.mark.parametrize("cause", sorted(TRANSIENT))
def test_a_fault_of_hardware_or_from_outside_is_restarted_from_even_if_repeated(
    cause: str, first_step_done: bool
) -> None:
    verdict = decide_restart(failure(cause), [failure(cause)], first_step_done=first_step_done)
    assert verdict is Verdict.RESTART


@pytest.mark.parametrize("cause", ["oom", "diverged", "disk_full"])
def test_a_lack_or_a_diverged_loss_is_final(cause: str) -> None:
    assert decide_restart(failure(cause), [], first_step_done=True) is Verdict.FINAL_CAUSE


def test_a_rank_that_the_kernel_killed_for_its_memory_is_started_again() -> None:
    killed = failure("oom", None, by_signal=True)
    assert decide_restart(killed, [killed], first_step_done=False) is Verdict.RESTART


@pytest.mark.parametrize("cause", sorted(UNPROVEN))
@pytest.mark.parametrize(
    ("earlier", "first_step_done", "verdict"),
    [
        ([], True, Verdict.RESTART),
        ([], False, Verdict.BEFORE_FIRST_STEP),
        ([("a", 9)], True, Verdict.REPEATED),
        ([("a", 9), ("b", 4)], True, Verdict.REPEATED),
        ([("a", 8)], True, Verdict.RESTART),
        ([("b", 9)], True, Verdict.RESTART),
    ],
    ids=["first", "before-first-step", "same", "same-with-another-between", "other-step", "other-exception"],
)
def test_an_exception_is_restarted_from_until_it_is_proven_deterministic(
    cause: str, earlier: list[tuple[str, int]], first_step_done: bool, verdict: Verdict
) -> None:
    seen = [failure(cause, fingerprint, step) for fingerprint, step in earlier]
    assert decide_restart(failure(cause), seen, first_step_done=first_step_done) is verdict


def test_failures_without_a_fingerprint_prove_nothing() -> None:
    unknown = failure(fingerprint=None)
    assert decide_restart(unknown, [unknown], first_step_done=True) is Verdict.RESTART


def test_transient_causes_are_those_that_another_start_of_the_job_helps() -> None:
    of_jobs = {Cause.PREEMPTED, Cause.TIME_LIMIT, Cause.LAUNCH_FAILED, Cause.NO_CAPACITY, Cause.CONTROLLER_ERROR}
    of_jobs |= {Cause.NODE_RECLAIMED, Cause.SCHEDULER_LOST, Cause.REQUEUED}
    assert {cause for cause in Cause if cause.another_start_helps} - of_jobs == TRANSIENT
    assert set(Cause) > UNPROVEN


@pytest.mark.parametrize(
    ("before", "since", "step", "verdict"),
    [
        ([SUBMITTED], [], 0, Verdict.BEFORE_FIRST_STEP),
        ([SUBMITTED], [ATTEMPT], 1, Verdict.BEFORE_FIRST_STEP),
        ([SUBMITTED], [ATTEMPT | {"resumed_from_step": 8}], 9, Verdict.BEFORE_FIRST_STEP),
        ([SUBMITTED], [ATTEMPT], 2, Verdict.RESTART),
        ([SUBMITTED, ATTEMPT, event("b")], [], 0, Verdict.RESTART),
        ([SUBMITTED, ATTEMPT, event(step=9)], [ATTEMPT], 9, Verdict.REPEATED),
        ([SUBMITTED, ATTEMPT, event(step=9), SUBMITTED], [ATTEMPT], 9, Verdict.RESTART),
        ([SUBMITTED, ATTEMPT, event(step=9), SUBMITTED | {"restarts": 1}], [ATTEMPT], 9, Verdict.REPEATED),
    ],
    ids=[
        "while-building",
        "in-the-first-step",
        "in-the-first-step-after-a-resume",
        "in-the-second-step",
        "while-building-after-an-attempt-that-trained",
        "again",
        "again-after-a-resume-by-the-user",
        "again-in-another-turn-of-the-same-job",
    ],
)
def test_the_record_says_what_happened_before(
    before: list[Event], since: list[Event], step: int, verdict: Verdict
) -> None:
    now = event(step=step)
    assert restart_verdict(now, before, [*since, now]) is verdict


def test_two_nodes_that_fail_in_one_attempt_do_not_repeat_each_other() -> None:
    now = event()
    assert restart_verdict(now, [SUBMITTED], [ATTEMPT, event(rank=1), now]) is Verdict.RESTART


COMMAND: Event = {"kind": "failure", "cause": "user_error", "exit_code": 1, "signal": None}


@pytest.mark.parametrize(
    ("code", "last_words"),
    [
        (1, "ModuleNotFoundError: No module named 'trl'"),
        (1, "ImportError: cannot import name 'x' from 'y' (/site-packages/y.py)"),
        (1, "SyntaxError: invalid syntax"),
        (2, "/usr/bin/python: can't open file '/app/trian.py': [Errno 2] No such file or directory"),
        (2, "train.py: error: unrecognized arguments: --lrr 1"),
        (1, "RuntimeError: Distributed package doesn't have NCCL built in"),
        (1, "AssertionError: Torch not compiled with CUDA enabled"),
        (127, "bash: line 1: torchrnu: command not found"),
        (126, "bash: line 1: ./train.sh: Permission denied"),
    ],
)
def test_a_command_that_cannot_start_as_it_is_written_is_not_started_again(code: int, last_words: str) -> None:
    failed = COMMAND | {"exit_code": code, "message": f"the command exited with code {code}: {last_words}"}
    assert command_verdict(failed) is Verdict.CANNOT_START


@pytest.mark.parametrize(
    ("code", "last_words"),
    [
        (1, "RuntimeError: NCCL error: unhandled system error"),
        (1, "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients"),
        (1, "FileNotFoundError: [Errno 2] No such file or directory: '/mnt/data/shard-7'"),
        (1, "ConnectionError: the hub is away"),
        (2, "ls: cannot access '/mnt/data': Stale file handle"),
        (9, ""),
    ],
)
def test_a_command_that_may_have_met_a_fault_that_passes_is_started_again(code: int, last_words: str) -> None:
    failed = COMMAND | {"exit_code": code, "message": f"the command exited with code {code}: {last_words}"}
    assert command_verdict(failed) is Verdict.RESTART
    killed = {"cause": "killed", "exit_code": -9, "signal": "SIGKILL", "message": "ImportError: x"}
    assert command_verdict(COMMAND | killed) is Verdict.RESTART
