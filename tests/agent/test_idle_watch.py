"""An idle job is said to be idle, then stopped; one that begins again is not."""

from __future__ import annotations

import re
import signal

import pytest

from tests.fakes import FakeClock, FakeNodes, Life, job, metrics_row
from trainworks.agent.supervisor import Supervisor
from trainworks.config.engines import Idle
from trainworks.jobs.state import Cause, JobState
from trainworks.record.dev_environment import DevUse
from trainworks.record.events.log import append_event, read_events
from trainworks.record.metrics import append_metrics
from trainworks.record.run_dir import RunDir
from trainworks.record.usage import NodeUsage

MET = ("attempt", {"attempt": 1, "world_size": 1, "resumed_from_step": 0})
LIMITS = Idle(report_after=10.0, stop_after=30.0)


class Run:
    """A command on fake nodes that write what they use every half second of the fake clock."""

    def __init__(self, run_dir: RunDir, clock: FakeClock, *, nodes: int = 1, limits: Idle = LIMITS, kind="command"):
        idle = {"report_after": limits.report_after, "stop_after": limits.stop_after}
        resolved = job(kind, nodes=nodes, job={"idle": idle})
        self.run_dir, self.clock = run_dir, clock
        self.began = clock.now()
        says = [[MET], *[[] for _ in range(nodes - 1)]]
        self.nodes = FakeNodes(run_dir, resolved, clock, [[Life(0, 100.0, says=one)] for one in says])
        self.nodes.answer = -signal.SIGTERM if kind == "command" else 0
        self.supervisor = Supervisor(run_dir, resolved, self.nodes, clock)
        self.busy: set[int] = set()
        self.cpu_s = [0.0] * nodes
        for node in range(nodes):
            self._sample(node)

    def _sample(self, node: int) -> None:
        self.cpu_s[node] += 0.5 if node in self.busy else 0.0
        sample = NodeUsage(
            agent_pid=node,
            monotonic_s=self.clock.now(),
            cpu_s=self.cpu_s[node],
            io_bytes=0,
            network_bytes=0,
            disk_waits=0,
            accelerator_s=None,
        )
        self.run_dir.write_usage(node, sample)
        self.clock.after(0.5, lambda: self._sample(node))

    def run(self) -> JobState:
        return self.supervisor.run()

    def events(self, kind: str) -> list[dict]:
        return [event for event in read_events(self.run_dir.events_file) if event["kind"] == kind]

    def at(self, seconds: float, action) -> None:
        self.clock.after(seconds, action)


@pytest.fixture
def start(run_dir: RunDir, clock: FakeClock):
    return lambda **options: Run(run_dir, clock, **options)


def test_an_idle_job_is_reported_then_stopped_with_the_cause(start) -> None:
    run = start()
    seen: list[float | None] = []
    run.at(9.0, lambda: seen.append(run.run_dir.read_status().idle_since))
    run.at(15.0, lambda: seen.append(run.run_dir.read_status().idle_since))
    assert run.run() is JobState.STOPPED
    status = run.run_dir.read_status()
    assert (status.cause, status.exit_code, status.idle_since) == ("idle", 0, None)
    assert re.fullmatch(r"it used nothing of what it holds for 30(\.\d)? s", status.message)
    assert seen[0] is None and seen[1] == pytest.approx(run.began, abs=1.5)
    assert 30 <= run.clock.now() - run.began < 33
    assert run.nodes.asked.stops == 1


def test_a_job_that_was_stopped_for_that_is_not_started_again() -> None:
    assert not Cause.IDLE.another_start_helps


def test_it_is_only_reported_unless_somebody_wants_it_stopped(start) -> None:
    run = start(limits=Idle(report_after=10.0))
    assert run.run() is JobState.SUCCEEDED
    assert len(run.events("idle")) == 1


def test_a_job_with_one_busy_node_is_not_idle(start) -> None:
    run = start(nodes=2)
    run.busy = {1}
    assert run.run() is JobState.SUCCEEDED
    assert run.events("idle") == []


def test_a_job_that_begins_again_is_not_idle_any_more(start) -> None:
    run = start()
    run.at(20.0, lambda: run.busy.add(0))
    run.at(22.0, run.busy.clear)
    assert run.run() is JobState.STOPPED
    assert [len(run.events(kind)) for kind in ("idle", "busy")] == [2, 1]
    assert run.clock.now() - run.began > 50


def test_a_step_is_use(start, run_dir: RunDir) -> None:
    run = start(kind="training")
    for number in range(1, 12):
        run.at(9.0 * number, lambda number=number: append_metrics(run_dir.metrics_file, [metrics_row(number)]))
    run.at(99.0, lambda: append_event(run_dir.events_file, {"kind": "finished", "step": 11}))
    assert run.run() is JobState.SUCCEEDED
    assert run.events("idle") == []


def test_a_node_that_falls_silent_is_not_idle(start) -> None:
    run = start(nodes=2)
    sample, run._sample = run._sample, lambda node: sample(node) if node == 0 else None
    assert run.run() is JobState.SUCCEEDED
    assert run.events("idle") == []


def test_a_job_that_does_not_run_yet_is_not_idle(start) -> None:
    run = start()
    run.nodes._lives = [[Life(0, 100.0)]]
    assert run.run() is JobState.SUCCEEDED
    assert run.events("idle") == []


def test_a_workload_that_cannot_save_says_so_beside_the_cause(start) -> None:
    run = start(kind="training")
    run.run()
    assert run.run_dir.read_status().message.endswith(" s; ended before it could save a checkpoint")


def test_it_is_reported_at_the_latest_when_it_is_stopped() -> None:
    assert Idle(stop_after=600.0).first_s == 600.0
    assert Idle(stop_after=7200.0).first_s == 1800.0


def test_an_open_session_is_use_and_so_is_one_that_came_and_went(start, run_dir: RunDir) -> None:
    run = start()
    run_dir.dev_folder.mkdir()
    run.at(5.0, lambda: run_dir.write_dev_use(DevUse(open=1, opened=1)))
    run.at(20.0, lambda: run_dir.write_dev_use(DevUse(open=0, opened=1)))
    run.at(40.0, lambda: run_dir.write_dev_use(DevUse(open=0, opened=2)))
    assert run.run() is JobState.STOPPED
    assert 70 <= run.clock.now() - run.began < 74
