"""The backend on a real Ray of two nodes; `TRAINWORKS_TEST_RAY` names a Python that has ray[default]."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fakes import spec
from trainworks.backends.backend import JobStatus
from trainworks.jobs.job_spec import NodeResources
from trainworks.jobs.program import Program
from trainworks.jobs.state import Cause, JobState
from trainworks.record.run_dir import RunDir
from trainworks_ray import gang
from trainworks_ray.backend import RayBackend
from trainworks_ray.options import RayOptions

pytestmark = pytest.mark.ray


class Run:
    """One run on the real cluster: two nodes of two ranks, which fill it."""

    def __init__(self, where: tuple[str, str], run_dir: RunDir, script: str, *, nodes: int = 2, **changes: Any) -> None:
        address, python = where
        known = ("envs", "setup", "working_folder")
        program = {name: changes.pop(name) for name in known if name in changes}
        runs = Program(script=script, processes_per_node=2, **program)
        self.backend = RayBackend(RayOptions(address=address, python=python), program=runs)
        self._run_dir = run_dir
        wanted = {"min_nodes": nodes, "max_nodes": nodes, "node": NodeResources(cores=2), "grace_s": 10.0}
        self._script = self.backend.render(spec(**(wanted | changes)), run_dir)
        self.handle = self.submit()

    def submit(self) -> str:
        """Submit it, perhaps again."""
        return self.backend.submit(self._script, self._run_dir)

    @property
    def status(self) -> JobStatus:
        """As Ray has it."""
        return self.backend.poll([self.handle])[self.handle]

    def end(self) -> JobStatus:
        """Wait for it."""
        until(lambda: self.status.state.is_final)
        return self.status

    def lines(self, node: int) -> list[str]:
        """What one node printed."""
        return list(self.backend.output(self.handle, node=node))

    def begun(self) -> Run:
        """Wait until all ranks say so."""
        until(lambda: self.lines(0).count("begun") + self.lines(1).count("begun") == 4)
        return self

    @property
    def left(self) -> list[int]:
        """Processes of its nodes."""
        return [pid for node in (0, 1) for pid in gang.marked(f"{self.handle}/{node}")]


def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
    """Poll Ray; there is nothing to fake there."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.1)


def test_all_ranks_of_all_nodes_run_and_succeed(real_ray: tuple[str, str], run_dir: RunDir, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "go.sh").write_text('echo "$RANK of $WORLD_SIZE at $MASTER_ADDR, $A, $TRAINWORKS_ON_THE_NODE"')
    run = Run(
        real_ray,
        run_dir,
        "bash go.sh",
        envs={"A": "it's $(b)", "TRAINWORKS_ON_THE_NODE": None},
        working_folder=str(tmp_path / "code"),
    )
    assert run.submit() == run.handle
    assert list(run.backend.output(run.handle, node=1, follow=True)) != []
    status = run.end()
    assert (status.state, status.exit_code) == (JobState.SUCCEEDED, 0)
    said = [line.replace("127.0.0.3", "127.0.0.2") for node in (0, 1) for line in run.lines(node)]
    assert sorted(said) == [f"{rank} of 4 at 127.0.0.2, it's $(b), yes" for rank in range(4)]


def test_a_job_that_runs_holds_its_nodes_and_the_next_one_waits(real_ray: tuple[str, str], run_dir: RunDir) -> None:
    run = Run(real_ray, run_dir, "echo begun; sleep 600").begun()
    assert run.status.state is JobState.RUNNING and len(run.status.nodes) == 2
    assert [node.state for node in run.backend.nodes()] == ["taken", "taken"]
    other = Run(real_ray, RunDir(run_dir.path.with_name("other-1")), "true")
    until(lambda: other.status.raw == "RUNNING, placement group PENDING")
    assert (other.status.state, other.status.reason) == (
        JobState.QUEUED,
        "waits for 2 node(s) of CPU 2: the nodes are taken",
    )
    for one in (other, run):
        one.backend.stop(one.handle)
        assert one.end().state is JobState.STOPPED
    assert run.left == []


