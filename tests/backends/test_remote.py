"""Jobs of other engines: what becomes of them is a table, and nothing is lost where somebody is killed or silent."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.backends.small_backend import Job, Site, SmallBackend
from tests.fakes import FakeClock, resolved_command
from trainworks.backends.backend import JobStatus, RenderedJob
from trainworks.backends.job_tag import mark_of
from trainworks.backends.next_state import is_requeue_lost, may_be_lost, next_step, of_this_job
from trainworks.backends.registry import backend_for, backend_of_job, cluster_of, shares_files
from trainworks.backends.remote import follow_all, hand_over, hand_over_again, withdraw
from trainworks.config.run_file import RunFile
from trainworks.errors import EnvironmentProblem, UnreachableError, UsageError
from trainworks.files import take_lock
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.state import Cause, JobState
from trainworks.jobs.store import JobStore, open_store
from trainworks.record.events.log import append_event, read_events
from trainworks.record.exit_code import End
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.recover.restarts import restarts_counted

Q, S, R, P = JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.PREEMPTED
OK, BAD, STOP, WHO = JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED, JobState.UNKNOWN
NOW = 1_760_000_000.0
SPEC = JobSpec(run_id="t-1", name="t", min_nodes=1, max_nodes=1, node=NodeResources(cores=1.0))
ROW = JobRow(
    id=1,
    run_id="t-1",
    run_dir="/runs/t-1",
    name="t",
    owner="ada",
    engine="slurm",
    handle="7",
    spec=SPEC,
    end=End(R),
    submitted_at=NOW,
    changed_at=NOW,
    version=1,
)


@pytest.mark.parametrize(
    ("seen", "said", "then"),
    [
        (OK, OK, OK),
        (BAD, OK, OK),  # the run directory knows better why, and whether
        (BAD, BAD, BAD),
        (STOP, STOP, STOP),
        (BAD, R, BAD),
        (STOP, Q, STOP),
        (OK, Q, OK),  # another machine wrote the end, or none did
        (Q, Q, Q),
        (Q, P, P),
        (P, R, P),
        (Q, BAD, Q),  # retried
        (S, Q, S),
        (R, S, S),
        (R, R, R),
        (R, JobState.RECOVERING, JobState.RECOVERING),
        (R, Q, S),
        (R, WHO, R),
        (WHO, R, WHO),
    ],
)
def test_the_next_state_of_a_job(seen: JobState, said: JobState, then: JobState) -> None:
    step = next_step(ROW, JobStatus(state=seen, raw="WORD"), RunStatus(state=said), NOW)
    assert step is not None
    assert (step.state, step.columns["raw"]) == (then, "WORD")


def test_the_cause_is_the_run_directorys() -> None:
    status = RunStatus(state=BAD, cause="oom", message="rank 3", exit_code=1, updated_at=NOW - 5)
    step = next_step(ROW, JobStatus(state=BAD, cause=Cause.USER_ERROR, exit_code=9), status, NOW)
    assert step is not None and step.end.at == NOW - 5
    assert (step.end.cause, step.end.message, step.end.exit_code) == ("oom", "rank 3", 1)


def test_without_a_last_word_the_cause_is_the_backends() -> None:
    step = next_step(ROW, JobStatus(state=BAD, raw="TIMEOUT", cause=Cause.TIME_LIMIT), RunStatus(state=R), NOW)
    assert step is not None
    assert (step.end.cause, step.end.message) == ("time_limit", "time limit reached: TIMEOUT")


@pytest.mark.parametrize(
    ("asked", "who", "cause", "said", "message"),
    [
        ("stop", "cancelled in Slurm by root", None, None, "stopped by root"),  # its script cancels it then
        ("stop", None, None, "stopped by root", "stopped by root"),  # its dispatcher has said it
        (None, "cancelled in Slurm by root", None, None, "cancelled in Slurm by root"),
        (None, "cancelled in Slurm by root", "killed", "not saved", "cancelled in Slurm by root; not saved"),
        (None, "cancelled in Slurm by root", "idle", "it was idle", "it was idle"),
        (None, None, None, None, None),
    ],
)
def test_a_stopped_job_says_by_whom_if_that_is_known(
    asked: str | None, who: str | None, cause: str | None, said: str | None, message: str | None
) -> None:
    job = replace(ROW, asked_to_end=asked, asked_by=0)
    status = RunStatus(state=STOP, cause=cause, message=said, exit_code=0)
    step = next_step(job, JobStatus(state=STOP, ended_by=who), status, NOW)
    assert step is not None and (step.end.cause, step.end.message) == (cause, message)


def test_a_success_that_the_run_does_not_confirm_is_a_failure_after_a_while() -> None:
    """Slurm says COMPLETED of a batch script that ended well, though what it supervised may have been killed."""
    ended = JobStatus(state=OK, raw="COMPLETED", ended_at=NOW)
    assert next_step(ROW, ended, RunStatus(state=R), NOW + 10) is None
    step = next_step(ROW, ended, RunStatus(state=R), NOW + 60)
    assert step is not None and (step.state, step.end.cause) == (BAD, "unknown")
    assert "slurm says COMPLETED" in (step.end.message or "")
    assert next_step(ROW, ended, RunStatus(state=OK, exit_code=0), NOW).state is OK  # type: ignore[union-attr]


def test_a_job_that_its_backend_forgot_has_failed_only_after_a_while() -> None:
    assert next_step(ROW, None, RunStatus(state=R), NOW + 10) is None
    step = next_step(ROW, None, RunStatus(state=R), NOW + 60)
    assert step is not None and (step.state, step.end.cause) == (BAD, "unknown")
    assert "slurm does not know job 7" in (step.end.message or "")


@pytest.mark.parametrize(
    ("said", "now_s", "asked", "may_be"),
    [
        (Q, 10, None, True),
        (Q, 10, "stop", False),
        (R, 10, None, False),  # its processes may still be ending
        (R, 40, None, True),
        (OK, 40, None, False),
        (WHO, 40, None, False),
    ],
)
def test_a_job_that_is_not_listed_can_be_submitted_again_unless_it_ended_or_may_still_run(
    said: JobState, now_s: float, asked: str | None, may_be: bool
) -> None:
    assert may_be_lost(replace(ROW, asked_to_end=asked), RunStatus(state=said), NOW + now_s) is may_be


@pytest.mark.parametrize(
    ("on", "said", "cause", "start_s", "now_s", "is_lost"),
    [
        (R, Q, "agent_lost", -9, 120, True),
        (S, P, "preempted", -9, 120, True),
        (R, Q, "agent_lost", -9, 119, False),  # its script may still be ending
        (R, Q, "agent_lost", 5, 120, False),  # it has its nodes for the next turn
        (R, Q, None, -9, 120, False),  # it was submitted, and has not begun to write
        (R, R, None, -9, 120, False),
        (Q, Q, "agent_lost", None, 120, False),
    ],
)
def test_a_requeue_that_the_backend_forgot_is_noticed(
    on: JobState, said: JobState, cause: str | None, start_s: float | None, now_s: float, is_lost: bool
) -> None:
    status = JobStatus(state=on, starts_at=None if start_s is None else NOW + start_s)
    assert is_requeue_lost(status, RunStatus(state=said, cause=cause, updated_at=NOW), NOW + now_s) is is_lost


@pytest.mark.parametrize(
    ("tag", "is_its_own"),
    [(mark_of(RunDir(Path("/runs/t-1"))), True), (None, True), ("billed to ada", True), ("trainworks:t-1:0", False)],
)
def test_the_status_of_another_job_that_got_the_same_number_is_not_that_of_a_lost_job(
    tag: str | None, is_its_own: bool
) -> None:
    status = JobStatus(state=OK, tag=tag)
    assert of_this_job(ROW, status) is (status if is_its_own else None)


def test_a_job_that_its_backend_forgot_ended_as_its_run_directory_says_or_as_somebody_asked() -> None:
    done = next_step(ROW, None, RunStatus(state=OK, exit_code=0), NOW)
    stopped = next_step(replace(ROW, asked_to_end="stop"), None, RunStatus(state=R), NOW)
    assert done is not None and stopped is not None
    assert (done.state, stopped.state) == (OK, STOP)


class Queue:
    """A store, a site, and runs to submit to it."""

    def __init__(self, folder: Path, clock: FakeClock) -> None:
        self.folder = folder
        self.store: JobStore = open_store(f"sqlite:///{folder / 'jobs.db'}")
        self.site = Site()
        self.clock = clock

    @property
    def backend(self) -> SmallBackend:
        return SmallBackend(self.site)

    def run_dir(self, number: int = 1) -> RunDir:
        run_dir = RunDir(self.folder / f"t-{number}")
        (run_dir.path / "logs").mkdir(parents=True)
        run_file = RunFile.model_validate({"name": "t", "run": "true", "cluster": "slurm"})
        run_dir.write_resolved(resolved_command(run_dir.run_id, run_file=run_file))
        return run_dir

    def submit(self, run_dir: RunDir, **wishes: object) -> JobRow:
        spec = replace(SPEC, run_id=run_dir.run_id, hold=True, **wishes)  # type: ignore[arg-type]
        return hand_over(self.store, self.backend, spec, run_dir, self.clock)

    def look(self) -> list[str]:
        return [str(error) for error in follow_all(self.store, self.clock, lambda run_dir: self.backend)]

    def row(self, number: int = 1) -> JobRow:
        row = self.store.get(number)
        assert row is not None
        return row


@pytest.fixture
def queue(tmp_path: Path, clock: FakeClock) -> Queue:
    """An empty one."""
    return Queue(tmp_path, clock)


def test_a_submission_that_was_cut_off_is_finished_by_whoever_looks(queue: Queue) -> None:
    run_dir = queue.run_dir()
    queue.store.add(replace(SPEC, hold=True), run_dir=str(run_dir.path), owner="ada", engine="small", now=NOW)
    assert queue.look() == []
    assert (queue.row().handle, list(queue.site.jobs)) == ("1", ["1"])
    queue.look()
    assert list(queue.site.jobs) == ["1"]


def test_one_that_another_process_is_submitting_now_is_left_to_it(queue: Queue) -> None:
    run_dir = queue.run_dir()
    queue.store.add(SPEC, run_dir=str(run_dir.path), owner="ada", engine="small", now=NOW)
    lock = take_lock(run_dir.submit_lock_file)
    assert lock is not None
    try:
        assert queue.look() == []
        with pytest.raises(EnvironmentProblem, match="t-1 is being submitted now"):
            queue.submit(run_dir)
    finally:
        os.close(lock)
    assert (queue.row().state, queue.row().handle, queue.site.jobs) == (Q, None, {})


def nothing_is_left(queue: Queue, run_dir: RunDir) -> bool:
    """Neither in the store, nor at the backend, nor in the run directory."""
    assert queue.look() == []
    return not queue.store.search() and not queue.site.jobs and run_dir.read_status().state == "CREATED"


def test_a_backend_that_does_not_answer_leaves_nothing_of_a_submission(queue: Queue) -> None:
    run_dir = queue.run_dir()
    queue.site.answers = False
    with pytest.raises(UnreachableError, match="does not answer") as away:
        queue.submit(run_dir)
    assert away.value.hint == "the job was not submitted; try again later"
    queue.site.answers = True
    assert nothing_is_left(queue, run_dir)


@pytest.mark.parametrize("problem", [UsageError("no such partition"), EnvironmentProblem("no `sky`"), OSError()])
def test_a_submission_that_fails_leaves_nothing(
    queue: Queue, problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(backend: SmallBackend, rendered: RenderedJob, run_dir: RunDir) -> str:
        raise problem

    run_dir = queue.run_dir()
    monkeypatch.setattr(SmallBackend, "submit", fail)
    with pytest.raises(type(problem)):
        queue.submit(run_dir)
    monkeypatch.undo()
    assert nothing_is_left(queue, run_dir)


def test_a_backend_that_gives_no_handle_is_named_instead_of_asked_again_by_every_poll(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SmallBackend, "submit", lambda *asked: "")
    with pytest.raises(EnvironmentProblem, match="small gave no handle for t-1, which it may have"):
        queue.submit(queue.run_dir())
    assert queue.store.search() == []


def test_a_store_that_takes_no_job_leaves_nothing(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*asked: object, **named: object) -> JobRow:
        raise EnvironmentProblem("the job store does not answer: database or disk is full")

    run_dir = queue.run_dir()
    monkeypatch.setattr(JobStore, "add", full)
    with pytest.raises(EnvironmentProblem, match="disk is full"):
        queue.submit(run_dir)
    assert nothing_is_left(queue, run_dir)


def test_a_submission_whose_answer_is_lost_is_accepted_and_found_once(queue: Queue) -> None:
    queue.site.loses_answers = True
    row = queue.submit(queue.run_dir())
    assert (row.state, row.handle, row.reachable, row.reason) == (Q, None, False, "the small backend did not answer")
    queue.site.loses_answers = False
    assert queue.look() == []
    assert (queue.row().handle, queue.row().reachable, list(queue.site.jobs)) == ("1", True, ["1"])


@pytest.mark.parametrize("state", [Q, R])
def test_a_job_that_its_backend_lost_in_a_crash_is_submitted_again(
    queue: Queue, state: JobState, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = queue.run_dir()
    row = queue.submit(run_dir)
    if state is R:
        append_event(run_dir.events_file, {"kind": "submitted", "nodes": 1, "hosts": ["small1"], "restarts": 0})
        append_event(run_dir.events_file, {"kind": "state", "state": R, "cause": None, "message": None})
        run_dir.write_status(RunStatus(state=R))
        queue.store.move(row.id, JobState.STARTING, now=NOW)
        queue.store.move(row.id, R, now=NOW)
    del queue.site.jobs["1"]
    queue.site.jobs["another"] = Job(SPEC, RunDir(queue.folder / "another"), held=True)
    monkeypatch.setattr(SmallBackend, "has_lost", lambda backend, seen_at, now: True)
    queue.clock.sleep(60.0)
    assert queue.look() == [] and queue.look() == []
    assert (queue.row().state, queue.row().handle, list(queue.site.jobs)) == (Q, "2", ["another", "2"])
    events = read_events(run_dir.events_file)
    assert restarts_counted(events, waits=True) == queue.row().restarts == 0
    assert [event["message"] for event in events if event["kind"] == "state"][1:] == (
        ["small crashed and lost job 1"] if state is R else []
    )


def test_a_job_that_its_backend_may_have_is_not_called_stopped(queue: Queue) -> None:
    queue.site.loses_answers = True
    row = queue.submit(queue.run_dir())
    with pytest.raises(UnreachableError, match="may have it"):
        withdraw(queue.store, row, queue.clock)
    assert queue.row().state == Q


def test_a_retry_that_fails_leaves_the_job_as_it_was(queue: Queue) -> None:
    run_dir = queue.run_dir()
    row = queue.submit(run_dir)
    queue.store.move(row.id, End(BAD, "oom", "rank 3", exit_code=1), now=NOW)
    run_dir.write_status(RunStatus(state=BAD, cause="oom"))
    before = queue.row()
    queue.site.answers = False
    with pytest.raises(UnreachableError):
        hand_over_again(queue.store, queue.backend, before, queue.clock)
    assert replace(queue.row(), version=before.version) == before
    assert run_dir.read_status().cause == "oom"


def test_a_cut_off_submission_that_is_refused_later_has_failed_and_says_why(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(backend: SmallBackend, rendered: RenderedJob, run_dir: RunDir) -> str:
        raise UsageError("Invalid partition name specified")

    run_dir = queue.run_dir()
    held = replace(SPEC, hold=True)
    queue.store.add(held, run_dir=str(run_dir.path), owner="ada", engine="small", now=NOW)
    monkeypatch.setattr(SmallBackend, "submit", refuse)
    assert queue.look() == []
    row = queue.row()
    assert (row.state, row.end.cause, row.end.message) == (BAD, "launch_failed", "Invalid partition name specified")
    assert run_dir.read_status().state == BAD
    monkeypatch.undo()
    again = hand_over_again(queue.store, queue.backend, queue.row(), queue.clock)
    assert (again.state, again.handle, run_dir.read_status().state) == (Q, "1", Q)


def test_a_job_waits_for_others_by_the_backends_names(queue: Queue) -> None:
    first = queue.submit(queue.run_dir(1))
    queue.submit(queue.run_dir(2), depends_on=("t-1",))
    queue.submit(queue.run_dir(3), depends_on=(str(first.id),))
    assert [queue.site.jobs[handle].spec.depends_on for handle in ("2", "3")] == [("1",), ("1",)]
    assert queue.row(2).spec.depends_on == ("t-1",)


def test_a_job_does_not_wait_for_one_that_has_succeeded(queue: Queue) -> None:
    first = queue.submit(queue.run_dir(1))
    queue.store.move(first.id, OK, now=NOW)
    queue.submit(queue.run_dir(2), depends_on=("t-1",))
    assert queue.site.jobs["2"].spec.depends_on == ()


def test_a_job_that_waits_for_a_failed_one_never_reaches_the_backend(queue: Queue) -> None:
    first = queue.submit(queue.run_dir(1))
    queue.store.move(first.id, BAD, now=NOW)
    row = queue.submit(queue.run_dir(2), depends_on=("t-1",))
    assert (row.state, row.end.cause, row.end.message) == (
        BAD,
        "dependency",
        "a job it depends on did not succeed: t-1 is FAILED",
    )
    assert list(queue.site.jobs) == ["1"]
    with pytest.raises(UsageError, match="names job `t-1`, which is FAILED"):
        hand_over_again(queue.store, queue.backend, row, queue.clock)


def test_a_cut_off_submission_whose_dependency_fails_meanwhile_fails_as_one_that_waits(queue: Queue) -> None:
    first = queue.submit(queue.run_dir(1))
    waits = replace(SPEC, run_id="t-2", depends_on=("t-1",))
    queue.store.add(waits, run_dir=str(queue.run_dir(2).path), owner="ada", engine="small", now=NOW)
    queue.store.move(first.id, BAD, now=NOW)
    assert queue.look() == []
    assert (queue.row(2).state, queue.row(2).end.cause, list(queue.site.jobs)) == (BAD, "dependency", ["1"])


def test_a_job_that_waits_for_none_is_refused(queue: Queue) -> None:
    with pytest.raises(UsageError, match="names job `gone`, which does not exist"):
        queue.submit(queue.run_dir(2), depends_on=("gone",))
    assert queue.store.find("t-2") is None


def test_a_job_of_the_local_queue_is_none_that_another_backend_knows(queue: Queue) -> None:
    queue.store.add(SPEC, run_dir="/elsewhere", owner="ada", engine="local", now=NOW)
    with pytest.raises(UsageError, match="in the queue of local, not of small"):
        queue.submit(queue.run_dir(2), depends_on=("t-1",))


def test_a_job_ends_once_its_whole_record_is_here(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = queue.run_dir()
    queue.submit(run_dir)
    there = [RunStatus(state=BAD, cause="oom", exit_code=1, updated_at=NOW)]

    def fetch(_: SmallBackend, run_dirs: list[RunDir]) -> bool:
        assert [one.path for one in run_dirs] == [run_dir.path]
        if queue.clock.now() > NOW:
            run_dir.write_status(there.pop())
            return True
        return False

    monkeypatch.setattr(SmallBackend, "fetch", fetch)
    monkeypatch.setattr(SmallBackend, "poll", lambda *_: {"1": JobStatus(state=BAD, cause=Cause.USER_ERROR)})
    queue.look()
    assert not queue.row().state.is_final
    queue.clock.sleep(1)
    queue.look()
    assert (queue.row().state, queue.row().end.cause) == (BAD, Cause.OOM)


def test_a_record_that_only_a_report_needs_is_not_fetched_by_a_poll(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.submit(queue.run_dir())
    monkeypatch.setattr(SmallBackend, "shares_files", False)
    monkeypatch.setattr(SmallBackend, "fetch", lambda *_: pytest.fail("it may take seconds for each job"))
    monkeypatch.setattr(SmallBackend, "poll", lambda *_: {"1": JobStatus(state=BAD, cause=Cause.USER_ERROR)})
    queue.look()
    assert queue.row().state is BAD


def test_the_reason_to_wait_is_the_backends(queue: Queue) -> None:
    queue.submit(queue.run_dir())
    queue.look()
    assert (queue.row().state, queue.row().reason, queue.row().raw) == (Q, "Held", "waits")


def test_a_look_that_sees_nothing_new_writes_nothing(queue: Queue) -> None:
    queue.submit(queue.run_dir())
    queue.look()
    version = queue.store.version()
    queue.look()
    assert queue.store.version() == version


def test_a_job_is_followed_to_its_end_whose_run_directory_is_gone(queue: Queue) -> None:
    gone = queue.run_dir()
    queue.submit(gone)
    shutil.rmtree(gone.path)
    assert queue.look() == []
    assert (queue.row().state, queue.row().reason) == (Q, "Held")
    backend = backend_of_job(queue.row())
    assert backend is not None
    assert backend.name == "slurm"
    queue.backend.stop("1")
    assert queue.look() == []
    assert (queue.row().state, gone.path.exists()) == (JobState.STOPPED, False)


def test_a_job_whose_run_directory_is_gone_before_it_was_submitted_has_failed(queue: Queue) -> None:
    gone, there = queue.run_dir(1), queue.run_dir(2)
    for run_dir in (gone, there):
        words = cluster_of(run_dir.path).model_dump_json()
        spec = replace(SPEC, run_id=run_dir.run_id, hold=True)
        queue.store.add(spec, run_dir=str(run_dir.path), owner="ada", engine="small", cluster=words, now=NOW)
    shutil.rmtree(gone.path)
    assert queue.look() == []
    assert (queue.row(1).state, queue.row(1).end.cause, queue.row(2).handle) == (BAD, "launch_failed", "1")
    assert not gone.path.exists()


def test_a_job_that_no_version_says_where_it_is_keeps_nobody_else_waiting(queue: Queue) -> None:
    queue.store.add(SPEC, run_dir="/gone", owner="ada", engine="small", now=NOW)
    queue.store.add(SPEC, run_dir="/gone-too", owner="ada", engine="small", cluster="{", now=NOW)
    queue.submit(queue.run_dir(2))
    assert queue.look() == []
    assert [queue.row(number).reason for number in (1, 2, 3)] == [None, None, "Held"]


@pytest.mark.parametrize("name", ["local", "slurm", "kubernetes", "skypilot"])
def test_file_sharing_is_known_without_importing_the_backend(name: str) -> None:
    cluster = RunFile.model_validate({"name": "t", "run": "true", "cluster": name}).cluster
    backend = backend_for(cluster)
    assert (backend.name, backend.shares_files) == (name, shares_files(name))
