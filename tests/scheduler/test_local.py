"""What the local scheduler would start, as text."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from tests.fakes import FakeClock, job, processes
from trainworks.host import process
from trainworks.job.request import JobRequest
from trainworks.record.events import read_events
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.scheduler.local import LocalScheduler

REQUESTS = {
    "runs/demo-1": job(),
    "runs/with space/demo-1": JobRequest(
        run_id="demo-1", kind="training", processes=processes(2, 4), max_restarts=3, rendezvous_port=29500
    ),
    "runs/task-1": replace(job("command", nodes=2), processes=processes(2).model_copy(update={"starts": "per_node"})),
    "runs/mpi-1": replace(job("command"), processes=processes(1, 2).model_copy(update={"starts": "once"})),
}


def test_a_job_is_rendered_as_its_command_line_and_what_it_starts(golden) -> None:
    rendered = [LocalScheduler().render(request, RunDir(Path(folder))) for folder, request in REQUESTS.items()]
    golden("local_scheduler.txt", "\n".join(one.text for one in rendered))


def test_rendering_touches_nothing(run_dir: RunDir) -> None:
    before = sorted(run_dir.path.rglob("*"))
    LocalScheduler().render(job(), run_dir)
    assert sorted(run_dir.path.rglob("*")) == before


def test_what_is_rendered_keeps_its_request(run_dir: RunDir) -> None:
    assert LocalScheduler().render(job(), run_dir).request == job()


def test_a_run_without_a_supervisor_is_not_stopped(run_dir: RunDir) -> None:
    LocalScheduler().stop(run_dir, reason="test")
    assert read_events(run_dir.events_file) == []


def test_a_process_that_got_the_supervisor_s_number_is_left_alone(run_dir: RunDir) -> None:
    """The number is this test's own: a signal would end it."""
    pid, started_at = process.identity()
    run_dir.write_status(RunStatus(state="RUNNING", supervisor_pid=pid, supervisor_started_at=started_at - 60))
    LocalScheduler(FakeClock()).stop(run_dir, reason="test")
    assert read_events(run_dir.events_file) == []


def test_a_supervisor_that_runs_is_asked_to_stop(run_dir: RunDir) -> None:
    child = process.spawn(["sleep", "60"], log=run_dir.supervisor_log)
    pid, started_at = process.identity(child.pid)
    run_dir.write_status(RunStatus(state="RUNNING", supervisor_pid=pid, supervisor_started_at=started_at))
    LocalScheduler().stop(run_dir, reason="test")
    assert child.wait(timeout_s=10) == -15
    (event,) = read_events(run_dir.events_file)
    assert (event["kind"], event["reason"], event["t"] <= time.time()) == ("stop_requested", "test", True)
