"""The dispatcher: what waits starts when there is room, and what ends is written down, whoever is killed meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.fakes import LAUNCH_AT, FakeClock
from trainworks.backends.local.dispatcher import Dispatcher
from trainworks.backends.local.machine import LocalNode, held_elsewhere
from trainworks.errors import EnvironmentProblem, NotOwnerError
from trainworks.host.ledger import Claim, Share, claim_key
from trainworks.host.users import this_host, user_name
from trainworks.jobs.job_row import JobRow, Placement
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.state import JobState, parse_state
from trainworks.jobs.store import JobStore, open_store
from trainworks.record.events.log import Event
from trainworks.record.exit_code import End
from trainworks.record.status import RunStatus
from trainworks.recover.restarts import earlier_turns

ONE_CORE = NodeResources(cores=1.0)
SPEC = JobSpec(run_id="demo-1", name="demo", min_nodes=1, max_nodes=1, node=ONE_CORE)


@dataclass
class FakeJob:
    """A supervisor that does as it is told."""

    pid: int = 0
    alive: bool = True
    asked: list[bool] = field(default_factory=list)
    """Every request to end; True for one at once."""

    def is_alive(self) -> bool:
        return self.alive

    def end(self, *, at_once: bool) -> None:
        self.asked.append(at_once)


@dataclass
class FakeMachine:
    """Runs nothing, and remembers what it should have run; it outlives dispatchers."""

    jobs: dict[int, FakeJob] = field(default_factory=dict)
    says: dict[int, RunStatus] = field(default_factory=dict)
    records: dict[int, list[Event]] = field(default_factory=dict)
    launched: list[int] = field(default_factory=list)
    placements: dict[int, tuple[Placement, ...]] = field(default_factory=dict)
    refuses: str | None = None
    begins: bool = True
    """Whether a supervisor lives long enough to say so."""
    forgotten: list[int] = field(default_factory=list)
    left_over: set[int] = field(default_factory=set)
    """Jobs of which something still runs though the supervisor is gone."""
    others: set[Claim] = field(default_factory=set)
    """What jobs outside this queue hold."""
    soon: set[Claim] = field(default_factory=set)
    """What they take between the decision and the claim."""
    let_go_of: list[int] = field(default_factory=list)
    foreign: set[int] = field(default_factory=set)
    """Jobs whose run directory belongs to another user."""

    def elsewhere(self, ours: Iterable[JobRow]) -> frozenset[Claim]:
        return frozenset(self.others)

    def held(
        self, elsewhere: Iterable[Claim], machine: Sequence[LocalNode], taken: Sequence[Placement]
    ) -> list[Placement]:
        return held_elsewhere(elsewhere, machine, taken)

    def claim(self, job: JobRow, placement: Sequence[Placement], known: frozenset[Claim]) -> bool:
        self.others |= self.soon
        return self.others <= known

    def let_go(self, job: JobRow) -> None:
        self.let_go_of.append(job.id)

    def stopped(self, job: JobRow) -> None:
        self.says[job.id] = RunStatus(state="STOPPED")

    def launch(self, job: JobRow) -> FakeJob:
        if job.id in self.foreign:
            raise NotOwnerError("`/runs/x` belongs to ann")
        if self.refuses:
            raise EnvironmentProblem(self.refuses)
        self.launched.append(job.id)
        self.placements[job.id] = job.placement
        self.says[job.id] = RunStatus(state="STARTING" if self.begins else "CREATED")
        self.records.setdefault(job.id, []).append(
            {"t": LAUNCH_AT, "kind": "submitted", "restarts": earlier_turns(self.events(job))}
        )
        if self.begins:
            self.records[job.id].append({"t": LAUNCH_AT, "kind": "state", "state": "STARTING", "cause": None})
        self.jobs[job.id] = FakeJob()
        return self.jobs[job.id]

    def adopt(self, job: JobRow) -> FakeJob | None:
        found = self.jobs.get(job.id)
        return found if found and found.alive else None

    def status(self, job: JobRow) -> RunStatus:
        return self.says.get(job.id, RunStatus(state="QUEUED"))

    def last_words(self, job: JobRow) -> RunStatus | None:
        return None if job.id in self.left_over else self.status(job)

    def events(self, job: JobRow) -> list[Event]:
        return self.records.get(job.id, [])

    def back_in_line(self, job: JobRow, end: End | None = None) -> None:
        if end is not None:
            waits = {"t": end.at, "kind": "state", "state": end.state, "cause": end.cause}
            self.records.setdefault(job.id, []).append(waits)
        self.says[job.id] = RunStatus(state="QUEUED")

    def concluded(self, job: JobRow, end: End) -> None:
        if not parse_state(self.status(job).state).is_final:
            self.says[job.id] = RunStatus.of(end, updated_at=0.0)
        self.forget(job)

    def forget(self, job: JobRow) -> None:
        self.forgotten.append(job.id)

    def end(self, job_id: int, state: str, **words: object) -> None:
        """The job ends, and says so."""
        self.jobs[job_id].alive = False
        self.says[job_id] = RunStatus.model_validate({"state": state} | words)

    def kill(self, job_id: int) -> None:
        """The supervisor ends without a word."""
        self.jobs[job_id].alive = False


class Queue:
    """A store, a machine of some cores, and whoever dispatches at the moment."""

    def __init__(self, folder: Path, clock: FakeClock, cores: float = 2.0, nodes: int = 1, devices: int = 0) -> None:
        self.store: JobStore = open_store(f"sqlite:///{folder / 'jobs.db'}")
        self.clock = clock
        self.machine = FakeMachine()
        self.nodes = [
            LocalNode(
                name=f"node{index}",
                cores=cores,
                devices=tuple(range(index * devices, (index + 1) * devices)),
                accelerator="H100" if devices else None,
                memory_bytes=10**10,
            )
            for index in range(nodes)
        ]
        self.restart()

    def restart(self) -> None:
        """The dispatcher is killed, and another one comes."""
        self.dispatcher = Dispatcher(self.store, self.nodes, self.machine, self.clock)

    def submit(self, name: str = "demo", *, uid: int | None = None, host: str | None = None, **wishes: object) -> int:
        spec = replace(SPEC, run_id=f"{name}-1", name=name, **wishes)  # type: ignore[arg-type]
        run_dir = f"/runs/{name}-{len(self.store.search())}"
        job = self.store.add(
            spec,
            run_dir=run_dir,
            owner="ada",
            uid=uid,
            host=host or this_host(),
            engine="local",
            now=self.clock.now(),
        )
        self.clock.sleep(1)
        return job.id

    def look(self, seconds: float = 1.0) -> None:
        self.dispatcher.look()
        self.clock.sleep(seconds)

    def job(self, job_id: int) -> JobRow:
        found = self.store.get(job_id)
        assert found is not None
        return found

    def state(self, job_id: int) -> JobState:
        return self.job(job_id).state


@pytest.fixture
def queue(tmp_path: Path, clock: FakeClock) -> Queue:
    """Two cores."""
    return Queue(tmp_path, clock)


def test_jobs_start_as_long_as_there_is_room(queue: Queue) -> None:
    jobs = [queue.submit(f"job{number}") for number in range(3)]
    queue.look()
    assert [queue.state(job) for job in jobs] == [JobState.STARTING, JobState.STARTING, JobState.QUEUED]


def test_a_job_that_waits_has_a_reason_and_a_place(queue: Queue) -> None:
    jobs = [queue.submit(f"job{number}") for number in range(4)]
    queue.look()
    waiting = [queue.job(job) for job in jobs[2:]]
    assert [(job.reason, job.position) for job in waiting] == [("Resources", 1), ("Priority", 2)]


def test_the_next_job_starts_when_one_has_ended(queue: Queue) -> None:
    jobs = [queue.submit(f"job{number}") for number in range(3)]
    queue.look()
    queue.machine.end(jobs[0], "SUCCEEDED", exit_code=0)
    queue.look()
    assert [queue.state(job) for job in jobs] == [JobState.SUCCEEDED, JobState.STARTING, JobState.STARTING]


def test_a_state_that_the_job_says_is_taken_over(queue: Queue) -> None:
    job = queue.submit()
    queue.look()
    queue.machine.says[job] = RunStatus(state="RUNNING")
    queue.look()
    assert queue.state(job) is JobState.RUNNING


def test_a_failure_keeps_its_cause_and_its_exit_code(queue: Queue) -> None:
    job = queue.submit()
    queue.look()
    queue.machine.end(job, "FAILED", cause="oom", message="out of memory", hint="use less", exit_code=1)
    queue.look()
    row = queue.job(job)
    assert replace(row.end, at=None) == End("FAILED", "oom", "out of memory", hint="use less", exit_code=1)


def test_two_jobs_never_get_the_same_accelerator(tmp_path: Path, clock: FakeClock) -> None:
    queue = Queue(tmp_path, clock, cores=8.0, devices=4)
    node = NodeResources(cores=1.0, accelerators=2)
    jobs = [queue.submit(f"job{number}", node=node) for number in range(2)]
    queue.look()
    assert [queue.machine.placements[job][0].devices for job in jobs] == [(0, 1), (2, 3)]
    queue.machine.end(jobs[0], "SUCCEEDED")
    third = queue.submit("third", node=node)
    queue.look()
    assert queue.machine.placements[third][0].devices == (0, 1)


def test_a_gang_gets_all_its_nodes_or_none(tmp_path: Path, clock: FakeClock) -> None:
    queue = Queue(tmp_path, clock, cores=1.0, nodes=3)
    first, gang = queue.submit("first"), queue.submit("gang", min_nodes=3, max_nodes=3)
    queue.look()
    assert (queue.state(gang), queue.job(gang).placement) == (JobState.QUEUED, ())
    queue.machine.end(first, "SUCCEEDED")
    queue.look()
    assert [one.node for one in queue.job(gang).placement] == ["node0", "node1", "node2"]


def test_a_drained_node_gets_no_job_and_says_why(queue: Queue) -> None:
    queue.store.drain("node0", "fan broken", now=0.0, uid=os.getuid())
    job = queue.submit()
    queue.look()
    assert queue.job(job).reason == "NodesUnavailable"
    assert "fan broken" in (queue.job(job).detail or "")


def test_an_accelerator_out_of_service_goes_to_no_job_and_the_others_do(tmp_path: Path, clock: FakeClock) -> None:
    queue = Queue(tmp_path, clock, cores=8.0, devices=4)
    two, four = NodeResources(cores=1.0, accelerators=2), NodeResources(cores=1.0, accelerators=4)
    whole = queue.submit("whole", node=four)
    queue.look()
    queue.store.drain("node0:1", "XID 79", now=0.0, uid=os.getuid())
    first, second = queue.submit("first", node=two), queue.submit("second", node=two)
    queue.look()
    assert queue.state(whole) is JobState.STARTING, "a job that runs keeps it"
    assert queue.state(first) is JobState.QUEUED
    queue.machine.end(whole, "SUCCEEDED")
    queue.look()
    queue.look()
    assert queue.job(first).placement[0].devices == (0, 2)
    assert (queue.state(second), queue.job(second).reason) == (JobState.QUEUED, "Resources")
    assert (queue.job(second).detail or "").endswith("; accelerator 1 is drained (XID 79)")
    queue.store.undrain("node0:1")
    queue.look()
    assert queue.job(second).placement[0].devices == (1, 3)


def test_a_held_job_waits_until_it_is_released(queue: Queue) -> None:
    job = queue.submit(hold=True)
    queue.look()
    assert (queue.state(job), queue.job(job).reason) == (JobState.QUEUED, "Held")
    queue.store.change(job, held=False)
    queue.look()
    assert queue.state(job) is JobState.STARTING


def test_a_job_waits_for_those_that_it_depends_on(queue: Queue) -> None:
    first = queue.submit("first")
    second = queue.submit("second", depends_on=(str(first),))
    queue.look()
    assert queue.job(second).reason == "Dependency"
    queue.machine.end(first, "SUCCEEDED")
    queue.look()
    assert queue.state(second) is JobState.STARTING


def test_a_job_may_wait_for_the_end_of_another_however_it_ends(queue: Queue) -> None:
    first = queue.submit("first")
    second = queue.submit("second", depends_on=(f"afterany:{first}",))
    queue.look()
    assert queue.job(second).reason == "Dependency"
    queue.machine.end(first, "FAILED", cause="user_error", exit_code=1)
    queue.look()
    assert queue.state(second) is JobState.STARTING


def test_a_job_whose_dependency_failed_fails(queue: Queue) -> None:
    first = queue.submit("first")
    second = queue.submit("second", depends_on=("first-1",))
    queue.look()
    queue.machine.end(first, "FAILED", cause="user_error", exit_code=1)
    queue.look()
    assert (queue.state(second), queue.job(second).end.cause) == (JobState.FAILED, "dependency")


def test_a_job_of_higher_priority_takes_the_place_of_a_lower_one(queue: Queue) -> None:
    low = queue.submit("low", node=NodeResources(cores=2.0), priority=10)
    queue.look()
    high = queue.submit("high", node=NodeResources(cores=2.0), priority=90)
    queue.look()
    queue.look()
    assert queue.machine.jobs[low].asked == [False]
    queue.machine.end(low, "STOPPED")
    queue.look()
    assert [queue.state(low), queue.state(high)] == [JobState.PREEMPTED, JobState.STARTING]


def test_a_preempted_job_goes_on_later_and_no_restart_is_counted(queue: Queue) -> None:
    low = queue.submit("low", node=NodeResources(cores=2.0), priority=10)
    queue.look()
    high = queue.submit("high", node=NodeResources(cores=2.0), priority=90)
    queue.look()
    queue.look()
    queue.machine.end(low, "STOPPED")
    queue.look()
    queue.machine.end(high, "SUCCEEDED")
    queue.look()
    row = queue.job(low)
    assert (row.state, row.attempt, row.restarts, row.asked_to_end) == (JobState.STARTING, 2, 0, None)


def test_a_job_that_may_not_be_preempted_keeps_its_place(queue: Queue) -> None:
    low = queue.submit("low", node=NodeResources(cores=2.0), priority=10, preemptible=False)
    queue.look()
    queue.submit("high", node=NodeResources(cores=2.0), priority=90)
    queue.look()
    queue.look()
    assert queue.machine.jobs[low].asked == []


def test_a_stop_is_passed_on_once_and_a_second_one_ends_it_at_once(queue: Queue) -> None:
    job = queue.submit()
    queue.look()
    queue.store.change(job, asked_to_end="stop", asked_by=os.getuid())
    queue.look()
    queue.look()
    assert queue.machine.jobs[job].asked == [False]
    queue.store.change(job, asked_to_end="kill", asked_by=os.getuid())
    queue.look()
    assert queue.machine.jobs[job].asked[-1] is True
    queue.machine.end(job, "STOPPED")
    queue.look()
    assert (queue.state(job), queue.job(job).end.message) == (JobState.STOPPED, f"stopped by {user_name()}")


@pytest.mark.parametrize("moment", ["last_words", "back_in_line"])
def test_a_request_to_end_a_job_that_comes_while_its_end_is_written_down_is_not_lost(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    job = queue.submit(max_restarts=3)
    queue.look()
    does = getattr(queue.machine, moment)

    def is_asked_first(*arguments: object) -> object:
        monkeypatch.undo()
        queue.store.change(job, asked_to_end="kill", asked_by=os.getuid())
        return does(*arguments)

    monkeypatch.setattr(queue.machine, moment, is_asked_first)
    queue.machine.kill(job)
    queue.look()
    queue.look()
    assert queue.state(job) is JobState.STOPPED


def test_a_job_is_asked_to_end_a_grace_before_its_time_is_over(queue: Queue) -> None:
    job = queue.submit(time_limit_s=100.0, grace_s=10.0)
    queue.look(88.0)
    queue.look(3.0)
    assert queue.machine.jobs[job].asked == []
    queue.look()
    assert queue.machine.jobs[job].asked == [False]
    queue.machine.end(job, "STOPPED")
    queue.look()
    assert (queue.state(job), queue.job(job).end.cause) == (JobState.FAILED, "time_limit")


def test_a_grace_longer_than_the_limit_leaves_half_of_it(queue: Queue) -> None:
    job = queue.submit(time_limit_s=100.0, grace_s=500.0)
    queue.look(49.0)
    queue.look(2.0)
    assert queue.machine.jobs[job].asked == []
    queue.look()
    assert queue.machine.jobs[job].asked == [False]


def test_a_job_that_finished_before_it_was_to_be_preempted_has_succeeded(queue: Queue) -> None:
    job = queue.submit()
    queue.look()
    queue.store.change(job, asked_to_end="preempt", asked_by=os.getuid())
    queue.machine.end(job, "SUCCEEDED", exit_code=0)
    queue.look()
    assert queue.state(job) is JobState.SUCCEEDED


def test_a_new_dispatcher_follows_what_an_old_one_started(queue: Queue) -> None:
    job = queue.submit()
    queue.look()
    queue.restart()
    queue.look()
    assert (queue.state(job), queue.machine.launched) == (JobState.STARTING, [job])
    queue.machine.end(job, "SUCCEEDED")
    queue.look()
    assert queue.state(job) is JobState.SUCCEEDED


def test_a_job_that_ended_while_nobody_looked_is_not_run_again(queue: Queue) -> None:
    job = queue.submit()
    queue.look()
    queue.machine.end(job, "SUCCEEDED")
    queue.restart()
    queue.look()
    assert (queue.state(job), queue.machine.launched) == (JobState.SUCCEEDED, [job])


def test_a_job_whose_dispatcher_died_before_the_launch_is_launched(queue: Queue) -> None:
    job = queue.submit()
    queue.store.start(queue.job(job), (Placement("node0", 1.0),), now=queue.clock.now())
    queue.look()
    queue.look()
    assert (queue.state(job), queue.machine.launched, queue.job(job).restarts) == (JobState.STARTING, [job], 0)


def test_a_job_of_which_something_still_runs_is_left_alone(queue: Queue) -> None:
    job = queue.submit(max_restarts=5)
    queue.look()
    queue.machine.kill(job)
    queue.machine.left_over.add(job)
    queue.look()
    queue.restart()
    queue.look()
    assert (queue.state(job), queue.machine.launched) == (JobState.STARTING, [job])


def test_a_job_whose_supervisor_was_killed_starts_again_if_it_may(queue: Queue) -> None:
    job = queue.submit(max_restarts=1)
    for attempt in (1, 2):
        queue.look()
        queue.machine.says[job] = RunStatus(state="RUNNING")
        assert queue.job(job).attempt == attempt
        queue.machine.kill(job)
        queue.look()
    row = queue.job(job)
    assert (row.state, row.end.cause, row.restarts, row.attempt) == (JobState.FAILED, "agent_lost", 1, 2)


def test_a_job_that_never_begins_is_given_up_after_some_launches(queue: Queue) -> None:
    job = queue.submit()
    queue.machine.begins = False
    for _ in range(20):
        queue.look()
        if job in queue.machine.jobs:
            queue.machine.kill(job)
    assert (queue.state(job), queue.job(job).end.cause) == (JobState.FAILED, "launch_failed")
    assert len(queue.machine.launched) == 5


def test_a_launch_that_the_end_of_its_dispatcher_cut_short_does_not_count(queue: Queue) -> None:
    job = queue.submit()
    queue.machine.begins = False
    for _ in range(20):
        queue.look()
        if job in queue.machine.jobs:
            queue.machine.kill(job)
            queue.restart()
    assert not queue.state(job).is_final
    assert len(queue.machine.launched) > 5
    waits = [event["cause"] for event in queue.machine.records[job] if event["kind"] == "state"]
    assert set(waits) == {"controller_error"}
    queue.machine.begins = True
    queue.look()
    queue.look()
    assert (queue.state(job), queue.job(job).restarts) == (JobState.STARTING, 0)


def test_earlier_attempts_of_a_preempted_job_do_not_count_as_refusals(queue: Queue) -> None:
    job = queue.submit()
    queue.look()
    for attempt in range(3):
        queue.machine.refuses = "no space left on device" if attempt == 2 else None
        queue.store.change(job, now=queue.clock.now(), asked_to_end="preempt", asked_by=os.getuid())
        queue.machine.end(job, "STOPPED")
        queue.look()
    assert (queue.job(job).attempt, queue.state(job)) == (4, JobState.QUEUED)


def test_a_launch_that_is_refused_is_tried_again_and_then_failed(queue: Queue) -> None:
    queue.machine.refuses = "no space left on device"
    job = queue.submit()
    for _ in range(6):
        queue.look()
    row = queue.job(job)
    assert (row.state, row.end.cause, row.end.message) == (JobState.FAILED, "launch_failed", "no space left on device")
    assert queue.machine.says[job].state == "FAILED"


def test_jobs_of_other_backends_are_left_alone(queue: Queue) -> None:
    spec = replace(SPEC, run_id="far-1")
    queue.store.add(spec, run_dir="/runs/far", owner="ada", engine="slurm", now=0.0)
    queue.look()
    assert (queue.machine.launched, queue.dispatcher.is_idle) == ([], True)


def test_a_dispatcher_without_jobs_is_idle(queue: Queue) -> None:
    job = queue.submit()
    queue.look()
    assert not queue.dispatcher.is_idle
    queue.machine.end(job, "FAILED")
    queue.look()
    assert queue.dispatcher.is_idle


def test_what_was_kept_for_a_job_is_forgotten_when_it_has_ended(queue: Queue) -> None:
    low = queue.submit("low", node=NodeResources(cores=2.0), priority=10)
    queue.look()
    high = queue.submit("high", node=NodeResources(cores=2.0), priority=90)
    queue.look()
    queue.machine.end(low, "STOPPED")
    queue.look()
    assert queue.machine.forgotten == []
    queue.machine.end(high, "SUCCEEDED")
    queue.look()
    assert queue.machine.forgotten == [high]


def test_a_new_dispatcher_does_not_read_what_has_ended(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, live = queue.submit("ended"), queue.submit("live")
    queue.look()
    queue.machine.end(ended, "SUCCEEDED")
    queue.look()
    queue.restart()
    queue.look()
    assert list(queue.dispatcher._jobs) == [live]


def test_jobs_of_other_users_and_machines_are_left_alone(queue: Queue) -> None:
    jobs = [queue.submit("theirs", uid=os.getuid() + 1), queue.submit("there", host="elsewhere")]
    queue.look()
    queue.restart()
    queue.look()
    assert (queue.machine.launched, queue.dispatcher.is_idle) == ([], True)
    assert [queue.state(job) for job in jobs] == [JobState.QUEUED] * 2


def test_a_run_directory_of_another_user_is_refused_at_once(queue: Queue) -> None:
    queue.machine.foreign.add(job := queue.submit())
    queue.look()
    row = queue.job(job)
    assert (row.state, row.end.cause, row.attempt) == (JobState.FAILED, "launch_failed", 1)
    assert "belongs to ann" in (row.end.message or "")
    assert queue.machine.let_go_of == [job]


@pytest.mark.parametrize("asked_by", [None, 2**31 + 5])
def test_a_request_to_end_of_another_user_is_not_obeyed(queue: Queue, asked_by: int | None) -> None:
    job, waits = queue.submit(time_limit_s=100.0, grace_s=10.0), queue.submit(hold=True)
    queue.look()
    for one in (job, waits):
        queue.store.change(one, asked_to_end="kill", asked_by=asked_by)
    queue.look(90.0)
    assert (queue.machine.jobs[job].asked, queue.state(waits)) == ([], JobState.QUEUED)
    queue.look()  # its time limit counts all the same
    assert (queue.machine.jobs[job].asked, queue.job(job).asked_to_end) == ([False], "time_limit")


def test_a_job_that_waits_is_stopped_for_an_administrator(queue: Queue) -> None:
    job = queue.submit(hold=True)
    queue.look()
    queue.store.change(job, asked_to_end="stop", asked_by=0)
    queue.look()
    assert (queue.state(job), queue.machine.says[job].state) == (JobState.STOPPED, "STOPPED")


def test_the_drain_of_another_user_is_for_their_own_jobs(queue: Queue) -> None:
    queue.store.drain("node0", "mine alone", now=0.0, uid=2**31 + 5)
    job = queue.submit()
    queue.look()
    assert queue.state(job) is JobState.STARTING


def theirs(cores: float, *devices: int) -> Claim:
    """What a job of another user holds."""
    return Claim(2**31 + 5, Share(run="lm-7", key=claim_key("/their/lm-7"), cores=cores, devices=devices))


def test_a_job_gets_accelerators_that_no_other_user_holds(tmp_path: Path, clock: FakeClock) -> None:
    queue = Queue(tmp_path, clock, cores=8.0, devices=4)
    queue.machine.others = {theirs(1.0, 0, 2)}
    job = queue.submit(node=NodeResources(cores=1.0, accelerators=2))
    queue.look()
    assert queue.machine.placements[job][0].devices == (1, 3)


def test_a_job_waits_for_what_other_users_hold_and_says_who(tmp_path: Path, clock: FakeClock) -> None:
    queue = Queue(tmp_path, clock, cores=8.0, devices=4)
    queue.machine.others = {theirs(0.0, 0, 1, 2, 3)}
    job = queue.submit(node=NodeResources(cores=1.0, accelerators=2))
    queue.look()
    row = queue.job(job)
    assert (row.state, row.reason) == (JobState.QUEUED, "Resources")
    assert f"4 of 4 accelerators are held by uid {2**31 + 5} (lm-7)" in (row.detail or "")
    queue.machine.others.clear()
    queue.look()
    assert queue.state(job) is JobState.STARTING


def test_cores_of_other_users_leave_whole_nodes_free(tmp_path: Path, clock: FakeClock) -> None:
    queue = Queue(tmp_path, clock, cores=1.0, nodes=3)
    queue.machine.others = {theirs(1.0)}
    jobs = [queue.submit(f"job{number}") for number in range(3)]
    queue.look()
    assert [queue.state(job) for job in jobs] == [JobState.STARTING, JobState.STARTING, JobState.QUEUED]


def test_what_another_user_takes_after_the_decision_is_not_given_twice(queue: Queue) -> None:
    queue.machine.soon = {theirs(2.0)}
    job = queue.submit()
    queue.look()
    assert (queue.state(job), queue.job(job).attempt) == (JobState.QUEUED, 0)
    queue.look()
    assert queue.job(job).reason == "Resources"


def test_what_an_administrator_queued_again_does_not_end_by_its_old_status(queue: Queue) -> None:
    job = queue.submit()
    queue.machine.says[job] = RunStatus(state="STOPPED")
    queue.store.change(job, asked_by=0)
    queue.machine.refuses = "no space left on device"
    queue.look()
    assert queue.machine.says[job].state == "QUEUED"
