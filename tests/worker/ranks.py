"""Run a function on real ranks that meet over gloo, and get back what each returns."""

from __future__ import annotations

import multiprocessing
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from trainworks.host.network import LOOPBACK, listen

_PRELOADED = [
    "torch._dynamo",
    "trainworks.worker.parallel.pipeline",
    "trainworks.worker.tasks.transformer_tasks",
    "transformers.models.llama.modeling_llama",
    "trainworks.worker.preloaded",
]
"""What the one fork server of a test process imports: everything that some rank needs."""
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(_PRELOADED)
_TIMEOUT_S = 540.0  # below the time limit of a test; two ranks compile for minutes on a busy machine


def on_ranks(world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(*arguments)` on every rank of a process group; an exception on one ends all and is raised here."""
    listener = listen()  # passed on open: a port that is free now may be taken before rank 0 listens
    pipes = [FORKSERVER.Pipe(duplex=False) for _ in range(world_size)]
    processes = [
        FORKSERVER.Process(target=_rank, args=(rank, world_size, listener, pipes[rank][1], function, arguments))
        for rank in range(world_size)
    ]
    for process, (_, writing) in zip(processes, pipes, strict=True):
        process.start()
        writing.close()
    listener.close()
    results: dict[int, Any] = {}
    try:
        waiting = {pipes[rank][0]: rank for rank in range(world_size)}
        while waiting:
            ready = wait(list(waiting), timeout=_TIMEOUT_S)
            assert ready, f"ranks {sorted(waiting.values())} did not answer in {_TIMEOUT_S:.0f} s"
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting.pop(pipe)
                fine, result = _received(pipe)
                assert fine, f"rank {rank}:\n{result}"
                results[rank] = result
    finally:
        for process in processes:
            if len(results) < world_size:
                process.kill()
            process.join(10)
    return [results[rank] for rank in range(world_size)]


def _received(pipe: Connection) -> tuple[bool, Any]:
    try:
        fine, result = pipe.recv()
    except EOFError:
        return False, "died without a word"
    return fine, result


def _rank(
    rank: int,
    world_size: int,
    listener: socket.socket,
    pipe: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    import os
    import warnings
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=FutureWarning)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.TCPStore(
        LOOPBACK,
        listener.getsockname()[1],
        is_master=rank == 0,
        wait_for_workers=False,
        master_listen_fd=listener.detach() if rank == 0 else None,
    )
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=_TIMEOUT_S / 2)
    )
    try:
        pipe.send((True, function(*arguments)))
        dist.barrier()
    except BaseException:
        pipe.send((False, traceback.format_exc()))
