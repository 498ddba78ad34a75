"""Slurm's words as ours."""

from __future__ import annotations

from datetime import datetime

import pytest

from trainworks.backends.slurm.states import (
    accelerators_in,
    cause_of,
    cause_of_the_kill,
    expand,
    job_state,
    node_state,
    parse_squeue,
)
from trainworks.jobs.state import Cause, JobState


@pytest.mark.parametrize(
    ("word", "reason", "state", "cause"),
    [
        ("PENDING", "Resources", JobState.QUEUED, None),
        ("PENDING", "launch failed requeued held", JobState.QUEUED, None),
        ("CONFIGURING", None, JobState.STARTING, None),
        ("RUNNING", None, JobState.RUNNING, None),
        ("COMPLETING", None, JobState.RUNNING, None),
        ("COMPLETED", None, JobState.SUCCEEDED, None),
        ("CANCELLED", None, JobState.STOPPED, None),
        ("CANCELLED by 1000", None, JobState.STOPPED, None),
        ("CANCELLED", "DependencyNeverSatisfied", JobState.FAILED, Cause.DEPENDENCY),
        ("FAILED", "NonZeroExitCode", JobState.FAILED, Cause.USER_ERROR),
        ("FAILED", "JobLaunchFailure", JobState.FAILED, Cause.LAUNCH_FAILED),
        ("TIMEOUT", "TimeLimit", JobState.FAILED, Cause.TIME_LIMIT),
        ("NODE_FAIL", None, JobState.FAILED, Cause.NODE_LOST),
        ("OUT_OF_MEMORY", None, JobState.FAILED, Cause.OOM),
        ("PREEMPTED", None, JobState.PREEMPTED, Cause.PREEMPTED),
        ("HIBERNATING", None, JobState.UNKNOWN, None),
        ("", None, JobState.UNKNOWN, None),
    ],
)
def test_states_and_causes_of_a_job(word: str, reason: str | None, state: JobState, cause: Cause | None) -> None:
    assert (job_state(word, reason), cause_of(word, reason)) == (state, cause)


@pytest.mark.parametrize(
    ("restarts", "used", "state"),
    [(0, "0:00", JobState.RUNNING), (1, "1:30", JobState.RUNNING), (1, "0:00", JobState.QUEUED)],
    ids=["ends", "ends-after-a-restart", "is-requeued"],
)
def test_a_requeued_job_waits_while_a_lost_node_completes(restarts: int, used: str, state: JobState) -> None:
    """Slurm counts no time since the requeue, and says nothing else about it until `SlurmdTimeout`."""
    fields = ("6", "N/A", "COMPLETING", restarts, used, "0", "1795829309", "1795915709", "gpu2", "", "None")
    status = parse_squeue("|".join(f"{field!s:20}" for field in fields))["6"]
    assert (status.state, status.restarts, status.nodes) == (state, restarts, ("gpu2",))
    assert status.reason == ("Slurm still ends its last turn on gpu2" if state is JobState.QUEUED else None)


@pytest.mark.parametrize(
    ("raw", "state"),
    [
        ("idle", "free"),
        ("mixed", "mixed"),
        ("allocated", "taken"),
        ("idle+drain", "drained"),
        ("mixed+drain", "draining"),
        ("drained", "drained"),
        ("draining", "draining"),
        ("down+not_responding", "down"),
        ("down*", "down"),
        ("idle*", "unknown"),
        ("idle+cloud+powered_down", "down"),
        ("strange", "unknown"),
    ],
)
def test_states_of_a_node(raw: str, state: str) -> None:
    assert node_state(raw) == state


@pytest.mark.parametrize(
    ("gres", "found"),
    [
        ("gpu:h100:8", (8, "h100")),
        ("gpu:h100:8(S:0-1)", (8, "h100")),
        ("gpu:h100:3(IDX:0-2)", (3, "h100")),
        ("gpu:h100:0(IDX:N/A)", (0, "h100")),
        ("gpu:4", (4, None)),
        ("gpu:a100:2,gpu:h100:2,shard:16", (4, "a100")),
        ("(null)", (0, None)),
    ],
)
def test_accelerators_of_a_node(gres: str, found: tuple[int, str | None]) -> None:
    assert accelerators_in(gres) == found


@pytest.mark.parametrize(
    ("node_list", "nodes"),
    [
        ("", ()),
        ("node1", ("node1",)),
        ("node[1-3]", ("node1", "node2", "node3")),
        ("node[1,3],login", ("node1", "node3", "login")),
        ("gpu[009-011]", ("gpu009", "gpu010", "gpu011")),
        ("rack[1-2]n[1-2]", ("rack1n1", "rack1n2", "rack2n1", "rack2n2")),
        ("a[1-2]-ib,b", ("a1-ib", "a2-ib", "b")),
    ],
)
def test_lists_of_nodes(node_list: str, nodes: tuple[str, ...]) -> None:
    assert expand(node_list) == nodes


LINE = "slurmstepd-node1: error: *** JOB 7 ON node1 CANCELLED AT 2026-11-22T06:34:01{} ***\n"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("", None),
        (" DUE TO PREEMPTION", Cause.PREEMPTED),
        (" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", Cause.NODE_LOST),
        (" DUE TO TIME LIMIT", Cause.TIME_LIMIT),
        (" DUE TO JOB REQUEUE", Cause.REQUEUED),
    ],
)
def test_why_a_batch_script_was_killed(words: str, cause: Cause | None) -> None:
    earlier = LINE.format(" DUE TO NODE FAILURE")
    found = cause_of_the_kill(earlier + "something else\n" + LINE.format(words), "7")
    at = datetime(2026, 11, 22, 6, 34, 1).astimezone().timestamp()
    assert found == ((cause, at) if cause else None)


def test_what_an_earlier_turn_was_killed_for_says_nothing_of_a_later_one() -> None:
    at = datetime(2026, 11, 22, 6, 34, 1).astimezone().timestamp()
    log = LINE.format(" DUE TO PREEMPTION")
    assert cause_of_the_kill(log, "7", since=at + 0.9) == (Cause.PREEMPTED, at)
    assert cause_of_the_kill(log, "7", since=at + 1) is None


def test_what_another_job_was_killed_for_says_nothing() -> None:
    assert cause_of_the_kill(LINE.format(" DUE TO PREEMPTION"), "8") is None
