"""What ended a rank, in the words of the record, and whether starting again can help."""

from __future__ import annotations

import re
import traceback

import torch

from trainworks.errors import DiskFullError, EnvironmentProblem, TrainworksError
from trainworks.record.exit_code import ExitCode

__all__ = ["Failure", "explain"]

_PEER_LOST = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|Socket (closed|Timeout)|Timed out waiting|gloo|NCCL|"
    r"failed to recv|Read error|unhandled system error",
    re.IGNORECASE,
)

_MISUSE = re.compile(r"invalid (usage|argument)|not supported|Duplicate GPU", re.IGNORECASE)
"""Words of the same libraries for what would fail the same way again."""


class Failure:
    """Cause, message and hint of the exception that ended a rank."""

    def __init__(self, cause: str, exit_code: ExitCode, message: str, hint: str | None = None) -> None:
        self.cause = cause
        self.exit_code = exit_code
        self.message = message
        self.hint = hint


def explain(error: BaseException) -> Failure:
    """Name the cause of an exception.

    Causes: `disk_full`, `environment`, `user_error`, `oom`, `peer_lost`.
    """
    if isinstance(error, DiskFullError):
        return Failure("disk_full", ExitCode.ENVIRONMENT, error.message, error.hint)
    if isinstance(error, EnvironmentProblem):
        return Failure("environment", ExitCode.ENVIRONMENT, error.message, error.hint)
    if isinstance(error, TrainworksError):
        return Failure("user_error", ExitCode.USER_ERROR, error.message, error.hint)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        message = f"out of memory: {_first_line(error)}"
        return Failure(
            "oom", ExitCode.USER_ERROR, message, "lower `layout.micro_batch`, or shard with `layout.dp_shard`"
        )
    if _is_lost_peer(error):
        return Failure("peer_lost", ExitCode.PEER_LOST, "lost contact to another rank")
    return Failure("user_error", ExitCode.USER_ERROR, f"{type(error).__name__}: {_first_line(error)}")


def _is_lost_peer(error: BaseException) -> bool:
    if _MISUSE.search(str(error)):
        return False
    if isinstance(error, torch.distributed.DistError | ConnectionError):
        return True
    return isinstance(error, RuntimeError) and _PEER_LOST.search(str(error)) is not None


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or traceback.format_exception_only(error)[-1].strip()
    return text.splitlines()[0]
