"""Why a checkpoint could not be written or loaded, as errors that say what to do."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from torch.distributed.checkpoint.api import CheckpointException

from trainworks.errors import DiskFullError, EnvironmentProblem, TrainworksError, UsageError
from trainworks.files import free_bytes
from trainworks.record.manifest import Manifest
from trainworks.units import format_bytes
from trainworks.worker.checkpoint.metadata import UnreadableCheckpointError
from trainworks.worker.health.allocation_errors import is_out_of_memory

_DISK_FULL = re.compile("No space left on device")


def explained_failure(error: BaseException, folder: Path) -> TrainworksError:
    """The reason of a failed save, found among what all the ranks reported."""
    reasons = [error]
    if isinstance(error, CheckpointException):
        reasons = [reason for reason, _ in error.failures.values()]
    for reason in reasons:
        if isinstance(reason, TrainworksError):
            return reason
        if _is_disk_full(reason):
            return DiskFullError(
                f"no space left on device: {format_bytes(free_bytes(folder))} free, writing checkpoint `{folder.name}`",
                hint="free some space or lower `checkpoint.keep`, then: trainworks resume",
            )
    problem = EnvironmentProblem(f"cannot write checkpoint `{folder}`: {reasons[0]}")
    problem.__cause__ = error
    return problem


def load_failure(error: BaseException, manifest: Manifest) -> BaseException:
    """Exception for a loading error: intact files do not match the model, others are damaged."""
    if is_out_of_memory(error) or isinstance(error, UnreadableCheckpointError):
        return error
    reason = str(error).strip() or type(error).__name__
    if manifest.checksums and not isinstance(error, OSError):
        return UsageError(
            f"the checkpoint of step {manifest.step:,} does not fit the model: {reason}",
            hint="restore the model that the run was started with, or start a new run",
        )
    return UnreadableCheckpointError(
        f"cannot read the state of step {manifest.step:,}: {type(error).__name__}: {reason}"
    )


def _is_disk_full(error: BaseException) -> bool:
    """ENOSPC, by its number, or in words where another rank's error was sent as text."""
    number = getattr(error, "errno", None)
    return number in (errno.ENOSPC, errno.EDQUOT) or _DISK_FULL.search(str(error)) is not None
