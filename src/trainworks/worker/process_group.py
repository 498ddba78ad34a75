"""Join the process group of a run: the device of a rank, its rendezvous, and the signals that it answers."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from trainworks.errors import PortInUseError
from trainworks.host.network import LOOPBACK, is_loopback, listen
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.worker.data.card import DataFolders
from trainworks.worker.determinism import make_deterministic
from trainworks.worker.health.hang import HangLimits
from trainworks.worker.health.out_of_memory import RankState
from trainworks.worker.stopping import StopRequest

_TIMEOUT = timedelta(minutes=10)
"""Least timeout of a collective; the node agent detects a hang long before."""


@dataclass(frozen=True, slots=True)
class JoinedRank:
    """Rank, device and run directory of this process."""

    rank: int
    world_size: int
    node: int
    device: torch.device
    run_dir: RunDir
    data: DataFolders
    stop: StopRequest
    state: RankState


def join(resolved: ResolvedRun, run_dir: RunDir, data: DataFolders, node: int, rank_state: RankState) -> JoinedRank:
    """Join the process group; from now on SIGTERM requests a clean stop."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(resolved.processes.threads_per_process)
    if resolved.run_file.workload is not None and resolved.run_file.workload.deterministic:
        make_deterministic()
    device = torch.device("cpu")
    if resolved.processes.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        if resolved.run_file.workload is not None and resolved.run_file.workload.precision == "tf32":
            torch.set_float32_matmul_precision("high")
    rank_state.device = device
    stop = StopRequest(run_dir, watch_file=rank == 0)
    signal.signal(signal.SIGTERM, stop.note_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if is_loopback(_master_address()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        resolved.processes.backend,
        store=_store(rank),
        rank=rank,
        world_size=world_size,
        timeout=_collective_timeout(resolved),
    )
    return JoinedRank(rank, world_size, node, device, run_dir, data, stop, rank_state)


def _collective_timeout(resolved: ResolvedRun) -> timedelta:
    """Longer than the allowed silence of a rank, because the node agent detects hangs."""
    assert resolved.plan is not None
    silence_s = resolved.run_file.recover.hang_timeout
    if silence_s == "auto":
        silence_s = HangLimits().of_step([resolved.plan.step_time.total_s])
    return max(_TIMEOUT, timedelta(seconds=3 * silence_s))


def _store(rank: int) -> dist.Store:
    """The store of this group of workers; rank 0 serves it, at the address of its node."""
    address, port = _master_address(), int(os.environ["MASTER_PORT"])
    listener = _listener(address, port) if rank == 0 else None
    return dist.TCPStore(
        address,
        port,
        is_master=rank == 0,
        wait_for_workers=False,
        master_listen_fd=listener,
        timeout=_TIMEOUT,
    )


def _master_address() -> str:
    """Address of rank 0's node, set by the agent; without an agent all ranks are on this machine."""
    return os.environ.get("MASTER_ADDR", LOOPBACK)


def rendezvous() -> str:
    """Rendezvous of this attempt, different for each attempt."""
    return f"{_master_address()}:{os.environ['MASTER_PORT']}"


def _listener(address: str, port: int) -> int:
    """Listen on the port that the agent chose; if it is taken by now, the next attempt gets another one."""
    try:
        return listen(port, address).detach()
    except PortInUseError as error:
        raise ConnectionError(error.message) from None


def pids_by_rank(rank: JoinedRank) -> list[int]:
    """Process ids of all ranks, in their order, on every rank."""
    pids = [0] * rank.world_size
    dist.all_gather_object(pids, os.getpid())
    return pids
