"""Copies of checkpoints in folders, complete or absent."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.files import fsync_folder, naming_full_disk
from trainworks.record.manifest import MANIFEST, Damage, Manifest, check_file, read_manifest
from trainworks.record.run_dir import checkpoint_name


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
