"""Checksums of a checkpoint's files: every rank reads a share of them, and all ranks get the same result."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from trainworks.errors import EnvironmentProblem
from trainworks.record.manifest import Damage, Manifest, check_file, check_manifest, complete_checkpoints
from trainworks.record.run_dir import RunDir

_T = TypeVar("_T")
_SHARD = re.compile(r"(?:rank-|__)(\d+)[._]")
"""Start of a shard's file name: the rank that wrote it; with underscores in versions before metadata.json."""


def find_damage(manifest: Manifest, folder: Path, group: dist.ProcessGroup) -> Damage | None:
    """The first damaged file of a checkpoint; every file is read once, by one rank."""
    found = (check_file(folder, manifest, name) for name in _share(manifest.files))
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
    return next((each for each in of_all_ranks(own, group) if each is not None), None)


def of_all_ranks(own: _T, group: dist.ProcessGroup) -> list[_T]:
    """The value of each rank, in order."""
    every: list[_T] = [own] * dist.get_world_size(group)
    dist.all_gather_object(every, own, group=group)
    return every


def _share(names: Iterable[str]) -> list[str]:
    """The files that this rank reads: with as many ranks as saved the checkpoint, those that it reads anyway."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return sorted(name for name in names if _writer(name) % world_size == rank)


def _writer(name: str) -> int:
    """The rank that wrote a file; rank 0 wrote what is not a shard."""
    match = _SHARD.match(name)
    return int(match[1]) if match else 0
