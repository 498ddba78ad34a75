"""Places of copies of checkpoints: a folder, or a prefix of an S3-compatible store; copies are complete or absent."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from trainworks.api.checkpointing.files import copy_files
from trainworks.api.checkpointing.s3 import S3Place
from trainworks.config.checkpointing.copies import CheckpointCopy
from trainworks.record.manifest import MANIFEST, Manifest, delete_checkpoint, read_manifest
from trainworks.record.run_dir import checkpoint_name

Progress = Callable[[int, int], None]
"""Receives bytes done and bytes in all."""


class CheckpointPlace(Protocol):
    """Where copies of the checkpoints of one run are."""

    address: str
    """Folder or URL from the run file, with the run's id."""

    def manifests(self) -> dict[int, Manifest]:
        """Every complete copy, by step; contents are not read."""
        ...

    def put(self, manifest: Manifest, source: Path) -> None:
        """Copy a checkpoint to here, verified; what an interrupted copy has left is used."""
        ...

    def get(self, manifest: Manifest, target: Path) -> None:
        """Copy the files of a checkpoint from here into an empty folder, its manifest last."""
        ...

    def delete(self, step: int) -> None:
        """Delete a copy, its manifest first."""
        ...


class FolderPlace:
    """A folder of another disk, or of a file server."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder)
        self._folder = folder

    def manifests(self) -> dict[int, Manifest]:
        """Every complete copy, by step."""
        folders = self._folder.glob("step-*") if self._folder.is_dir() else ()
        found = (read_manifest(folder) for folder in folders)
        return {manifest.step: manifest for manifest in found if manifest is not None}

    def put(self, manifest: Manifest, source: Path) -> None:
        """Copy a checkpoint to here, verified."""
        copy_files(manifest, source, self._folder)

    def get(self, manifest: Manifest, target: Path) -> None:
        """Copy the files of a checkpoint from here."""
        source = self._folder / checkpoint_name(manifest.step)
        for name in (*manifest.files, MANIFEST):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)

    def delete(self, step: int) -> None:
        """Delete a copy."""
        delete_checkpoint(self._folder / checkpoint_name(step))


def place_of(copy: CheckpointCopy, run_id: str) -> CheckpointPlace:
    """The place of the copies of a run.

    Raises:
        MissingExtraError: the place is a store, and `trainworks[s3]` is not installed.
    """
    address = copy.address(run_id)
    return S3Place(address, endpoint=copy.endpoint, region=copy.region) if copy.is_s3 else FolderPlace(Path(address))
