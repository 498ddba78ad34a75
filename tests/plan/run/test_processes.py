"""How often a command starts on this machine, and when it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import HOST
from trainworks.config.run_file import RunFile
from trainworks.errors import UsageError
from trainworks.plan.run.processes import (
    ResourceError,
    choose_command_processes,
    choose_role_processes,
    requested_host,
)
from trainworks.record.environment import AcceleratorFacts, HostFacts
from trainworks.record.processes import Processes


def with_gpus(count: int, name: str = "NVIDIA A100-SXM4-80GB") -> HostFacts:
    """A machine with accelerators and 16 cores."""
    found = tuple(AcceleratorFacts(index=index, name=name, memory_bytes=85 * 10**9) for index in range(count))
    return HOST.model_copy(update={"accelerators": found, "num_cores": 16})


def chosen(host: HostFacts = HOST, run: str = "python train.py", **keys: Any) -> Processes:
    """For a command with these keys."""
    return choose_command_processes(RunFile.model_validate({"name": "demo", "run": run} | keys), host)


def refusal(host: HostFacts = HOST, **keys: Any) -> str:
    """Message and hint."""
    with pytest.raises(UsageError) as refused:
        chosen(host, **keys)
    return refused.value.render()


@pytest.mark.parametrize(
    ("keys", "starts"),
    [
        ({}, "per_rank"),
        ({"framework": "jax"}, "per_rank"),
        ({"num_nodes": 2}, "per_node"),
        ({"resources": {"memory": "1+"}}, "per_node"),
        ({"num_nodes": 2, "cluster": {"processes_per_node": 2}}, "per_rank"),
        ({"framework": "mpi"}, "once"),
        ({"framework": "mpi", "num_nodes": 2}, "once"),
    ],
)
def test_who_makes_the_ranks_decides_how_often_a_command_starts(keys: dict[str, Any], starts: str) -> None:
    assert chosen(**keys).starts == starts


def test_a_skypilot_task_is_one_process_per_node_with_all_its_accelerators() -> None:
    ranks = chosen(with_gpus(8), num_nodes=2, resources={"accelerators": "A100:4"})
    assert (ranks.nodes, ranks.processes_per_node, ranks.accelerators_per_node) == (2, 1, 4)


def test_without_a_wish_the_nodes_share_all_accelerators() -> None:
    assert chosen(with_gpus(8), num_nodes=2).accelerators_per_node == 4


def test_threads_are_a_share_of_the_cores_for_each_accelerator() -> None:
    assert chosen(with_gpus(8), num_nodes=2).threads_per_process == 2


@pytest.mark.parametrize(
    ("host", "keys", "slots"),
    [
        (HOST, {}, 2),
        (HOST, {"cluster": {"processes_per_node": 5}}, 5),
        (HOST, {"num_nodes": 2}, 1),
        (with_gpus(8), {}, 8),
        (with_gpus(8), {"resources": {"accelerators": "A100:4"}}, 4),
    ],
)
def test_mpi_has_a_slot_per_accelerator_or_core_unless_told(host: HostFacts, keys: dict[str, Any], slots: int) -> None:
    assert chosen(host, framework="mpi", **keys).processes_per_node == slots


@pytest.mark.parametrize("written", ["A100:8", {"A100": 8}, ["V100:8", "A100:8"], {"V100:8": None, "A100:8": None}])
def test_every_way_to_write_accelerators_is_read(written: Any) -> None:
    assert chosen(with_gpus(8), resources={"accelerators": written}).accelerators_per_node == 8


@pytest.mark.parametrize("name", ["A100", "a100", "A100-80GB", "A100-SXM", "A100-SXM4-80GB"])
def test_an_accelerator_is_known_by_the_parts_of_its_name(name: str) -> None:
    assert chosen(with_gpus(1), resources={"accelerators": name}).accelerators_per_node == 1


PART = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"


@pytest.mark.parametrize("name", ["1g.5gb", "1g_5gb", "A100-1g.5gb", "gpu"])
def test_a_part_by_mig_is_known_by_its_profile(name: str) -> None:
    assert chosen(with_gpus(1, PART), resources={"accelerators": name}).accelerators_per_node == 1


@pytest.mark.parametrize("name", ["A100", "2g.10gb", "1g.5gb+me", "H100-1g.5gb"])
def test_another_part_or_the_whole_is_not_taken_for_it(name: str) -> None:
    with pytest.raises(ResourceError, match=f"but this machine has 1 {PART}"):
        chosen(with_gpus(1, PART), resources={"accelerators": name})


@pytest.mark.parametrize("name", ["A10", "A100-40GB", "H100", "A100-PCIE"])
def test_another_accelerator_is_not_taken_for_it(name: str) -> None:
    with pytest.raises(ResourceError) as refused:
        chosen(with_gpus(1), resources={"accelerators": name})
    assert refused.value.field == "accelerators"


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"accelerators": "A100:8"}, "8 A100 requested, but this machine has no accelerator"),
        ({"accelerators": ["A100:8", "H100"]}, "8 A100 or 1 H100 requested, but this machine has no accelerator"),
        ({"cpus": "4+"}, "4 cores requested, but this machine has 2"),
        ({"memory": "32"}, "32.0 GB of memory requested, but this machine has 16.0 GB"),
    ],
)
def test_what_this_machine_lacks_is_refused(resources: dict[str, Any], message: str) -> None:
    assert message in refusal(resources=resources)


def test_the_nodes_of_one_machine_share_what_it_has() -> None:
    assert "4 cores requested, but this machine has 2" in refusal(num_nodes=2, resources={"cpus": 2})


def test_more_than_this_machine_has_is_refused_with_what_it_has() -> None:
    message = refusal(with_gpus(8), num_nodes=2, resources={"accelerators": "A100:8"})
    assert "16 A100 (2 nodes) requested" in message
    assert "this machine has 8 NVIDIA A100-SXM4-80GB" in message


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed", "mpirun", "mpiexec", "horovodrun"])
def test_a_launcher_is_not_started_once_per_rank(launcher: str) -> None:
    message = refusal(run=f"cd src && {launcher} train.py", cluster={"processes_per_node": 2})
    assert f"{launcher} would be started 2 times on each node" in message


def test_an_option_of_that_name_is_no_launcher() -> None:
    assert chosen(run="python train.py --deepspeed ds.json", cluster={"processes_per_node": 2}).world_size == 2


def test_a_launcher_may_start_once_per_node() -> None:
    assert chosen(run="torchrun $TORCHRUN_ARGS train.py", num_nodes=2).world_size == 2


def test_nodes_elsewhere_have_the_memory_that_was_asked_for_to_the_byte() -> None:
    keys = {"num_nodes": 3, "resources": {"memory": "4.294967296"}, "cluster": {"engine": "kubernetes"}}
    asked = RunFile.model_validate({"name": "demo", "run": "true"} | keys)
    assert choose_command_processes(asked, requested_host(asked)).nodes == 3


def of_roles(host: HostFacts, **roles: dict[str, Any]) -> Processes:
    """For a job with these roles."""
    return choose_role_processes(RunFile.model_validate({"name": "demo", "roles": roles}), host)


ROLES: dict[str, dict[str, Any]] = {
    "trainer": {"run": "torchrun train.py", "nodes": 2, "resources": {"accelerators": "gpu:2", "cpus": 3}},
    "rollout": {"run": "vllm", "nodes": 3, "processes_per_node": 2, "resources": {"accelerators": "gpu:1"}},
    "fetch": {"run": "get"},
}


def test_roles_share_the_accelerators_and_cores_of_a_machine() -> None:
    found = of_roles(with_gpus(8), **ROLES | {"rollout": ROLES["rollout"] | {"processes_per_node": 1}})
    trainer, rollout, fetch = found.roles.values()
    assert [one.device for one in (trainer, rollout, fetch)] == ["cuda", "cuda", "cpu"]
    assert (trainer.threads_per_process, rollout.threads_per_process, fetch.threads_per_process) == (1, 2, 2)
    assert (found.nodes, found.world_size, found.num_accelerators, found.device) == (6, 6, 7, "cuda")
    assert [group.first_accelerator for group in found.groups()] == [0, 4, 7]
    assert (found.group_of(4).role, found.rank_name(4), list(found.group_of(4).ranks_of(4))) == (
        "rollout",
        "rollout-2",
        [4],
    )


def test_ranks_are_numbered_through_all_roles() -> None:
    found = of_roles(HOST, first={"run": "a", "nodes": 2, "processes_per_node": 3}, second={"run": "b", "nodes": 2})
    assert [list(found.group_of(node).ranks_of(node)) for node in range(4)] == [[0, 1, 2], [3, 4, 5], [6], [7]]
    assert [found.rank_name(rank) for rank in (5, 6)] == ["first-5", "second-0"]


def test_a_role_is_refused_what_those_before_it_have_taken() -> None:
    with pytest.raises(ResourceError) as refused:
        of_roles(
            with_gpus(5), trainer=ROLES["trainer"], rollout={"run": "vllm", "resources": {"accelerators": "gpu:2"}}
        )
    assert refused.value.path == ("roles", "rollout", "resources", "accelerators")
    assert refused.value.message.startswith("role `rollout`, beside those before it: 2 gpu requested, but")


def test_roles_elsewhere_get_what_they_request() -> None:
    asked = RunFile.model_validate(
        {"name": "demo", "roles": ROLES | {"rollout": {"run": "x", "resources": {"cpus": 4}}}}
    )
    found = choose_role_processes(asked, requested_host(asked))
    assert [(one.nodes, one.accelerators_per_node) for one in found.roles.values()] == [(2, 2), (1, 0), (1, 0)]
    assert found.roles["rollout"].threads_per_process == 4
