"""How long nodes wait before they meet, and how ranks reach each other."""

from __future__ import annotations

import os
import random
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.elastic.rendezvous.dynamic_rendezvous as torch_rendezvous
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from tests.worker.parallel.test_evaluation import layout_of
from tests.worker.ranks import on_ranks
from trainworks.errors import EnvironmentProblem
from trainworks.record.processes import Processes
from trainworks.worker.agent import allocator_settings
from trainworks.worker.determinism import take_device
from trainworks.worker.elastic import _shorten_delays
from trainworks.worker.mesh import Mesh, join_group


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Delays before a rendezvous; those that torch chooses at random are the longest."""
    monkeypatch.setattr(torch_rendezvous, "_delay", torch_rendezvous._delay)  # given back after the test
    monkeypatch.setattr(random, "uniform", lambda _, longest: longest)
    delays: list[float] = []
    own, sleep = threading.get_ident(), time.sleep

    def noted(seconds: float) -> None:
        if threading.get_ident() == own:
            delays.append(seconds)
        else:  # of a thread that an earlier test has left in this process
            sleep(seconds)

    monkeypatch.setattr(time, "sleep", noted)
    return delays


@pytest.mark.parametrize(("nodes", "longest_s"), [(1, 0.01), (8, 0.08), (100, 1.0), (5000, 1.0)])
def test_few_nodes_look_often_for_each_other_and_many_as_often_as_torch_does(
    slept: list[float], nodes: int, longest_s: float
) -> None:
    _shorten_delays(nodes)
    torch_rendezvous._delay(seconds=1)
    assert slept == [pytest.approx(longest_s)]


@pytest.mark.parametrize(("nodes", "expected"), [(1, []), (100, [0.3])])
def test_a_node_alone_meets_at_once(slept: list[float], nodes: int, expected: list[float]) -> None:
    _shorten_delays(nodes)
    store = dist.HashStore()
    handler = torch_rendezvous.DynamicRendezvousHandler.from_backend(
        "run", store, C10dRendezvousBackend(store, "run"), min_nodes=1, max_nodes=1, local_addr="127.0.0.1"
    )
    try:
        assert (handler.next_rendezvous().world_size, slept) == (1, expected)
    finally:
        handler.shutdown()


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
