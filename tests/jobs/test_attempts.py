"""Attempts of a job, as its events tell them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trainworks.backends.next_state import attempts_of
from trainworks.jobs.job_row import JobRow, Placement
from trainworks.jobs.job_spec import JobSpec, NodeResources, RoleSpec
from trainworks.jobs.state import JobState
from trainworks.record.events.log import append_event, read_events
from trainworks.record.exit_code import End
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus

SPEC = JobSpec(run_id="t-1", name="t", min_nodes=2, max_nodes=2, node=NodeResources(cores=8.0, accelerators=2))
JOB = JobRow(
    id=1,
    run_id="t-1",
    run_dir="/runs/t-1",
    name="t",
    owner="ada",
    engine="slurm",
    spec=SPEC,
    end=End(JobState.RUNNING),
    submitted_at=0.0,
    changed_at=0.0,
    version=1,
)


def submitted(t: float, **fields: Any) -> dict[str, Any]:
    return {"t": t, "kind": "submitted", "hosts": ["node1", "node2"]} | fields


def state(t: float, state: str, cause: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"t": t, "kind": "state", "state": state, "cause": cause} | fields


def test_an_attempt_begins_when_the_job_got_its_nodes() -> None:
    (attempt,) = attempts_of(JOB, [submitted(20.0, started_at=10.0), state(21.0, "RUNNING")])
    assert (attempt.number, attempt.state, attempt.started_at, attempt.ended_at) == (1, JobState.RUNNING, 10.0, None)
    assert [(one.node, one.cores, one.devices) for one in attempt.placement] == [
        ("node1", 8.0, (0, 1)),
        ("node2", 8.0, (0, 1)),
    ]


def test_a_lost_node_and_a_preemption_end_attempts_with_their_causes() -> None:
    events = [
        submitted(10.0),
        state(11.0, "RUNNING"),
        state(90.0, "QUEUED", "node_lost", ended_at=30.0),
        submitted(91.0),
        state(95.0, "STOPPED"),
        state(96.0, "PREEMPTED", "preempted"),
        submitted(120.0),
        state(130.0, "SUCCEEDED"),
    ]
    told = [(one.state, one.end.cause, one.started_at, one.ended_at) for one in attempts_of(JOB, events)]
    assert told == [
        (JobState.FAILED, "node_lost", 10.0, 30.0),
        (JobState.PREEMPTED, "preempted", 91.0, 95.0),
        (JobState.SUCCEEDED, None, 120.0, 130.0),
    ]


def test_an_earlier_attempt_ends_as_its_supervisor_recorded(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    ended = End("QUEUED", "killed", "by SIGKILL", hint="look", exit_code=137, at=30.0)
    append_event(run_dir.events_file, {"kind": "submitted", "hosts": ["node1"]})
    run_dir.enter(RunStatus.of(ended, updated_at=31.0), ended_at=ended.at)
    append_event(run_dir.events_file, {"kind": "submitted", "hosts": ["node2"], "restarts": 1})
    events = read_events(run_dir.events_file)
    assert End.of_event(events[1]) == ended
    first, _ = attempts_of(JOB, events)
    assert first.end == replace(ended, state="FAILED", at=max(30.0, first.started_at))


def test_an_event_of_an_older_version_has_no_exit_code() -> None:
    assert End.of_event(state(1.0, "FAILED", "oom")) == End("FAILED", "oom", at=1.0)


def test_an_attempt_that_was_cut_off_ended_before_the_next_one() -> None:
    first, second = attempts_of(JOB, [submitted(10.0), state(12.0, "RUNNING"), submitted(50.0)])
    assert (first.state, first.ended_at, second.ended_at) == (JobState.FAILED, 12.0, None)


def test_a_run_without_a_start_has_no_attempt() -> None:
    assert attempts_of(JOB, [state(1.0, "QUEUED")]) == []


TIMES = st.floats(0, 1e9)
EVENTS = st.one_of(
    st.builds(submitted, TIMES, started_at=st.none() | TIMES),
    st.builds(state, TIMES, st.sampled_from(["STARTING", "RUNNING", "QUEUED", "FAILED"]), ended_at=st.none() | TIMES),
)


@given(st.lists(EVENTS))
def test_no_attempt_lasts_less_than_no_time(events: list[dict[str, Any]]) -> None:
    """Whatever the clocks of the nodes say."""
    attempts = attempts_of(JOB, events)
    assert all(one.ended_at is None or one.ended_at >= one.started_at for one in attempts)
    assert [one.number for one in attempts] == list(range(1, len(attempts) + 1))
    assert all(one.ended_at is not None for one in attempts[:-1])


def test_a_node_is_held_with_what_its_role_requests() -> None:
    gpus, cores = NodeResources(cores=8.0, accelerators=2), NodeResources(cores=1.0)
    roles = (RoleSpec(name="trainer", nodes=1, node=gpus), RoleSpec(name="server", nodes=2, node=cores))
    job = replace(JOB, spec=replace(JOB.spec, node=gpus, roles=roles))
    (attempt,) = attempts_of(job, [submitted(10.0) | {"hosts": ["a", "b", "c"]}])
    assert attempt.placement == (Placement("a", 8.0, (0, 1)), Placement("b", 1.0, ()), Placement("c", 1.0, ()))
