"""What a queue is asked, from what is written in a run file."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import processes
from trainworks.backends.local.machine import LocalNode, shape_of
from trainworks.config.run_file import RunFile
from trainworks.jobs.job_spec import JobSpec, NodeResources, RoleSpec
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


ROLES = {
    "trainer": {"run": "train", "nodes": 2, "resources": {"accelerators": "H100:8", "memory": 64}},
    "rollout": {"run": "serve", "nodes": 3, "resources": {"accelerators": "A100:4", "cpus": 2}, "decides": False},
    "fetch": {"run": "get", "depends_on": []},
}


def test_roles_are_groups_of_nodes_of_one_job() -> None:
    asked = spec(run=None, roles=ROLES | {"trainer": ROLES["trainer"] | {"depends_on": ["fetch"]}})
    assert asked.roles == (
        RoleSpec(
            name="trainer",
            nodes=2,
            node=NodeResources(accelerators=8, accelerator="H100", memory_bytes=64 * 10**9),
            depends_on=("fetch",),
        ),
        RoleSpec(
            name="rollout", nodes=3, node=NodeResources(cores=2.0, accelerators=4, accelerator="A100"), decides=False
        ),
        RoleSpec(name="fetch", nodes=1, node=NodeResources(cores=1.0)),
    )
    assert (asked.min_nodes, asked.max_nodes, asked.num_accelerators) == (6, 6, 28)
    assert asked.node == NodeResources(cores=2.0, accelerators=8, memory_bytes=64 * 10**9)
    assert spec(resources={"accelerators": "H100:8"}, num_nodes=2).num_accelerators == 16


def test_the_roles_of_a_job_together_take_their_sum_of_this_machine() -> None:
    machine = [LocalNode(name="m", cores=16.0, devices=tuple(range(32)), accelerator="H100", memory_bytes=10**12)]
    shape = shape_of(spec(run=None, roles=ROLES), machine)
    assert (shape.nodes_min, shape.nodes_max, shape.accelerators_per_node) == (1, 1, 28)
    assert (shape.cores_per_node, shape.memory_per_node_bytes) == (2 * 1.0 + 3 * 2.0 + 1.0, 2 * 64 * 10**9)
