"""What every backend promises, shown on every backend: the smallest one, this machine, hosts with a real sshd, a real
Slurm, a real API server of Kubernetes with doubles behind it, and a cloud on this machine behind the command of
SkyPilot."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.backends.beds import PATIENCE_S, Bed, Job, KubernetesBed, LocalBed, SlurmBed, SmallBed, SshBed, wait_until
from tests.backends.skypilot.bed import SkyPilotBed
from tests.backends.ssh_hosts import NEEDS_SSHD
from trainworks.errors import EnvironmentProblem, UnreachableError, UsageError
from trainworks.jobs.state import Cause, JobState
from trainworks.jobs.store import JobStore
from trainworks.record.events.log import read_events
from trainworks.recover.failures import first_failure
from trainworks.recover.restarts import restarts_used

HOSTILE = 'it\'s "a" value\nof $(touch pwned) `touch pwned` ; touch pwned & | > < * ? ~ \\ # ! é'
UP = "echo up; "
OBEYS = "trap 'echo saved; exit 0' TERM; echo up; sleep 600 & wait"
STUBBORN = "trap '' TERM; echo up; while true; do sleep 1; done"
TELLS = 'touch "$TRAINWORKS_RUN_DIR/heard"'
UNTIL_HEARD = 'until test -e "$TRAINWORKS_RUN_DIR/heard"; do sleep 0.1; done'
ONCE = '"$TRAINWORKS_RUN_DIR/done-$RANK"'
FOR_EVER_ONCE = f"test -e {ONCE} && exec echo up; touch {ONCE}; echo up; sleep 600"
"""Who reads `up` can take the node away: the rank has noted before that it has been there."""


def beds(*, at_night: Collection[str] = (), other: Mapping[str, str] | None = None) -> list[Any]:
    """Every backend; those that run at night alone have the same law among their own tests of the same cluster.

    Those of `ssh` are of the queue, which is that of `local`. `other` are backends that promise something else, with
    what that is.
    """
    of_a_cluster = {"ssh": [NEEDS_SSHD], "slurm": [pytest.mark.slurm], "kubernetes": [pytest.mark.kubernetes]}
    night = [pytest.mark.lane("nightly")]
    return [
        pytest.param(name, marks=[*of_a_cluster.get(name, []), *(night if name in at_night else [])])
        for name in ("small", "local", "ssh", "slurm", "kubernetes", "skypilot")
        if name not in (other or {})
    ]


def shown_alone(*names: str, **other: str) -> pytest.MarkDecorator:
    """A law that the tests of these clusters themselves show, too, or that asks nothing of them."""
    return pytest.mark.parametrize("bed", beds(at_night=names, other=other), indirect=True)


@pytest.fixture(params=beds())
def bed(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    """A backend with four idle nodes."""
    made: Bed
    if request.param == "local":
        monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))
        monkeypatch.setenv("TRAINWORKS_NODES", "4")
        made = LocalBed(tmp_path)
    elif request.param == "ssh":
        monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))
        made = SshBed(tmp_path)
    elif request.param == "slurm":
        cluster = request.getfixturevalue("cluster")
        folder = cluster.folder / tmp_path.name
        folder.mkdir()
        made = SlurmBed(folder, cluster)
    elif request.param == "kubernetes":
        made = KubernetesBed(tmp_path, request.getfixturevalue("_kubernetes"))
    elif request.param == "skypilot":
        made = SkyPilotBed(tmp_path)
    else:
        made = SmallBed(tmp_path)
    yield made
    made.close()


def is_over(job: Job) -> None:
    """Nothing of it is left."""
    wait_until(lambda: job.bed.left_of(job) == 0, lambda: f"{job.bed.left_of(job)} processes are left")


def nodes_of(job: Job) -> list[str]:
    """Where a job has succeeded."""
    (attempt,) = job.bed.store.attempts(job.wait_for("SUCCEEDED").id)
    return [one.node for one in attempt.placement]


@pytest.mark.lane("test")
def test_a_gang_starts_together_and_succeeds(bed: Bed) -> None:
    job = bed.submit(bed.job("echo rank $RANK of $WORLD_SIZE on node $NODE_RANK", nodes=4))
    row = job.end()
    assert (row.state, row.end.exit_code, row.attempt, row.end.cause) == (JobState.SUCCEEDED, 0, 1, None)
    assert [job.said(rank) for rank in range(4)] == [[f"rank {rank} of 4 on node {rank}"] for rank in range(4)]
    (attempt,) = bed.store.attempts(row.id)
    assert (attempt.state, len(attempt.placement)) == (JobState.SUCCEEDED, 4)
    is_over(job)


def test_the_roles_of_a_job_start_together_and_the_deciding_one_ends_it(bed: Bed) -> None:
    server = {"run": "echo up; exec sleep 600", "nodes": 2, "decides": False}
    asks = 'echo "$TRAINWORKS_ROLE $RANK/$WORLD_SIZE"; echo $TRAINWORKS_ADDRESSES_SERVER | tr , "\\n" | wc -l'
    job = submitted_or_refused(bed, server=server, trainer={"run": f"sleep 1; {asks}", "nodes": 2})
    if job is None:
        return
    row = job.end()
    assert (row.state, row.end.exit_code, row.attempt) == (JobState.SUCCEEDED, 0, 1)
    assert [job.said(rank) for rank in range(4)] == [["up"], ["up"], ["trainer 0/2", "2"], ["trainer 1/2", "2"]]
    (attempt,) = bed.store.attempts(row.id)
    assert len(attempt.placement) == 4
    assert [role.name for role in row.spec.roles if role.decides] == ["trainer"]
    is_over(job)


def submitted_or_refused(bed: Bed, **roles: dict[str, Any]) -> Job | None:
    """A job with these roles; None on a backend that has none and says so."""
    wanted = bed.job_of_roles(**roles)
    if "roles" not in bed.backend.unsupported:
        return bed.submit(wanted)
    with pytest.raises(UsageError, match="does not support `roles`"):
        bed.backend.check(wanted.spec)
    return None


def test_a_role_that_fails_ends_the_others_and_is_named(bed: Bed) -> None:
    server = {"run": f"echo up; {TELLS}; exec sleep 600", "decides": False}
    job = submitted_or_refused(bed, trainer={"run": f"{UNTIL_HEARD}; exit 9"}, server=server)
    if job is None:
        return
    row = job.end()
    assert (row.state, row.end.cause, row.end.exit_code, row.attempt) == (JobState.FAILED, "user_error", 9, 1)
    if bed.keeps_record:
        failure = first_failure(read_events(bed.record(job).events_file))
        assert failure is not None and (failure["rank"], failure.get("role")) == (0, "trainer")
    else:
        assert "role `trainer`" in (row.end.message or "")
    is_over(job)


def test_a_role_with_restarts_of_its_own_starts_again_while_the_others_run_on(bed: Bed) -> None:
    fails_once = f"echo up; if test -e {ONCE}; then {TELLS}; exec sleep 600; fi; touch {ONCE}; exit 3"
    job = submitted_or_refused(
        bed,
        trainer={"run": f"echo up; {UNTIL_HEARD}"},
        server={"run": fails_once, "decides": False, "restarts": 1},
    )
    if job is None:
        return
    row = job.end()
    assert (row.state, row.attempt, row.restarts) == (JobState.SUCCEEDED, 1, 0)
    assert [job.said(rank) for rank in range(2)] == [["up"], ["up", "up"]]
    is_over(job)


def test_lines_are_there_while_the_job_runs(bed: Bed) -> None:
    job = bed.start("echo up; sleep 600")
    assert (job.row.state, job.said(0), job.said(1)) == (JobState.RUNNING, ["up"], ["up"])
    assert job.row.placement and job.row.reachable


@shown_alone("slurm", "kubernetes")
def test_a_stop_is_a_clean_end(bed: Bed) -> None:
    job = bed.start(OBEYS, grace="60 s")
    job.stop()
    row = job.end()
    assert (row.state, row.end.cause) == (JobState.STOPPED, None)
    assert [job.said(rank)[-1] for rank in range(2)] == ["saved", "saved"]
    is_over(job)


@shown_alone("kubernetes")
def test_a_stop_at_once_ends_what_does_not_listen(bed: Bed) -> None:
    job = bed.start(STUBBORN)
    job.stop(at_once=True)
    assert job.end().state is JobState.STOPPED
    is_over(job)


def test_a_job_that_has_ended_is_left_alone_by_a_stop(bed: Bed) -> None:
    job = bed.submit(bed.job("true"))
    job.end()
    job.stop()
    assert job.end().state is JobState.SUCCEEDED


@shown_alone("ssh", "slurm", "kubernetes")
def test_a_failing_rank_ends_the_gang_and_is_named(bed: Bed) -> None:
    job = bed.submit(bed.job("echo up; test $RANK = 1 && exit 9; sleep 600", nodes=3))
    row = job.end()
    (attempt,), status = bed.store.attempts(row.id), bed.record(job).read_status()
    assert (row.state, row.end.cause, row.end.exit_code, row.attempt) == (JobState.FAILED, "user_error", 9, 1)
    assert not bed.keeps_record or (row.end.hint or "").startswith("set `recover: {max_restarts: 3}`")
    assert replace(row.end, at=None) == replace(attempt.end, at=None)
    assert (row.end.cause, row.end.hint, row.end.exit_code) == (status.cause, status.hint, status.exit_code)
    if bed.keeps_record:
        failure = first_failure(read_events(bed.record(job).events_file))
        assert failure is not None and failure["rank"] == 1
    is_over(job)


def test_a_lost_node_ends_an_attempt_and_no_job(bed: Bed) -> None:
    job = bed.start(FOR_EVER_ONCE, nodes=3, restarts=1)
    lost_node = job.row.placement[1].node
    bed.lose_a_node(job)
    *lost, last = bed.store.attempts(job.end().id)
    assert [one.state for one in lost] == [JobState.FAILED] * bed.requeues
    assert {one.end.cause for one in lost} <= bed.causes_of_a_lost_node
    assert (last.state, len(last.placement)) == (JobState.SUCCEEDED, 3)
    assert not bed.requeues or not bed.names_machines or lost_node not in {place.node for place in last.placement}
    times = [time for one in (*lost, last) for time in (one.started_at, one.ended_at)]
    assert times == sorted(times, key=float)
    assert times_up(job) == [2, 2, 2]
    is_over(job)


def times_up(job: Job) -> list[int]:
    """How often each rank has started."""
    return [job.said(rank).count("up") for rank in range(job.spec.max_nodes)]


def wait_until_up(job: Job, times: int) -> None:
    """Until every rank has started so often; some backends act only when a command looks."""
    ranks = job.spec.max_nodes
    wait_until(lambda: job.row and times_up(job) == [times] * ranks, lambda: f"{job.row} {times_up(job)}")


@shown_alone("ssh", "kubernetes", skypilot="it rents other nodes at no cost in restarts")
def test_a_lost_node_ends_a_job_without_restarts(bed: Bed) -> None:
    job = bed.start(FOR_EVER_ONCE, nodes=3)
    bed.lose_a_node(job)
    row = job.end()
    status = bed.record(job).read_status()
    assert row.state is JobState.FAILED and row.end.cause in bed.causes_of_a_lost_node
    assert (status.state, status.cause) == ("FAILED", row.end.cause)
    assert times_up(job) == [1, 1, 1]
    is_over(job)


def test_every_level_takes_its_restarts_from_one_budget(bed: Bed) -> None:
    job = bed.start("echo up; sleep 600", restarts=2)
    bed.kill_the_supervisor(job)
    wait_until_up(job, 2)
    bed.kill_a_rank(job)
    wait_until_up(job, 3)
    bed.kill_the_supervisor(job)
    assert job.end().state is JobState.FAILED
    assert times_up(job) == [3, 3]
    used = restarts_used(read_events(bed.record(job).events_file)) if bed.keeps_record else 2
    assert used <= 3 and job.row.restarts == used
    is_over(job)


@shown_alone("ssh")
def test_a_user_who_retries_a_job_gives_it_all_restarts_again(bed: Bed) -> None:
    job = bed.submit(bed.job("echo up; exit 9", nodes=1, restarts=1))
    first = job.end()
    bed.retry(first)
    wait_until_up(job, 4)
    assert (first.state, job.end().state) == (JobState.FAILED, JobState.FAILED)
    assert times_up(job) == [4]


def test_the_times_of_an_attempt_are_the_jobs_and_not_those_of_a_look(bed: Bed) -> None:
    job = bed.submit(bed.job("date +%s.%N; sleep 1; date +%s.%N", nodes=1))
    wait_until(lambda: bed.has_ended(job))  # nothing but the backend knows
    done_at = time.time()
    wait_until(lambda: time.time() > done_at + 9)
    row = job.end()
    (attempt,) = bed.store.attempts(row.id)
    began, done = map(float, job.said(0))
    assert attempt.started_at <= began < int(done) <= (attempt.ended_at or 0.0)
    assert (row.started_at, row.ended_at) == (attempt.started_at, attempt.ended_at)
    assert (row.ended_at or 0.0) < done_at + 8


@shown_alone("ssh", "slurm", "kubernetes")  # `check_waits` asks the store
def test_only_a_job_that_waits_can_be_held(bed: Bed) -> None:
    job = bed.start(OBEYS)
    with pytest.raises(UsageError, match=r"cannot hold job .* it is RUNNING"):
        bed.hold(job.row)
    job.stop()
    with pytest.raises(UsageError, match=r"cannot hold job .* it is STOPPED"):
        bed.hold(job.end())


@shown_alone("kubernetes")
def test_a_failed_job_is_retried_in_its_run_directory(bed: Bed) -> None:
    job = bed.submit(bed.job(f"test -e {ONCE} && exit 0; touch {ONCE}; exit 3", nodes=1))
    first = job.end()
    bed.retry(first)
    second = job.wait_for("SUCCEEDED")
    assert (first.state, second.id, second.attempt) == (JobState.FAILED, first.id, 2)
    assert [one.state for one in bed.store.attempts(first.id)] == [JobState.FAILED, JobState.SUCCEEDED]


@shown_alone("ssh", "slurm", "kubernetes", skypilot="it refuses `hold`")
def test_a_held_job_waits_until_it_is_released(bed: Bed) -> None:
    job = bed.submit(bed.job("true", hold=True))
    wait_until(lambda: job.row.reason is not None)
    row = job.row
    assert (row.state, row.attempt) == (JobState.QUEUED, 0)
    bed.backend.release(row.handle or str(row.id))
    assert job.end().state is JobState.SUCCEEDED


@shown_alone(skypilot="it refuses `hold`")
def test_a_waiting_job_is_edited_or_the_backend_says_that_it_cannot(bed: Bed) -> None:
    job = bed.submit(bed.job("true", hold=True))
    wait_until(lambda: job.row.reason is not None)
    row = job.row
    edited = replace(row.spec, name="renamed", priority=10, max_restarts=3)
    if "edit" in bed.backend.unsupported:
        with pytest.raises(UsageError, match="does not support `edit`"):
            bed.backend.edit(row.handle or str(row.id), row.spec, edited)
    else:
        edited = replace(edited, time_limit_s=900.0, exclude=(bed.backend.nodes()[0].name,))
        bed.backend.edit(row.handle or str(row.id), row.spec, edited)
        bed.check_edited(row, edited)
    bed.backend.release(row.handle or str(row.id))
    assert job.end().state is JobState.SUCCEEDED


@shown_alone("ssh", skypilot="it refuses `hold`")
def test_a_job_that_waits_can_be_stopped(bed: Bed) -> None:
    job = bed.submit(bed.job("touch began", hold=True))
    wait_until(lambda: job.row.reason is not None)
    job.stop()
    assert job.end().state is JobState.STOPPED
    assert not list(bed.folder.rglob("began"))


def test_a_command_runs_in_the_code_as_it_was_when_the_job_was_made(bed: Bed) -> None:
    here = f'test "$PWD" -ef {bed.code} && echo in the copy'
    (bed.code_folder / "weights.bin").write_bytes(os.urandom(10**6))  # nearly what a Secret of Kubernetes holds
    (bed.code_folder / "train.sh").write_text("version one\n")
    job = bed.job(f"cat train.sh; stat --format=%s weights.bin; {here}", keep_code=True)
    (bed.code_folder / "train.sh").write_text("version two\n")
    assert bed.submit(job).end().state is JobState.SUCCEEDED
    assert [job.said(rank) for rank in range(2)] == [["version one", "1000000", "in the copy"]] * 2


def test_a_job_waits_for_the_one_that_it_depends_on(bed: Bed) -> None:
    if "depends_on" in bed.backend.unsupported:
        with pytest.raises(UsageError, match="does not support `depends_on`"):
            bed.backend.check(bed.job("true", depends_on=["t-1"]).spec)
        return
    first = bed.submit(bed.job("sleep 2; touch ../first", nodes=1))
    second = bed.submit(bed.job("test -e ../first", nodes=1, depends_on=[first.run_dir.run_id]))
    assert (second.end().state, first.end().state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)


@shown_alone("ssh")
def test_a_job_may_wait_for_the_end_of_one_that_fails(bed: Bed) -> None:
    if "depends_on" in bed.backend.unsupported:
        pytest.skip(f"{bed.backend.name} has no dependencies, and the test above shows the refusal")
    first = bed.submit(bed.job("sleep 2; touch ../first; exit 3", nodes=1))
    second = bed.submit(bed.job("test -e ../first", nodes=1, depends_on=[f"afterany:{first.run_dir.run_id}"]))
    assert (second.end().state, first.end().state) == (JobState.SUCCEEDED, JobState.FAILED)


@shown_alone("ssh", "kubernetes")
def test_the_same_run_is_submitted_once(bed: Bed) -> None:
    job = bed.submit(bed.job(f"echo up; {UNTIL_HEARD}", nodes=1))
    again = bed.submit(job)
    job.wait_until_said("up", 1)
    (bed.shared(job) / "heard").touch()
    assert (again.end().state, job.said(0)) == (JobState.SUCCEEDED, ["up"])
    assert [row.run_id for row in bed.store.search()] == [job.run_dir.run_id]


def test_a_submission_is_accepted_or_leaves_nothing(bed: Bed) -> None:
    job = bed.job("true", nodes=1)
    bed.silence()
    try:
        if not bed.tells_of_silence:  # this machine's queue needs nobody but the store
            bed.submit(job)
        else:
            with pytest.raises(UnreachableError):
                bed.submit(job)
    finally:
        bed.answer()
    if not bed.tells_of_silence:
        assert job.end().state is JobState.SUCCEEDED
        return
    bed.look()
    assert (bed.store.search(), bed.backend.find(job.run_dir)) == ([], None)
    assert job.run_dir.read_status().state == "CREATED"
    assert bed.submit(job).end().state is JobState.SUCCEEDED


def test_a_submission_whose_answer_is_lost_is_accepted_and_runs_once(bed: Bed) -> None:
    job = bed.job("echo up; sleep 2", nodes=1)
    with bed.lost_answers():
        bed.submit(job)
        row = bed.store.find(str(job.run_dir.path.resolve()))
        assert row is not None
        assert (row.state, row.handle, row.reachable) == (JobState.QUEUED, None, False)
    row = job.end()
    assert (row.state, row.attempt, job.said(0)) == (JobState.SUCCEEDED, 1, ["up"])


def test_the_store_takes_a_job_or_nothing_is_left(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*asked: object, **named: object) -> None:
        raise EnvironmentProblem("the job store does not answer: database or disk is full")

    job = bed.job("true", nodes=1)
    with monkeypatch.context() as patched:
        patched.setattr(JobStore, "add", full)
        with pytest.raises(EnvironmentProblem, match="disk is full"):
            bed.submit(job)
    bed.look()
    assert (bed.store.search(), bed.backend.find(job.run_dir)) == ([], None)
    assert job.run_dir.read_status().state == "CREATED"
    assert not job.run_dir.environment_file.exists()


def test_a_job_that_waits_for_none_is_refused(bed: Bed) -> None:
    if "depends_on" in bed.backend.unsupported:
        with pytest.raises(UsageError, match="does not support `depends_on`"):
            bed.backend.check(bed.job("true", depends_on=["gone-1"]).spec)
        return
    job = bed.job("true", depends_on=["gone-1"])
    with pytest.raises(UsageError, match="names job `gone-1`, which does not exist"):
        bed.submit(job)
    assert (bed.store.search(), job.run_dir.read_status().state) == ([], "CREATED")


@shown_alone("ssh")
def test_a_job_that_waits_for_one_that_has_failed_fails_at_once(bed: Bed) -> None:
    if "depends_on" in bed.backend.unsupported:
        pytest.skip("this backend has no `depends_on`")
    first = bed.submit(bed.job("exit 3", nodes=1))
    first.end()
    second = bed.submit(bed.job("true", depends_on=[first.run_dir.run_id]))
    row, status = second.end(), second.run_dir.read_status()
    assert (row.state, row.end.cause, row.attempt) == (JobState.FAILED, Cause.DEPENDENCY, 0)
    assert row.end.message == f"a job it depends on did not succeed: {first.run_dir.run_id} is FAILED"
    assert (status.state, status.cause, status.message) == ("FAILED", "dependency", row.end.message)


@shown_alone("kubernetes")
def test_nothing_that_a_user_writes_is_run_by_a_shell_of_ours(bed: Bed) -> None:
    job = bed.submit(bed.job('printf %s "$HOSTILE"', nodes=1, envs={"HOSTILE": HOSTILE}))
    assert job.end().state is JobState.SUCCEEDED
    assert job.said(0) == HOSTILE.splitlines()
    assert not list(bed.folder.rglob("pwned"))


def test_a_word_that_nobody_knows_is_no_failure(bed: Bed) -> None:
    job = bed.start(OBEYS)
    with bed.strange_word():
        row = job.wait_for("UNKNOWN")
        assert (row.raw, row.attempt) == ("HIBERNATING", 1)
    assert job.wait_for("RUNNING").attempt == 1
    job.stop()
    assert job.end().state is JobState.STOPPED


@shown_alone("kubernetes")
def test_silence_is_no_failure(bed: Bed) -> None:
    # of an end in silence Slurm hears late
    job = bed.start(f"echo up; sleep 2; echo went on; {UNTIL_HEARD}", nodes=2)
    bed.silence()
    try:
        row = job.row
        assert (row.state, row.attempt) == (JobState.RUNNING, 1)
        assert row.reachable is not bed.tells_of_silence
        job.wait_until_said("went on", 2)
    finally:
        bed.answer()
    (bed.shared(job) / "heard").touch()
    row = job.end()
    assert (row.state, row.attempt, row.reachable) == (JobState.SUCCEEDED, 1, True)


@shown_alone(skypilot="`sky` has no way into a managed job")
def test_a_command_enters_a_running_job_and_ends_with_it(bed: Bed) -> None:
    job = bed.start(OBEYS, envs={"COLOUR": "blue"})
    words = ["sh", "-c", 'echo "$COLOUR $RANK"; printf "%s\n" "$1"; cat; exit 7', "sh", HOSTILE]
    entering = bed.entering(job, words, node=1)
    done = subprocess.run(entering, input="typed\n", capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"blue 1\n{HOSTILE}\ntyped\n", 7), done.stderr
    assert not list(bed.folder.rglob("pwned"))
    with subprocess.Popen(bed.entering(job, ["sh", "-c", "echo in; exec sleep 600"], node=0), stdout=-1) as inside:
        assert inside.stdout is not None and inside.stdout.readline() == b"in\n"
        job.stop()
        assert job.end().state is JobState.STOPPED
        is_over(job)
        inside.wait(PATIENCE_S)


@shown_alone("ssh", "slurm", "kubernetes", skypilot="it has no nodes but those of its jobs")
def test_a_drained_node_gets_no_job(bed: Bed) -> None:
    name = bed.backend.nodes()[0].name
    bed.backend.drain(name, "fan 'broken' $(id)")
    try:
        node = bed.backend.nodes()[0]
        assert (node.state, node.reason) == ("drained", "fan 'broken' $(id)")
        assert name not in nodes_of(bed.submit(bed.job("true", nodes=3)))
    finally:
        bed.backend.undrain(name)
    assert bed.backend.nodes()[0].state == "free"


@shown_alone(skypilot="it refuses `exclude`")
def test_an_excluded_node_is_not_taken(bed: Bed) -> None:
    name = bed.backend.nodes()[1].name
    assert name not in nodes_of(bed.submit(bed.job("true", nodes=3, exclude=[name])))
