"""A workload on rented machines: a cloud on this machine, and the store of moto."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="NOT TESTED: training on rented machines; trainworks[train]")

from tests.backends.skypilot.cloud import jobs, opened
from tests.fakes import effective_rows
from tests.worker.harness import run_file_text, write_corpus
from tests.worker.object_store import s3_server
from trainworks.api.run_request import read_run_file
from trainworks.api.runs import submit
from trainworks.host.copies.s3 import S3Place
from trainworks.jobs.state import JobState
from trainworks.record.events.log import read_events

LONG_S = 400.0
GATE = """
import os, time
class Gate:
    def on_step(self, state):
        print("done", state.step, flush=True)
        while state.step == 20 and not os.path.exists(os.environ["GATE"]):
            time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """The address of a bucket of moto's server."""
    with s3_server():
        yield "s3://bucket/runs"


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Path]:
    """The folder of a cloud."""
    with opened(tmp_path / "cloud") as folder:
        yield folder


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.2)


def run_file(tmp_path: Path, store: str, **changes: Any) -> str:
    """A tiny workload that waits at step 20 for the file `gate`."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "gate.py").write_text(GATE)
    rented = {
        "program": str(tmp_path / "cloud" / "sky"),
        "image": "docker:trainworks:1",
        "python": sys.executable,
        "store": store,
        "use_spot": True,
    }
    own = {
        "cluster": {"engine": "skypilot", "skypilot": rented},
        "resources": {"cpus": 1},
        "envs": {"PYTHONPATH": str(tmp_path / "modules"), "GATE": str(tmp_path / "gate")},
        "workload__callbacks": ["gate:Gate"],
        "recover__hang_timeout": "10 min",
    }
    return run_file_text(write_corpus(tmp_path / "text"), **own | changes)


def test_a_workload_goes_on_from_the_store_after_a_preemption_and_its_record_comes_home(
    tmp_path: Path, store: str, cloud: Path
) -> None:
    run = submit(read_run_file(run_file(tmp_path, store, name="preempted")), folder=tmp_path / "runs")
    place = S3Place(f"{store}/{run.id}")
    wait_until(place.manifests)
    assert run.job is not None and run.job.refresh() is JobState.RUNNING
    (cloud / "1" / "preempt").touch()
    wait_until(lambda: jobs(cloud)[0]["recovery_count"] == 1)
    (tmp_path / "gate").touch()
    assert run.wait() is JobState.SUCCEEDED
    report = run.report()
    events = read_events(run.run_dir.events_file)
    resumed = [event["resumed_from_step"] for event in events if event["kind"] == "attempt"]
    assert resumed[0] == 0 and resumed[-1] >= 8
    assert [event["restarts"] for event in events if event["kind"] == "submitted"] == [0, 1]
    assert [row["step"] for row in effective_rows(run.run_dir.metrics_file)] == list(range(1, 25))
    assert run.resolved.plan is not None and report.training is not None and report.comparison is not None
    assert run.status.state == "SUCCEEDED" and "done 24" in run.run_dir.rank_log(0).read_text()
    assert max(place.manifests()) == 24
    assert not list((cloud / "1").glob("machine-*"))


def test_a_workload_ends_when_its_budget_is_spent_and_its_record_says_so(
    tmp_path: Path, store: str, cloud: Path
) -> None:
    rented = {"goal__budget": "1 USD", "cluster__skypilot__max_hourly_cost": 360.0}  # for ten seconds
    run = submit(read_run_file(run_file(tmp_path, store, name="dear", **rented)), folder=tmp_path / "runs")
    assert run.wait() is JobState.FAILED
    assert run.job is not None and (run.job.row.end.cause, run.status.cause) == ("time_limit", "time_limit")
    assert run.status.message == "the budget of 1.00 USD is spent"
    run.report()
    assert run.status.cause == "time_limit"
    assert jobs(cloud)[0]["status"] == "FAILED" and not list((cloud / "1").glob("machine-*"))
