"""Reading checkpoints and writing safetensors files: a folder is complete or absent."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from trainworks.errors import DiskFullError, EnvironmentProblem, UsageError
from trainworks.files import free_bytes, fsync_folder, naming_full_disk, take_lock
from trainworks.units import format_bytes
from trainworks.worker.checkpoint.shards import reader_of
from trainworks.worker.checkpoint.values import LoadPlannerOfValues
from trainworks.worker.data.command import print_facts

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Number formats of exported weights."""


def state_of(folder: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint's model, without storage, by name.

    Raises:
        EnvironmentProblem: the checkpoint cannot be read.
    """
    try:
        stored = reader_of(folder).read_metadata().state_dict_metadata
    except Exception as error:
        raise EnvironmentProblem(f"cannot read checkpoint `{folder}`: {type(error).__name__}: {error}") from None
    return {
        name.removeprefix("model."): torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
        for name, entry in stored.items()
        if name.startswith("model.") and isinstance(entry, TensorStorageMetadata)
    }


def read_tensors(folder: Path, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Some tensors of a checkpoint, whole; floating-point ones in fp32."""
    values = {
        name: torch.empty(like.shape, dtype=torch.float32 if like.is_floating_point() else like.dtype)
        for name, like in wanted.items()
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that there is no process group
            dcp.load({"model": values}, storage_reader=reader_of(folder), planner=LoadPlannerOfValues(), no_dist=True)
    except (CheckpointException, RuntimeError, ValueError, OSError) as error:
        raise EnvironmentProblem(
            f"cannot read checkpoint `{folder}`: {error}",
            hint="a running job deletes old checkpoints; export its newest, or raise `checkpoint.keep`",
        ) from None
    return values


def save_tensors(content: dict[str, Tensor], file: Path) -> None:
    """Write a safetensors file, down to the disk.

    Raises:
        DiskFullError: no space left.
        EnvironmentProblem: it cannot be written for another reason.
    """
    try:
        save_file(content, file, metadata={"format": "pt"})
    except SafetensorError as error:
        if "No space left" not in str(error):
            raise EnvironmentProblem(f"cannot write `{file}`: {error}") from None
        raise DiskFullError(
            f"no space left on device: {format_bytes(free_bytes(file.parent))} free, writing `{file.name}`",
            hint="free some space, or export to another disk",
        ) from None
    flush(file)


def flush(file: Path) -> None:
    """Write a file down to the disk."""
    with naming_full_disk(file):
        fsync_folder(file)  # a file's own bytes, as a folder's names


def check_space(to: Path, needed: int) -> None:
    """Refuse to begin what cannot be finished.

    Raises:
        DiskFullError: fewer bytes are free than needed.
    """
    if (free := free_bytes(to)) < needed:
        raise DiskFullError(
            f"the model takes {format_bytes(needed)}, `{to.parent}` has {format_bytes(free)} free",
            hint="free some space, export to another disk, or take `--dtype bf16`",
        )


@contextmanager
def complete_or_absent(to: Path) -> Iterator[Path]:
    """A folder beside `to` that is renamed at the end; what a killed export left there is taken over."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"`{to}` exists", hint="name a folder that is not there yet")
    part = to.parent / f".{to.name}.part"
    with naming_full_disk(part):
        part.mkdir(parents=True, exist_ok=True)
        lock = take_lock(part / ".lock")
    if lock is None:
        raise UsageError(f"another export writes `{to}`", hint="wait for it, or name another folder")
    for left in part.iterdir():
        if left.name != ".lock":
            left.unlink()
    try:
        yield part
        (part / ".lock").unlink()
        fsync_folder(part)
        part.rename(to)
        fsync_folder(to.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def report(done: int, total: int) -> None:
    """Print progress."""
    print_facts({"done": done, "total": total})
