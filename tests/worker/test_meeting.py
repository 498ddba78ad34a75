"""How nodes meet, and how ranks reach each other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousTimeoutError

from tests.fakes import FakeClock
from tests.worker.parallel.test_evaluation import layout_of
from tests.worker.ranks import on_ranks
from trainworks.errors import EnvironmentProblem
from trainworks.record.processes import Processes
from trainworks.worker.agent import allocator_settings
from trainworks.worker.determinism import take_device
from trainworks.worker.health import meeting as meeting_module
from trainworks.worker.health.meeting import KnownNodes
from trainworks.worker.mesh import Mesh, join_group


def meet(handlers: Sequence[KnownNodes]) -> list[RendezvousInfo]:
    """All nodes meet, each in a thread of its own."""
    with ThreadPoolExecutor(len(handlers)) as pool:
        return list(pool.map(KnownNodes.next_rendezvous, handlers))


def handlers_of(nodes: int, store: dist.Store | None = None) -> list[KnownNodes]:
    """Agents of so many nodes, over one store."""
    store = store or dist.HashStore()
    return [KnownNodes("run", store, node, nodes, "127.0.0.1") for node in range(nodes)]


def port_of(met: RendezvousInfo) -> int:
    return met.bootstrap_store_info.master_port


@pytest.mark.parametrize("nodes", [1, 3, 64])
def test_all_nodes_meet_and_each_has_its_number(nodes: int) -> None:
    met = meet(handlers_of(nodes))
    assert [(each.rank, each.world_size) for each in met] == [(node, nodes) for node in range(nodes)]
    assert len({port_of(each) for each in met}) == 1


def test_a_node_that_fails_is_waited_for_and_calls_the_others() -> None:
    handlers = handlers_of(3)
    first = meet(handlers)
    assert [each.num_nodes_waiting() for each in handlers] == [0, 0, 0]
    with ThreadPoolExecutor(3) as pool:
        again = pool.submit(handlers[1].next_rendezvous)
        while not (handlers[0].num_nodes_waiting() and handlers[2].num_nodes_waiting()):
            assert not again.done()
        others = [pool.submit(handlers[node].next_rendezvous) for node in (0, 2)]
        met = [others[0].result(), again.result(), others[1].result()]
    assert [each.rank for each in met] == [0, 1, 2]
    first[0].store.set("of the first", "")
    assert not met[0].store.check(["of the first"])
    assert [each.num_nodes_waiting() for each in handlers] == [0, 0, 0]


@pytest.mark.parametrize("dies_after_all_met", [True, False])
def test_a_node_whose_agent_was_killed_takes_its_place_again(dies_after_all_met: bool) -> None:
    store = dist.HashStore()
    handlers = handlers_of(3, store)
    if dies_after_all_met:
        meet(handlers)
    else:  # it had come, and no other
        meeting = handlers[2]._open()
        handlers[2]._store.set(f"{meeting}/2", "")
    new = KnownNodes("run", store, 2, 3, "127.0.0.1")
    assert [each.rank for each in meet([*handlers[:2], new])] == [0, 1, 2]
    assert [each.num_nodes_waiting() for each in (*handlers[:2], new)] == [0, 0, 0]


def test_a_node_that_does_not_come_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting_module, "_JOIN_S", 0.0)
    with pytest.raises(RendezvousTimeoutError):
        handlers_of(2)[0].next_rendezvous()


def test_many_nodes_ask_less_often_while_their_ranks_run(clock: FakeClock) -> None:
    handler = KnownNodes("run", dist.HashStore(), 0, 1000, "127.0.0.1", clock=clock)
    handler._store.set("round", "1")
    found = []
    for _ in range(3):
        found.append(handler.num_nodes_waiting())
        clock.sleep(0.6)
    assert found == [1, 0, 1]


@pytest.mark.parametrize(("address", "device"), [("127.0.0.1", "lo"), ("localhost", "lo"), ("10.0.0.7", None)])
def test_only_ranks_of_one_machine_meet_over_its_loopback_device(
    monkeypatch: pytest.MonkeyPatch, address: str, device: str | None
) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: None)
    join_group("gloo", address)
    assert os.environ.get("GLOO_SOCKET_IFNAME") == device


@pytest.mark.parametrize("device", [torch.device("cuda", 3), torch.device("cpu"), None])
def test_nccl_connects_at_once_on_the_gpu_of_the_rank(
    monkeypatch: pytest.MonkeyPatch, device: torch.device | None
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: asked.update(options))
    join_group("nccl", "10.0.0.7", rank=3, world_size=8, device=device)
    assert asked["device_id"] == (device if device is not None and device.type == "cuda" else None)


def links(layout: Any, broken: bool) -> tuple[list[int], set[timedelta], str]:
    """Sizes of the groups that are used, their timeouts, and what is wrong with them."""
    mesh, sizes, sum_up = Mesh(layout, "cpu"), [], dist.all_reduce

    def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
        sizes.append(group.size())
        sum_up(tensor, group=group)
        tensor -= int(broken and group.size() == 2)

    dist.all_reduce = all_reduce  # type: ignore[assignment]
    problem = ""
    try:
        mesh.check_links(torch.device("cpu"), timedelta(minutes=3))
    except EnvironmentProblem as error:
        problem = error.message
    finally:
        dist.all_reduce = sum_up
    backends = [group._get_backend(torch.device("cpu")) for group in mesh._groups if group is not mesh.checkpoint_group]
    return sizes, {each.options._timeout for each in backends}, problem


def test_every_group_of_the_mesh_is_used_once_before_the_first_step() -> None:
    layout = layout_of(4, pp=2, tp=2, micro_batch=2)
    for sizes, timeouts, problem in on_ranks(4, links, layout, False):
        # all ranks and the checkpoint; pp and tp of the dense mesh, and those of sequences and of the tied embedding
        assert (sorted(sizes)[-2:], problem) == ([4, 4], "")
        assert sizes[0] == 4 and sizes.count(2) >= 4
        assert timeouts == {timedelta(minutes=3)}


def test_a_group_that_sums_wrongly_is_named_with_its_ranks() -> None:
    problems = [problem for _, _, problem in on_ranks(2, links, layout_of(2, dp_shard=2), True)]
    assert problems == ["ranks [0, 1] summed one each in the group `default_pg` and got 1"] * 2


def test_a_rank_without_a_gpu_says_how_many_torch_sees() -> None:
    processes = Processes(nodes=1, processes_per_node=8, threads_per_process=1, device="cuda")
    count = torch.cuda.device_count()
    with pytest.raises(EnvironmentProblem, match=rf"sees {count} GPUs on this node, and its local rank {count} needs"):
        take_device(processes, "bf16", count)


@pytest.mark.parametrize(
    ("device", "environment", "expected"),
    [
        ("cuda", {}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        ("cuda", {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, {}),
        ("cuda", {"PYTORCH_CUDA_ALLOC_CONF": ""}, {}),
        ("cpu", {}, {}),
    ],
)
def test_segments_of_a_gpus_memory_grow_unless_the_user_has_other_settings(
    device: str, environment: dict[str, str], expected: dict[str, str]
) -> None:
    assert allocator_settings(device, environment) == expected
