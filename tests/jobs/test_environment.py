"""The environment of a rank: every launcher's variables, all of one mind."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import processes
from trainworks.jobs.environment import rank_environment

SIZES = st.integers(1, 6)


def environments(nodes: int, per_node: int) -> list[dict[str, str]]:
    """Of all ranks, node by node."""
    ranks = [(node, local_rank) for node in range(nodes) for local_rank in range(per_node)]
    return [
        rank_environment(
            processes(nodes, per_node),
            node=node,
            local_rank=local_rank,
            master_address="127.0.0.1",
            master_port=29500,
            attempt=1,
        )
        for node, local_rank in ranks
    ]


@given(SIZES, SIZES)
def test_ranks_count_from_0_to_the_world_size(nodes: int, per_node: int) -> None:
    ranks = [int(env["RANK"]) for env in environments(nodes, per_node)]
    assert ranks == list(range(nodes * per_node))


@given(SIZES, SIZES)
def test_a_rank_is_its_node_times_the_ranks_per_node_and_its_local_rank(nodes: int, per_node: int) -> None:
    for env in environments(nodes, per_node):
        assert int(env["RANK"]) == int(env["NODE_RANK"]) * int(env["LOCAL_WORLD_SIZE"]) + int(env["LOCAL_RANK"])


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SKYPILOT_NODE_IPS"])
@given(nodes=SIZES, per_node=SIZES)
def test_all_ranks_agree(name: str, nodes: int, per_node: int) -> None:
    assert len({env[name] for env in environments(nodes, per_node)}) == 1


@given(SIZES, SIZES)
def test_the_world_size_is_the_number_of_ranks(nodes: int, per_node: int) -> None:
    assert {env["WORLD_SIZE"] for env in environments(nodes, per_node)} == {str(nodes * per_node)}


@given(SIZES, SIZES)
def test_skypilot_s_addresses_are_one_per_node(nodes: int, per_node: int) -> None:
    env = environments(nodes, per_node)[0]
    assert len(env["SKYPILOT_NODE_IPS"].splitlines()) == int(env["SKYPILOT_NUM_NODES"]) == nodes


@given(SIZES, SIZES)
def test_torchrun_s_arguments_are_its_variables(nodes: int, per_node: int) -> None:
    for env in environments(nodes, per_node):
        options = dict(option.removeprefix("--").split("=") for option in shlex.split(env["TORCHRUN_ARGS"]))
        names = {name: f"PET_{name.upper().replace('-', '_')}" for name in options}
        assert options == {name: env[variable] for name, variable in names.items()}


def test_a_rank_gets_these_variables(golden) -> None:
    env = environments(2, 2)[3]
    golden("rank_environment.txt", "".join(f"{name}={value!r}\n" for name, value in env.items()))


@pytest.mark.parametrize(("device", "gpus"), [("cpu", "0"), ("cuda", "2")])
def test_a_node_has_as_many_gpus_as_ranks_or_none(device: str, gpus: str) -> None:
    ranks = processes(1, 2).model_copy(update={"device": device})
    env = rank_environment(ranks, node=0, local_rank=0, master_address="a", master_port=1, attempt=1)
    assert env["SKYPILOT_NUM_GPUS_PER_NODE"] == gpus
