"""A command that enters a job finds the first rank of a node: by the record for a workload, whose ranks are forks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import job
from trainworks.agent.enter import first_rank
from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.record.events.log import append_event
from trainworks.record.run_dir import RunDir


@pytest.fixture
def ranks(run_dir: RunDir) -> Iterator[list[process.Child]]:
    """Two processes of a run on two nodes, with the environment of their agent alone."""
    run_dir.write_resolved(job(nodes=2))
    marked = os.environ | {"TRAINWORKS_RUN_DIR": str(run_dir.path.resolve())}
    started = [process.spawn(["sleep", "60"], log=run_dir.path / "log", env=marked) for _ in range(2)]
    yield started
    for one in started:
        process.kill(one.pid)
        one.wait(30)


def test_the_first_rank_of_a_workload_is_found_on_every_node(run_dir: RunDir, ranks: list[process.Child]) -> None:
    append_event(run_dir.events_file, {"kind": "attempt", "attempt": 1, "pids": [one.pid for one in ranks]})
    assert [first_rank(run_dir, node).pid for node in (0, 1)] == [one.pid for one in ranks]


def test_a_number_that_another_process_has_by_now_is_no_rank(
    run_dir: RunDir, ranks: list[process.Child], tmp_path: Path
) -> None:
    append_event(run_dir.events_file, {"kind": "attempt", "attempt": 1, "pids": [os.getpid(), ranks[1].pid]})
    with pytest.raises(EnvironmentProblem, match="runs on node 0 now"):
        first_rank(run_dir, 0)
