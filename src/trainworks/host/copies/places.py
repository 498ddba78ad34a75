"""Places of copies of checkpoints: a folder, or a prefix of an S3-compatible store; copies are complete or absent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from trainworks.config.spec import CheckpointCopy
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.files import fsync_folder, naming_full_disk
from trainworks.host.copies.s3 import S3Place
from trainworks.record.manifest import MANIFEST, Damage, Manifest, check_file, delete_checkpoint, read_manifest
from trainworks.record.run_dir import checkpoint_name


class CheckpointPlace(Protocol):
    """Where copies of the checkpoints of one run are."""

    address: str
    """Folder or URL from the run file, with the run's id."""

    def manifests(self) -> dict[int, Manifest]:
        """Every complete copy, by step; contents are not read."""

    def put(self, manifest: Manifest, source: Path) -> None:
        """Copy a checkpoint to here, verified; what an interrupted copy has left is used."""

    def get(self, manifest: Manifest, target: Path) -> None:
        """Copy the files of a checkpoint from here into an empty folder, its manifest last."""

    def delete(self, step: int) -> None:
        """Delete a copy, its manifest first."""


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


def copy_files(manifest: Manifest, source: Path, to: Path) -> Path:
    """Copy file by file, verified at the destination, the manifest last; then rename the folder into place.

    The same checkpoint there stays if it is intact, and is replaced if it is damaged.

    Returns:
        The folder of the copy.

    Raises:
        UsageError: another checkpoint of that step is there.
        EnvironmentProblem: the checkpoint is damaged, or cannot be copied.
    """
    target = to / checkpoint_name(manifest.step)
    if (there := read_manifest(target)) is not None:
        if there.checksums != manifest.checksums:
            raise UsageError(f"`{target}` is another checkpoint", hint="copy to another folder, or delete that one")
        if first_damage(target, there) is None:
            return target
    aside = target.with_name(f".{target.name}.copying")
    try:
        with naming_full_disk(to):
            shutil.rmtree(aside, ignore_errors=True)
            for name in (*manifest.files, MANIFEST):
                _copy_file(source / name, aside / name)
            if damage := first_damage(aside, manifest):
                shutil.rmtree(aside, ignore_errors=True)
                raise EnvironmentProblem(f"the checkpoint of step {manifest.step} is damaged: {damage}")
            shutil.rmtree(target, ignore_errors=True)  # damaged or not complete
            aside.rename(target)
            fsync_folder(to)
    except OSError as error:
        raise EnvironmentProblem(f"cannot copy to `{to}`: {error.strerror or error}") from None
    return target


def first_damage(folder: Path, manifest: Manifest) -> Damage | None:
    """The first damaged file of a checkpoint."""
    found = (check_file(folder, manifest, name) for name in manifest.files)
    return next((damage for damage in found if damage is not None), None)


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    with target.open("rb") as written:
        os.fsync(written.fileno())


def outdated(steps: Iterable[int], keep: int, best: int | None) -> list[int]:
    """Steps of copies that are neither among the newest nor the best one.

    >>> outdated([10, 20, 30, 40], 2, 10)
    [20]
    """
    return [step for step in sorted(steps)[:-keep] if step != best]
