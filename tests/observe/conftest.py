"""A running run, and metrics of a node that has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeClock
from tests.report.conftest import RunWriter, make_plan
from trainworks.api.observing.exporter import NodeMetrics


class RunningRun(RunWriter):
    """A run whose supervisor is on another machine, so that no process of this one is missed."""

    def __init__(self, folder: Path, **plan_changes: Any) -> None:
        super().__init__(folder, make_plan(**plan_changes), None)

    def state(self, state: str) -> RunningRun:
        """What the supervisor says of it."""
        self.status(state, supervisor_host="elsewhere")
        return self


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of runs."""
    return tmp_path / "runs"


@pytest.fixture
def running(folder: Path) -> RunningRun:
    """80 steps, a checkpoint after 60 of them."""
    run = RunningRun(folder)
    run.launch().steps(60).checkpoint().steps(20)
    return run.state("RUNNING")


@pytest.fixture
def metrics(folder: Path, clock: FakeClock) -> NodeMetrics:
    """Metrics of the runs of that folder."""
    return NodeMetrics(["runs"], folder, clock=clock)
