"""A job whose node does not come back goes on without it, to the same losses, and takes it back."""

from __future__ import annotations

import psutil
import pytest

from tests.fakes import read_rows
from tests.faults.launcher import finished, wait_until
from trainworks.record.events.log import read_events

pytestmark = pytest.mark.slow
ELASTIC = {
    "cluster": {"engine": "local", "nodes": 2, "processes_per_node": 1},
    "job": {"min_nodes": 1},
    "workload__train_for": "600 steps",
    "checkpoint__every": "100 steps",
}


def kill_twice(program, node: int) -> None:
    first = program.agent(node)
    first.kill()
    wait_until(lambda: _started(program, node) > 1)
    newest = max((event for event in _agents(program, node)), key=lambda event: event["t"])
    psutil.Process(newest["writer"]).kill()  # not by its arguments: orphans of the first one have the same


def _agents(program, node: int) -> list:
    events = read_events(program.run_dir.events_file)
    return [event for event in events if event["kind"] == "agent_started" and event["node"] == node]


def _started(program, node: int) -> int:
    return len(_agents(program, node))


def test_a_job_goes_on_without_a_lost_node_and_takes_it_back(program, write_run_file, curve_of):
    undisturbed = curve_of("elastic", **ELASTIC)
    program.hold(150)
    running = program.start("run", write_run_file(program.folder, **ELASTIC))
    with program.held(150):
        kill_twice(program, 1)
    code, _, stderr = finished(running)
    assert code == 0, stderr
    events = read_events(program.run_dir.events_file)
    sizes = [event["world_size"] for event in events if event["kind"] == "attempt"]
    decided = [event for event in events if event["kind"] in ("decision", "resized", "agent_lost")]
    # Both nodes may meet once more before the second kill has come.
    assert sizes[:2] == [2, 1] or sizes[:3] == [2, 2, 1], decided
    curve = program.curve()
    assert len(curve) == len(undisturbed)
    losses, expected = ([loss for loss, _ in each] for each in (curve, undisturbed))
    resumed = next(event["resumed_from_step"] for event in events if event.get("world_size") == 1)
    assert losses[:resumed] == expected[:resumed]
    soon = slice(resumed, resumed + 10)
    assert losses[soon] == pytest.approx(expected[soon], abs=1e-5)
    # Each step rounds the loss by 2^-22, and training amplifies it: docs/concepts/faults.md, "Fewer nodes".
    assert losses == pytest.approx(expected, abs=2e-3)
    attempts = [row["attempt"] for row in read_rows(program.run_dir.metrics_file)]
    assert attempts == sorted(attempts)
    program.assert_nothing_left()
