"""Names the cause of an exception that ended a rank. Whether to restart is decided in `recover.decisions`."""

from __future__ import annotations

import errno
import hashlib
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint import CheckpointException

from trainworks.errors import DiskFullError, DivergedError, EnvironmentProblem, TrainworksError
from trainworks.record.exit_code import ExitCode
from trainworks.units import format_bytes, parse_bytes
from trainworks.worker.tasks.user_module import place_in_user_code

_OUT_OF_MEMORY = re.compile(r"can't allocate memory|out of memory|bad_alloc|ALLOC_FAILED|Cannot allocate memory")
_REQUESTED = re.compile(r"[Tt]ried to allocate (\d+(?:\.\d+)? (?:[KMGT]iB|bytes))")
_PEER_LOST = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|Socket (closed|Timeout)|Timed out waiting|gloo|NCCL|"
    r"failed to recv|Read error|unhandled system error",
    re.IGNORECASE,
)

_ACCELERATOR = re.compile(
    r"(CUDA|HIP|XPU|cuDNN|cuFFT|NVML) error|(CUBLAS|CUDNN|CUSPARSE|CUSOLVER|HIPBLAS|MIOPEN)_STATUS_|CUDA unknown error|"
    r"Cuda failure|unhandled cuda error|UnhandledCudaError|cudaGetDeviceCount|\bXid\b|uncorrectable ECC",
    re.IGNORECASE,
)
"""Errors that the driver or a library of an accelerator reports."""

_MISUSE = re.compile(
    r"invalid (usage|argument|device|configuration|resource handle)|not[ _]supported|Duplicate GPU|device-side assert|"
    r"no kernel image|INVALID_VALUE|BAD_PARAM|ARCH_MISMATCH",
    re.IGNORECASE,
)
"""Errors of the same libraries that the program causes."""

_STORAGE_ERRNOS = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EREMOTEIO,
        errno.ENOLINK,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
    }
)
"""Errors of a disk or a network file system that may pass: https://man7.org/linux/man-pages/man3/errno.3.html"""

_FORESEEN: tuple[tuple[type[TrainworksError], str, ExitCode], ...] = (
    (DiskFullError, "disk_full", ExitCode.ENVIRONMENT),
    (EnvironmentProblem, "environment", ExitCode.ENVIRONMENT),
    (DivergedError, "diverged", ExitCode.USER_ERROR),
    (TrainworksError, "user_error", ExitCode.USER_ERROR),
)
"""The first that fits names the cause."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if an allocation failed, in any library."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None


def requested_bytes(error: BaseException) -> int | None:
    """Bytes named in the error of torch's allocators: `20.00 GiB` on accelerators, `12884901888 bytes` on CPUs."""
    found = _REQUESTED.search(str(error))
    return None if found is None else parse_bytes(found[1].replace(" bytes", " B"))


@dataclass(frozen=True, slots=True)
class RankFailure:
    """Cause, message, hint, and `file:line` in a user's file, of the exception that ended a rank."""

    cause: str
    exit_code: ExitCode
    message: str
    hint: str | None = None
    place: str | None = None


def explain(error: BaseException) -> RankFailure:
    """Name the cause of an exception.

    Causes: `disk_full`, `environment`, `diverged`, `user_error`, `oom`, `gpu_fault`, `storage_fault`, `peer_lost`.
    A rank that SIGINT interrupted was `killed`.
    """
    for name_cause in (_hardware_fault, _out_of_memory, _lost_peer, _foreseen, _not_deterministic):
        if (failure := name_cause(error)) is not None:
            return failure
    if isinstance(error, KeyboardInterrupt):
        return RankFailure("killed", ExitCode.PEER_LOST, "interrupted by SIGINT")
    return RankFailure("user_error", ExitCode.USER_ERROR, _summary(error), place=place_in_user_code(error))


def fingerprint(error: BaseException) -> str:
    """Hash of the exception's type, message and innermost line of code; equal for the same failure in any process.

    Digits in the message are left out: process ids, addresses and measured values differ between attempts.
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    text = "\n".join([type(error).__qualname__, place, re.sub(r"0x[0-9a-f]+|\d+", "#", _first_line(error))])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _hardware_fault(error: BaseException) -> RankFailure | None:
    for link in _chain(error):
        if isinstance(link, OSError) and link.errno in _STORAGE_ERRNOS:
            return RankFailure("storage_fault", ExitCode.HARDWARE_FAULT, f"storage failed: {_summary(error)}")
        if _is_accelerator_fault(link):
            message, hint = f"accelerator failed: {_first_line(link)}", "look for `Xid` in the kernel log: dmesg"
            return RankFailure("gpu_fault", ExitCode.HARDWARE_FAULT, message, hint)
    return None


def _is_accelerator_fault(error: BaseException) -> bool:
    if not isinstance(error, RuntimeError) or is_out_of_memory(error) or _MISUSE.search(str(error)):
        return False
    return isinstance(error, torch.AcceleratorError) or _ACCELERATOR.search(str(error)) is not None


def _foreseen(error: BaseException) -> RankFailure | None:
    for kind, cause, exit_code in _FORESEEN:
        if isinstance(error, kind):
            return RankFailure(cause, exit_code, error.message, error.hint, error.place or place_in_user_code(error))
    return None


def _out_of_memory(error: BaseException) -> RankFailure | None:
    if not is_out_of_memory(error):
        return None
    asked = requested_bytes(error)
    what = _first_line(error) if asked is None else f"cannot allocate {format_bytes(asked)} more"
    return RankFailure("oom", ExitCode.USER_ERROR, f"out of memory: {what}")


def _not_deterministic(error: BaseException) -> RankFailure | None:
    if "does not have a deterministic implementation" not in str(error):
        return None
    return RankFailure(
        "user_error",
        ExitCode.USER_ERROR,
        _first_line(error).partition(", but")[0],
        "replace that operation in the model, or set `workload.deterministic: false`",
    )


def _lost_peer(error: BaseException) -> RankFailure | None:
    if not isinstance(error, ConnectionError) and not any(_is_failed_collective(link) for link in _chain(error)):
        return None
    return RankFailure("peer_lost", ExitCode.PEER_LOST, "lost contact to another rank")


def _is_failed_collective(error: BaseException) -> bool:
    if not isinstance(error, RuntimeError) or _MISUSE.search(str(error)):
        return False
    return isinstance(error, torch.distributed.DistError) or _PEER_LOST.search(str(error)) is not None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and those that it was raised from, including what other ranks reported of a checkpoint."""
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        seen.append(link)
        yield link
        if isinstance(link, CheckpointException):
            yield from (reason for reason, _ in link.failures.values())
        link = link.__cause__ or link.__context__


def _summary(error: BaseException) -> str:
    if isinstance(error, TrainworksError):
        return error.message
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or traceback.format_exception_only(error)[-1].strip()
    return text.splitlines()[0]
