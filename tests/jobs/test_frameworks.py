"""What each framework's own cluster detection finds in the environment of a process."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import processes
from trainworks.jobs.frameworks import (
    Rendezvous,
    command_environment,
    deepspeed_hostfile,
    mpi_hostfile,
    ports_needed,
    setup_environment,
)
from trainworks.record.processes import Processes

FRAMEWORKS = ("torch", "jax", "tensorflow", "mpi", "deepspeed", "slurm")
SIZES = st.integers(1, 5)


def rendezvous(world_size: int = 4, **changes: Any) -> Rendezvous:
    """On this machine."""
    ports = tuple(range(29500, 29500 + world_size))
    return Rendezvous(**({"address": "127.0.0.1", "ports": ports, "hostfile": "/runs/demo-1/hostfile"} | changes))


def environments(framework: Any, ranks: Processes) -> list[dict[str, str]]:
    """Of all processes, node by node."""
    at = rendezvous(ranks.world_size)
    return [
        command_environment(framework, ranks, at, node=node, local_rank=local_rank)
        for node in range(ranks.nodes)
        for local_rank in range(ranks.starts_on(node))
    ]


def on_gpus(nodes: int, per_node: int, accelerators: int) -> Processes:
    """Processes that share the accelerators of their node."""
    return processes(nodes, per_node).model_copy(update={"device": "cuda", "accelerators_per_node": accelerators})


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_process_gets_these_variables(framework: str, golden) -> None:
    env = environments(framework, processes(2, 2))[-1]
    golden(f"rank_environment_{framework}.txt", "".join(f"{name}={value!r}\n" for name, value in env.items()))


def test_a_command_of_no_framework_gets_torch_s() -> None:
    assert environments(None, processes(2, 2)) == environments("torch", processes(2, 2))


@given(SIZES, SIZES)
def test_jax_counts_the_processes_from_0(nodes: int, per_node: int) -> None:
    envs = environments("jax", processes(nodes, per_node))
    assert [int(env["OMPI_COMM_WORLD_RANK"]) for env in envs] == list(range(nodes * per_node))
    assert {int(env["OMPI_COMM_WORLD_SIZE"]) for env in envs} == {nodes * per_node}


@given(SIZES, SIZES, st.integers(1, 4))
def test_jax_gives_every_accelerator_of_a_node_to_one_process(nodes: int, per_node: int, each: int) -> None:
    envs = environments("jax", on_gpus(nodes, per_node, per_node * each))
    devices = [int(index) for env in envs[:per_node] for index in env["JAX_LOCAL_DEVICE_IDS"].split(",")]
    assert devices == list(range(per_node * each))


def test_jax_on_cpus_names_no_devices() -> None:
    assert "JAX_LOCAL_DEVICE_IDS" not in environments("jax", processes())[0]


def test_the_coordinator_of_jax_listens_on_no_other_network() -> None:
    (env,) = environments("jax", processes())
    assert env["JAX_COORDINATOR_BIND_ADDRESS"] == env["JAX_COORDINATOR_ADDRESS"] == "127.0.0.1:29500"


@given(SIZES, SIZES)
def test_the_workers_of_tensorflow_agree_on_the_cluster(nodes: int, per_node: int) -> None:
    configs = [json.loads(env["TF_CONFIG"]) for env in environments("tensorflow", processes(nodes, per_node))]
    assert all(config["cluster"] == configs[0]["cluster"] for config in configs)
    assert [config["task"]["index"] for config in configs] == list(range(nodes * per_node))


@given(SIZES, SIZES)
def test_every_worker_of_tensorflow_listens_on_a_port_of_its_own(nodes: int, per_node: int) -> None:
    env = environments("tensorflow", processes(nodes, per_node))[0]
    workers = json.loads(env["TF_CONFIG"])["cluster"]["worker"]
    assert len(set(workers)) == nodes * per_node == ports_needed("tensorflow", processes(nodes, per_node))


@pytest.mark.parametrize("framework", ["torch", "jax", "mpi", "deepspeed", "slurm", None])
def test_elsewhere_rank_0_alone_listens(framework: Any) -> None:
    assert ports_needed(framework, processes(3, 2)) == 1


@given(SIZES, SIZES)
def test_mpirun_starts_once(nodes: int, per_node: int) -> None:
    once = processes(nodes, per_node).model_copy(update={"starts": "once"})
    assert len(environments("mpi", once)) == 1


@pytest.mark.parametrize("framework", ["mpi", "slurm"])
def test_a_launcher_of_all_ranks_inherits_no_rank_that_they_would_share(framework: str) -> None:
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & environments(framework, processes())[0].keys()


def test_nodes_at_one_address_share_a_line_of_the_host_file() -> None:
    assert mpi_hostfile(processes(2, 3), ["127.0.0.1"] * 2) == "127.0.0.1 slots=6\n"


def test_nodes_at_their_own_addresses_have_their_own_lines() -> None:
    assert mpi_hostfile(processes(2, 3), ["10.0.0.1", "10.0.0.2"]) == "10.0.0.1 slots=3\n10.0.0.2 slots=3\n"


@pytest.mark.parametrize("as_root", [True, False])
def test_open_mpi_is_allowed_to_run_as_root_only_by_root(as_root: bool) -> None:
    env = command_environment("mpi", processes(), rendezvous(as_root=as_root), node=0, local_rank=0)
    assert ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM" in env) is as_root


def test_no_two_nodes_of_deepspeed_share_a_name() -> None:
    assert deepspeed_hostfile(on_gpus(2, 1, 8)) == "node-0 slots=8\nnode-1 slots=8\n"


def test_setup_finds_skypilot_s_names_for_it() -> None:
    env = setup_environment(environments("torch", processes(2, 1))[1])
    assert (env["SKYPILOT_SETUP_NODE_RANK"], env["SKYPILOT_SETUP_NODE_IPS"]) == ("1", "127.0.0.1\n127.0.0.1")


def test_nodes_with_addresses_of_their_own_are_met_there() -> None:
    place = rendezvous(nodes=("10.0.0.1", "10.0.0.2"))
    env = command_environment("tensorflow", processes(2, 2), place, node=1, local_rank=0)
    assert env["SKYPILOT_NODE_IPS"] == "10.0.0.1\n10.0.0.2"
    workers = [worker.split(":")[0] for worker in json.loads(env["TF_CONFIG"])["cluster"]["worker"]]
    assert workers == ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"]
