"""What ended a rank, in the words of the record, and whether starting again can help."""

from __future__ import annotations

import re
import traceback

import torch

from trainworks.errors import DiskFullError, DivergedError, EnvironmentProblem, TrainworksError
from trainworks.record.exit_code import ExitCode
from trainworks.units import format_bytes
from trainworks.worker.memory import is_out_of_memory, requested_bytes
from trainworks.worker.user_module import place_in_user_code

__all__ = ["Failure", "explain"]

_PEER_LOST = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|Socket (closed|Timeout)|Timed out waiting|gloo|NCCL|"
    r"failed to recv|Read error|unhandled system error",
    re.IGNORECASE,
)

_MISUSE = re.compile(r"invalid (usage|argument)|not supported|Duplicate GPU", re.IGNORECASE)
"""Words of the same libraries for what would fail the same way again."""


_NOT_DETERMINISTIC = "does not have a deterministic implementation"
_FORESEEN: tuple[tuple[type[TrainworksError], str, ExitCode], ...] = (
    (DiskFullError, "disk_full", ExitCode.ENVIRONMENT),
    (EnvironmentProblem, "environment", ExitCode.ENVIRONMENT),
    (DivergedError, "diverged", ExitCode.USER_ERROR),
    (TrainworksError, "user_error", ExitCode.USER_ERROR),
)
"""The first that fits names the cause."""


class Failure:
    """Cause, message, hint, and `file:line` in a user's file, of the exception that ended a rank."""

    def __init__(
        self, cause: str, exit_code: ExitCode, message: str, hint: str | None = None, place: str | None = None
    ) -> None:
        self.cause = cause
        self.exit_code = exit_code
        self.message = message
        self.hint = hint
        self.place = place


def explain(error: BaseException) -> Failure:
    """Name the cause of an exception.

    Causes: `disk_full`, `environment`, `diverged`, `user_error`, `oom`, `peer_lost`.
    """
    for kind, cause, exit_code in _FORESEEN:
        if isinstance(error, kind):
            return Failure(cause, exit_code, error.message, error.hint, error.place)
    if is_out_of_memory(error):
        asked = requested_bytes(error)
        what = _first_line(error) if asked is None else f"cannot allocate {format_bytes(asked)} more"
        return Failure("oom", ExitCode.USER_ERROR, f"out of memory: {what}")
    if _NOT_DETERMINISTIC in str(error):
        return Failure(
            "user_error",
            ExitCode.USER_ERROR,
            _first_line(error).partition(", but")[0],
            "replace that operation in the model, or set `workload.deterministic: false`",
        )
    if _is_lost_peer(error):
        return Failure("peer_lost", ExitCode.PEER_LOST, "lost contact to another rank")
    what = f"{type(error).__name__}: {_first_line(error)}"
    return Failure("user_error", ExitCode.USER_ERROR, what, place=place_in_user_code(error))


def _is_lost_peer(error: BaseException) -> bool:
    if _MISUSE.search(str(error)):
        return False
    if isinstance(error, torch.distributed.DistError | ConnectionError):
        return True
    return isinstance(error, RuntimeError) and _PEER_LOST.search(str(error)) is not None


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or traceback.format_exception_only(error)[-1].strip()
    return text.splitlines()[0]