def test_a_job_that_no_nodes_can_ever_hold_says_so(real_ray: tuple[str, str], run_dir: RunDir) -> None:
    run = Run(real_ray, run_dir, "true", nodes=3)
    until(lambda: "is large enough" in (run.status.reason or ""))
    run.backend.stop(run.handle)
    assert run.end().state is JobState.STOPPED


def test_a_rank_that_fails_ends_the_job_with_its_code(real_ray: tuple[str, str], run_dir: RunDir) -> None:
    run = Run(real_ray, run_dir, 'echo begun; [ "$RANK" != 2 ] || exit 7; sleep 600')
    status = run.end()
    assert (status.state, status.cause, status.exit_code) == (JobState.FAILED, Cause.USER_ERROR, 7)
    assert (status.reason, run.left) == ("node 1 exited with code 7", [])


def test_a_failed_job_starts_again_as_often_as_it_may(real_ray: tuple[str, str], run_dir: RunDir) -> None:
    run = Run(real_ray, run_dir, 'echo "$TRAINWORKS_ATTEMPT"; [ "$TRAINWORKS_ATTEMPT" = 2 ]', max_restarts=3)
    assert run.end().state is JobState.SUCCEEDED and run.lines(0) == ["1", "1", "2", "2"]


def test_a_stop_lets_every_rank_save(real_ray: tuple[str, str], run_dir: RunDir) -> None:
    run = Run(real_ray, run_dir, 'trap "sleep 4; echo saved; exit 0" TERM; echo begun; sleep 600 & wait').begun()
    run.backend.stop(run.handle)
    assert run.end().state is JobState.STOPPED
    assert run.lines(0) == run.lines(1) == ["begun", "begun", "saved", "saved"]
    run.backend.stop(run.handle)
    assert run.submit() == f"{run.handle.removesuffix('1')}2"
    run.backend.stop(f"{run.handle.removesuffix('1')}2")


def test_a_stop_at_once_does_not_wait_for_the_grace(real_ray: tuple[str, str], run_dir: RunDir) -> None:
    run = Run(real_ray, run_dir, 'trap "" TERM; echo begun; sleep 600', grace_s=300.0).begun()
    run.backend.stop(run.handle)
    run.backend.stop(run.handle, at_once=True)
    assert run.end().state is JobState.STOPPED and run.left == []


def test_a_time_limit_ends_it(real_ray: tuple[str, str], run_dir: RunDir) -> None:
    status = Run(real_ray, run_dir, "sleep 600", time_limit_s=2.0, grace_s=2.0).end()
    assert (status.state, status.cause) == (JobState.FAILED, Cause.TIME_LIMIT)


def test_a_node_that_is_lost_ends_the_job_and_nothing_of_it_stays(real_ray: tuple[str, str], run_dir: RunDir) -> None:
    run = Run(real_ray, run_dir, 'trap "" TERM; echo begun; sleep 600', grace_s=2.0).begun()
    agents = [one for one in psutil.process_iter() if one.name().startswith("ray::Node")]
    os.kill(agents[0].pid, signal.SIGKILL)
    status = run.end()
    assert (status.state, status.cause) == (JobState.FAILED, Cause.NODE_LOST)
    until(lambda: run.left == [])


def test_a_driver_that_is_killed_leaves_nothing_behind(real_ray: tuple[str, str], run_dir: RunDir) -> None:
    run = Run(real_ray, run_dir, 'trap "" TERM; echo begun; sleep 600', grace_s=2.0).begun()
    drivers = [one for one in psutil.process_iter() if one.cmdline()[1:] == ["-m", "trainworks_gang"]]
    drivers[0].kill()
    status = run.end()
    assert (status.state, status.cause) == (JobState.FAILED, Cause.KILLED)
    until(lambda: run.left == [])
