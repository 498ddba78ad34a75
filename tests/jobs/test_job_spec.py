"""What a queue is asked, from what is written in a run file."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import processes
from trainworks.config.run_file import RunFile
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.spec_of_run import spec_of


def spec(processes_of_run: Any = None, **keys: Any) -> JobSpec:
    """Of a command."""
    run_file = RunFile.model_validate({"name": "demo", "run": "true", **keys})
    return spec_of(run_file, run_id="demo-1", working_folder="/", processes=processes_of_run)


@pytest.mark.parametrize(
    ("keys", "node"),
    [
        ({}, NodeResources(cores=1.0)),
        ({"cluster": {"processes_per_node": 4}}, NodeResources(cores=4.0)),
        ({"resources": {"accelerators": "H100:8"}}, NodeResources(accelerators=8, accelerator="H100")),
        (
            {"resources": {"accelerators": ["H100:8", "A100:4"]}},
            NodeResources(accelerators=8, accelerator="H100", alternatives=("A100:4",)),
        ),
        ({"resources": {"cpus": "16+"}}, NodeResources(cores=16.0)),
        ({"resources": {"memory": "64+"}}, NodeResources(cores=1.0, memory_bytes=64 * 10**9)),
    ],
)
def test_a_node_has_what_the_run_file_says(keys: dict[str, Any], node: NodeResources) -> None:
    assert spec(**keys).node == node


def test_a_run_that_is_resolved_takes_its_threads() -> None:
    resolved = processes(2, 4).model_copy(update={"threads_per_process": 3})
    assert spec(resolved).node == NodeResources(cores=12.0)


def test_a_run_that_is_resolved_takes_no_more_than_it_asks_for() -> None:
    asked = spec(processes(1, 4), resources={"cpus": "2", "memory": "8+"})
    assert asked.node == NodeResources(cores=2.0, memory_bytes=8 * 10**9)


@pytest.mark.parametrize(("least", "fewest"), [(None, 4), (3, 3), (9, 4)])
def test_fewer_nodes_do_only_where_that_is_said(least: int | None, fewest: int) -> None:
    asked = spec(num_nodes=4, job={"min_nodes": least} if least else {})
    assert (asked.min_nodes, asked.max_nodes) == (fewest, 4)


def test_every_wish_is_passed_on() -> None:
    wishes = {
        "priority": 70,
        "preemptible": False,
        "time_limit": "2h",
        "grace": "1m",
        "exclude": ["node7"],
        "hold": True,
    }
    asked = spec(job=wishes | {"depends_on": ["tokenize-3"]})
    assert (asked.priority, asked.preemptible, asked.time_limit_s, asked.grace_s) == (70, False, 7200.0, 60.0)
    assert (asked.exclude, asked.depends_on, asked.hold) == (("node7",), ("tokenize-3",), True)
