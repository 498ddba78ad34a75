"""What a rank reports when it fails: the cause, and its memory by term as far as its tensors show."""

from __future__ import annotations

import functools
import os
import socket
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainworks.host import memory
from trainworks.record.events.job import FailureEvent
from trainworks.record.exit_code import ExitCode
from trainworks.record.fence import AttemptFence
from trainworks.record.memory import MemoryAtFailure
from trainworks.record.run_dir import RunDir
from trainworks.worker.health.heartbeat import Heartbeat
from trainworks.worker.health.rank_failure import explain, fingerprint, requested_bytes
from trainworks.worker.optimizer import StepOptimizer


@dataclass
class RankState:
    """State of a rank that a failure report needs."""

    heartbeat: Heartbeat
    device: torch.device = field(default_factory=functools.partial(torch.device, "cpu"))
    parts: Sequence[torch.nn.Module] = ()
    optimizer: StepOptimizer | None = None


def record_failure(run_dir: RunDir, node: int, error: BaseException, rank_state: RankState, *, rendezvous: str) -> int:
    """Record why this rank fails, unless a later start has the run; returns the exit code."""
    failure = explain(error)
    try:
        if AttemptFence(run_dir.events_file, rendezvous=rendezvous).is_superseded:
            traceback.print_exception(error)
            return ExitCode.SUPERSEDED
        last = rank_state.heartbeat.last
        held = memory_at_failure(error, rank_state).model_dump() if failure.cause == "oom" else None
        if failure.cause == "disk_full":
            run_dir.release_reserve()
        run_dir.note(
            FailureEvent(
                kind="failure",
                rank=int(os.environ["RANK"]),
                node=node,
                host=socket.gethostname(),
                pid=os.getpid(),
                cause=failure.cause,
                exit_code=int(failure.exit_code),
                signal=None,
                message=f"{failure.place}: {failure.message}" if failure.place else failure.message,
                hint=failure.hint,
                traceback="".join(traceback.format_exception(error)),
                step=last.step,
                phase=last.phase.text,
                memory=held,
                fingerprint=fingerprint(error),
                rendezvous=rendezvous,
            )
        )
        traceback.print_exception(error)
        sys.stderr.flush()
    except Exception:
        return ExitCode.ENVIRONMENT  # not even the record can be written
    return failure.exit_code


def memory_at_failure(error: BaseException, rank_state: RankState) -> MemoryAtFailure:
    """Memory of this rank before any of it is freed."""
    terms = _terms(rank_state)
    if rank_state.device.type == "cuda":
        return MemoryAtFailure(
            limited_by="accelerator",
            peak_bytes=torch.cuda.max_memory_allocated(rank_state.device),
            held_bytes=torch.cuda.memory_allocated(rank_state.device),
            reserved_bytes=torch.cuda.memory_reserved(rank_state.device),
            free_bytes=torch.cuda.mem_get_info(rank_state.device)[0],
            requested_bytes=requested_bytes(error),
            **terms,
        )
    limited_by, free_bytes = memory.memory_left_bytes()
    address_space = memory.address_space_left_bytes()
    if address_space is not None and address_space < free_bytes:
        limited_by, free_bytes = "address space", address_space
    held_bytes = memory.resident_bytes()  # before the peak, which is never below it then
    return MemoryAtFailure(
        limited_by=limited_by,
        peak_bytes=memory.peak_bytes(),
        held_bytes=held_bytes,
        free_bytes=free_bytes,
        requested_bytes=requested_bytes(error),
        **terms,
    )


def _terms(rank_state: RankState) -> dict[str, int]:
    if not rank_state.parts:
        return {}
    parameters = [parameter for part in rank_state.parts for parameter in part.parameters()]
    states = [] if rank_state.optimizer is None else list(rank_state.optimizer.adamw.state.values())
    return {
        "weights_bytes": _bytes(parameters, rank_state.device),
        "gradients_bytes": _bytes((parameter.grad for parameter in parameters), rank_state.device),
        "optimizer_bytes": _bytes((value for state in states for value in state.values()), rank_state.device),
    }


def _bytes(tensors: Iterable[object], device: torch.device) -> int:
    """Bytes of this rank's tensors that are on the device."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    held = [tensor for tensor in local if isinstance(tensor, Tensor) and tensor.device.type == device.type]
    return sum(tensor.numel() * tensor.element_size() for tensor in held)
