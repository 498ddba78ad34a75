"""Measure transfers between ranks: `python -m trainworks.worker.bench.ranks REQUEST_JSON NODE NODES NAME ADDRESS PORT`.

Started on every node of a job; the first one listens at ADDRESS:PORT. The ranks of one accelerator each, or of one
processor, start anew for every setting, because a communication library reads its variables once. The first node prints
the parts.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from trainworks.host.network import LOOPBACK
from trainworks.host.probe import probe_accelerators
from trainworks.record.measured.bench import BenchRequest, BenchSetting, unique_names
from trainworks.worker.bench.collectives import measure_collectives, measure_with_nccl_tests
from trainworks.worker.bench.output import print_end, print_nodes, print_part
from trainworks.worker.bench.pairs import RankPlace, measure_pairs
from trainworks.worker.fork_server import start_fork_server
from trainworks.worker.mesh import join_group, open_store

_MEETING = timedelta(hours=2)
"""Longest time between the first node that waits and the last one that arrives."""
_CALL = timedelta(minutes=10)
"""Longest time of one collective operation."""
_CPU_RANKS = 2
"""Ranks of a processor that is alone: one rank has nothing to transfer."""


@dataclass(frozen=True, slots=True)
class _Group:
    node: int
    names: tuple[str, ...]
    ranks_per_node: int
    address: str
    port: int


def main(request_json: str, node: str, nodes: str, name: str, address: str = LOOPBACK, port: str = "0") -> None:
    """Measure this node's share; returns when all nodes have finished."""
    request, count = BenchRequest.model_validate_json(request_json), int(nodes)
    start_fork_server(())  # before there is a store: its thread may hold a lock that no fork gets free
    store = open_store(address, int(port), serves=node == "0", timeout=_MEETING)
    store.set(f"name/{node}", name)
    names = unique_names([store.get(f"name/{each}").decode() for each in range(count)])
    print_nodes(names)
    per_node = len(probe_accelerators()) or (_CPU_RANKS if count == 1 else 1)  # torch, once asked, could not fork
    if node == "0":  # its request counts: it has the record of earlier attempts
        if request.group != names:  # what was measured on other nodes does not count
            request = request.model_copy(update={"done": ()})
        if not request.built_in and probe_accelerators():
            request = measure_with_nccl_tests(request, names, per_node)
        store.set("request", request.model_dump_json())
    request = BenchRequest.model_validate_json(store.get("request"))
    group = _Group(int(node), names, per_node, address, store.port)
    for index in range(len(request.settings)):
        mp.start_processes(_rank, (group, request, index), nprocs=per_node, start_method="forkserver")  # type: ignore[no-untyped-call]
    print_end()
    store.set(f"end/{node}", "")
    if node == "0":
        store.wait([f"end/{each}" for each in range(count)])


def _rank(local_rank: int, group: _Group, request: BenchRequest, index: int) -> None:
    setting = request.settings[index]
    os.environ.update(setting.env)
    store = dist.PrefixStore(f"setting/{index}", open_store(group.address, group.port, timeout=_MEETING))
    rank, device = group.node * group.ranks_per_node + local_rank, torch.device("cpu")
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    world_size = len(group.names) * group.ranks_per_node
    join_group(backend, group.address, store, rank=rank, world_size=world_size, timeout=_CALL, device=device)
    subject = (
        f"{group.names[0]}, {group.ranks_per_node} ranks" if len(group.names) == 1 else f"{len(group.names)} nodes"
    )
    if "collectives" in request.kinds:
        measure_collectives(request, setting, device, subject, nodes=len(group.names))
    _pairs(request, setting, RankPlace(rank, local_rank, group.node, group.names, group.ranks_per_node, device, store))
    dist.barrier()
    dist.destroy_process_group()


def _pairs(request: BenchRequest, setting: BenchSetting, place: RankPlace) -> None:
    part = f"network@{setting.name}"
    if not request.wants("network", part):
        return
    skipped = "one node has no link to another: name more with `--nodes`" if len(place.names) == 1 else ""
    figures = [] if skipped else measure_pairs(place, setting.name, full=request.full, built_in=request.built_in)
    if place.rank == 0:
        print_part(part, figures, skipped)


if __name__ == "__main__":
    main(*sys.argv[1:])
