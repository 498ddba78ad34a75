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

from trainworks.host.network import LOOPBACK, is_loopback
from trainworks.host.probe import probe_accelerators
from trainworks.record.measured.bench import BenchRequest, BenchSetting, unique_names
from trainworks.worker.bench.collectives import measure_collectives
from trainworks.worker.bench.link_programs import RankPlace
from trainworks.worker.bench.nccl_tests import measure_with_nccl_tests
from trainworks.worker.bench.output import print_end, print_nodes, print_part
from trainworks.worker.bench.pairs import measure_pairs
from trainworks.worker.fork_server import start_fork_server

_MEETING = timedelta(hours=2)
"""Longest time between the first node that waits and the last one that arrives."""
_CALL = timedelta(minutes=10)
"""Longest time of one collective operation."""
_CPU_RANKS = 2
"""Ranks of a processor that is alone: one rank has nothing to transfer."""


@dataclass(frozen=True, slots=True)
class _Group:
    """All nodes of the job, and the ranks on each."""

    node: int
    names: tuple[str, ...]
    ranks_per_node: int
    address: str
    port: int

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return len(self.names) * self.ranks_per_node


def main(request_json: str, node: str, nodes: str, name: str, address: str = LOOPBACK, port: str = "0") -> None:
    """Measure this node's share; returns when all nodes have finished."""
    request, count = BenchRequest.model_validate_json(request_json), int(nodes)
    if is_loopback(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    start_fork_server(())  # before there is a store: its thread may hold a lock that no fork gets free
    store = dist.TCPStore(address, int(port), is_master=node == "0", wait_for_workers=False, timeout=_MEETING)
    store.set(f"name/{node}", name)
    names = unique_names([store.get(f"name/{each}").decode() for each in range(count)])
    print_nodes(names)
    per_node = len(probe_accelerators()) or (_CPU_RANKS if count == 1 else 1)  # torch, once asked, could not fork
    if node == "0":  # its request counts: it has the record of earlier attempts
        store.set("request", _still_to_measure(request, names, per_node).model_dump_json())
    request = BenchRequest.model_validate_json(store.get("request"))
    group = _Group(int(node), names, per_node, address, store.port)
    for index in range(len(request.settings)):
        mp.start_processes(_rank, (group, request, index), nprocs=per_node, start_method="forkserver")  # type: ignore[no-untyped-call]
    print_end()
    store.set(f"end/{node}", "")
    if node == "0":
        store.wait([f"end/{each}" for each in range(count)])


def _still_to_measure(request: BenchRequest, names: tuple[str, ...], ranks_per_node: int) -> BenchRequest:
    """The request without what earlier attempts on the same nodes have measured, or nccl-tests measures now."""
    if request.group != names:
        request = request.model_copy(update={"done": ()})
    if request.built_in or not probe_accelerators():
        return request
    return measure_with_nccl_tests(request, names, ranks_per_node)


def _rank(local_rank: int, group: _Group, request: BenchRequest, index: int) -> None:
    setting = request.settings[index]
    os.environ.update(setting.env)
    store = dist.PrefixStore(f"setting/{index}", dist.TCPStore(group.address, group.port, timeout=_MEETING))
    rank, device = group.node * group.ranks_per_node + local_rank, torch.device("cpu")
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=group.world_size, timeout=_CALL)
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
        return None
    if len(place.names) > 1:
        figures = measure_pairs(place, setting.name, full=request.full, built_in=request.built_in)
    elif place.rank == 0:
        return print_part(part, skipped="one node has no link to another: name more with `--nodes`")
    else:
        return None
    if place.rank == 0:
        print_part(part, figures)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
