"""Run a function on real ranks that meet over gloo, and get back what each returns."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from trainworks.host.network import LOOPBACK, listen
from trainworks.host.process import state

_PRELOADED = [
    "pytest",  # by the module of the test
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
_LOOK_EVERY_S = 5.0
_STANDING = 0.02
"""Share of a core below which a rank waits: gloo's threads look for messages now and then."""


def on_ranks(  # noqa: PLR0915  (start, wait, end)
    world_size: int, function: Callable[..., Any], *arguments: Any, limit_s: float = _TIMEOUT_S
) -> list[Any]:
    """`function(*arguments)` on every rank of a process group; an exception on one ends all and is raised here.

    After `limit_s`, ranks that only wait have failed, and the message has the stacks of all. On a busy machine ranks
    that still compute may take longer.
    """
    listener = listen()  # passed on open: a port that is free now may be taken before rank 0 listens
    pipes = [FORKSERVER.Pipe(duplex=False) for _ in range(world_size)]
    stacks = tempfile.TemporaryDirectory()
    files = [Path(stacks.name) / f"rank-{rank}" for rank in range(world_size)]
    processes = [
        FORKSERVER.Process(
            target=_rank, args=(rank, world_size, listener, pipes[rank][1], str(files[rank]), function, arguments)
        )
        for rank in range(world_size)
    ]
    for process, (_, writing) in zip(processes, pipes, strict=True):
        process.start()
        writing.close()
    listener.close()
    results: dict[int, Any] = {}
    started, used_s = time.monotonic(), 0.0
    try:
        waiting = {pipes[rank][0]: rank for rank in range(world_size)}
        while waiting:
            ready = wait(list(waiting), timeout=min(limit_s, _LOOK_EVERY_S))
            if not ready:
                before_s, used_s = used_s, sum(_processor_s(process.pid) for process in processes)
                stand_still = used_s - before_s < _STANDING * _LOOK_EVERY_S * world_size
                if time.monotonic() - started > limit_s and stand_still and not any(map(_is_held_up, processes)):
                    late = f"ranks {sorted(waiting.values())} did not answer in {limit_s:.0f} s"
                    raise AssertionError("\n".join([late, *_stacks(processes, files)]))
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting.pop(pipe)
                fine, result = _received(pipe, processes[rank], files[rank])
                assert fine, f"rank {rank}:\n{result}"
                results[rank] = result
    finally:
        for process in processes:
            if len(results) < world_size:
                process.kill()
            process.join(10)
        stacks.cleanup()
    return [results[rank] for rank in range(world_size)]


def _processor_s(pid: int | None) -> float:
    """Processor time of a process so far; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _is_held_up(process: ForkServerProcess) -> bool:
    """Whether a thread would work if it were given a core, or what it reads from the disk."""
    try:
        threads = list(Path(f"/proc/{process.pid}/task").iterdir())
    except OSError:
        return False
    return any(state(int(thread.name)) in ("R", "D") for thread in threads)


def _stacks(processes: Sequence[ForkServerProcess], files: Sequence[Path]) -> list[str]:
    """What every rank is in, by its own account."""
    for process in processes:
        if process.pid is not None and process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGUSR1)
    time.sleep(1.0)
    texts = [file.read_text().strip() if file.exists() else "" for file in files]
    return [f"rank {rank}:\n{text or 'has ended, or does not answer'}" for rank, text in enumerate(texts)]


def _received(pipe: Connection, process: ForkServerProcess, stack: Path) -> tuple[bool, Any]:
    try:
        fine, result = pipe.recv()
    except EOFError:
        process.join(10)
        last_words = stack.read_text() if stack.exists() else ""
        return False, f"ended with exit code {process.exitcode} and no result\n{last_words}"
    return fine, result


def _rank(
    rank: int,
    world_size: int,
    listener: socket.socket,
    pipe: Connection,
    stacks: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    import faulthandler
    import warnings
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    file = open(stacks, "w")  # noqa: SIM115  (to the end)
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
    faulthandler.enable(file)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=FutureWarning)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
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
        pipe.send((True, function(*arguments)))
        dist.barrier()
    except BaseException:
        pipe.send((False, traceback.format_exc()))
