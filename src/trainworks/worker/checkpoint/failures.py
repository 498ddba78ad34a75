"""What can be wrong with a checkpoint: a failed save or load, as an error that says what to do, and damaged files.

Every rank reads a share of the files to compare checksums, and all ranks get the same result.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from trainworks.errors import DiskFullError, EnvironmentProblem, TrainworksError, UsageError
from trainworks.files import free_bytes
from trainworks.record.manifest import Damage, Manifest, check_file, check_manifest, complete_checkpoints
from trainworks.record.run_dir import RunDir
from trainworks.units import format_bytes
from trainworks.worker.checkpoint.metadata import UnreadableCheckpointError
from trainworks.worker.health.rank_failure import is_out_of_memory

_DISK_FULL = re.compile("No space left on device")
_T = TypeVar("_T")
_SHARD = re.compile(r"(?:rank-|__)(\d+)[._]")
"""Start of a shard's file name: the rank that wrote it; with underscores in versions before metadata.json."""


def explained_failure(error: BaseException, folder: Path) -> TrainworksError:
    """The reason of a failed save, found among what all the ranks reported."""
    reasons = [error]
    if isinstance(error, CheckpointException):
        reasons = [reason for reason, _ in error.failures.values()]
    for reason in reasons:
        if isinstance(reason, TrainworksError):
            return reason
        number = getattr(reason, "errno", None)  # None where another rank's error was sent as text
        if number in (errno.ENOSPC, errno.EDQUOT) or _DISK_FULL.search(str(reason)) is not None:
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


def find_damage(manifest: Manifest, folder: Path, group: dist.ProcessGroup) -> Damage | None:
    """The first damaged file of a checkpoint; every file is read once, by one rank.

    With as many ranks as saved the checkpoint, each reads the files that it reads anyway: those that it wrote, and rank
    0 those that are not shards.
    """
    writers = {name: int(match[1]) if (match := _SHARD.match(name)) else 0 for name in manifest.files}
    share = sorted(name for name, rank in writers.items() if rank % dist.get_world_size() == dist.get_rank())
    found = (check_file(folder, manifest, name) for name in share)
    return first_of_any_rank(next((damage for damage in found if damage is not None), None), group)


def undamaged_manifest(run_dir: RunDir, step: int, progress: Callable[[int, int], None]) -> Manifest:
    """The manifest of a checkpoint, after this process alone has read every file.

    Raises:
        EnvironmentProblem: the checkpoint is damaged; the hint names the other steps.
    """
    folder = run_dir.checkpoint(step)
    found = check_manifest(folder)
    if isinstance(found, Manifest):
        done = 0
        for name, size in found.files.items():
            if damage := check_file(folder, found, name):
                raise _damaged(run_dir, step, damage)
            done += size
            progress(done, found.num_bytes)
        return found
    raise _damaged(run_dir, step, found)


def _damaged(run_dir: RunDir, step: int, damage: Damage) -> EnvironmentProblem:
    others = [f"{manifest.step:,}" for manifest, _ in complete_checkpoints(run_dir) if manifest.step != step]
    return EnvironmentProblem(
        f"the checkpoint of step {step:,} is damaged: {damage}",
        hint=f"choose another one with `--step`: {', '.join(others)}" if others else "no other checkpoint is left",
    )


def first_of_any_rank(own: _T | None, group: dist.ProcessGroup) -> _T | None:
    """The value of the first rank that has one."""
    return next((each for each in gather_values(own, group) if each is not None), None)


def gather_values(own: _T, group: dist.ProcessGroup) -> list[_T]:
    """The value of each rank, in order."""
    every: list[_T] = [own] * dist.get_world_size(group)
    dist.all_gather_object(every, own, group=group)
    return every
