"""A run with a record, as the trainer leaves it, and a hand that adds to it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import LAUNCH_AT, job, metrics_row
from tests.report.conftest import make_plan
from trainworks.host import process
from trainworks.jobs.state import JobState
from trainworks.record.events.log import append_event
from trainworks.record.metrics import append_metrics
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir
from trainworks.record.status import RunStatus


class RecordedRun:
    """A run that a test takes from step to step."""

    def __init__(self, runs: Path, **sections: Any) -> None:
        self.run_dir: RunDir = create_run_dir(runs, "demo")
        resolved = job(**sections)
        update = {"run_id": self.run_dir.run_id, "working_folder": str(runs), "commit": "0123abcd"}
        update |= {"plan": make_plan()} if resolved.is_workload else {}
        self.resolved: ResolvedRun = resolved.model_copy(update=update)
        self.run_dir.write_resolved(self.resolved)
        self.attempt = 0
        self.state: JobState = JobState.STARTING
        append_event(
            self.run_dir.events_file, {"kind": "submitted", "nodes": 1, "processes_per_node": 1, "restarts": 0}
        )
        data = {"num_tokens": 9, "fingerprint": "f00d", "seconds": 1.0, "cached": False}
        append_event(self.run_dir.events_file, {"kind": "data_ready", **data})

    def train(self, first: int, last: int, **changes: Any) -> None:
        """Record the steps from `first` to `last` as a new attempt."""
        self.attempt += 1
        kinds = {"attempt": self.attempt, "world_size": 1, "resumed_from_step": first - 1}
        append_event(self.run_dir.events_file, {"kind": "attempt", **kinds})
        self.enter(JobState.RUNNING)
        rows = [
            metrics_row(step, attempt=self.attempt, loss=4.0 / step + self.attempt, **changes)
            for step in range(first, last + 1)
        ]
        append_metrics(self.run_dir.metrics_file, rows)

    def enter(self, state: JobState, **why: Any) -> None:
        """Write a state as the supervisor does: the status first, then the event."""
        self.state = state
        pid, started_at = process.identity()
        supervisor = {"supervisor_pid": pid, "supervisor_started_at": started_at}
        status = supervisor | {"supervisor_host": socket.gethostname(), "updated_at": LAUNCH_AT + 100}
        self.run_dir.write_status(RunStatus.model_validate(status | why | {"state": state}))
        known = {"cause": None, "message": None} | {key: why[key] for key in ("cause", "message") if key in why}
        append_event(self.run_dir.events_file, {"kind": "state", "state": state, **known})


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Folder of all runs."""
    return tmp_path / "runs"


@pytest.fixture
def recorded(runs: Path) -> RecordedRun:
    """A run that has trained for 20 steps."""
    run = RecordedRun(runs)
    run.train(1, 20)
    return run
