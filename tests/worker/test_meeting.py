"""How long nodes wait before they meet, and how ranks reach each other."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest
import torch.distributed as dist
import torch.distributed.elastic.rendezvous.dynamic_rendezvous as torch_rendezvous
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from trainworks.worker.elastic import _shorten_delays
from trainworks.worker.mesh import join_group


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
