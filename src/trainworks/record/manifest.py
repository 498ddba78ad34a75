"""The checkpoint manifest: a checkpoint exists when its manifest does, and is whole when every file has its size."""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import ValidationError

from trainworks.files import fsync_folder, write_atomic
from trainworks.record.run_dir import RunDir
from trainworks.spec.layout import ResolvedLayout
from trainworks.spec.quantities import Spec

__all__ = ["MANIFEST", "Manifest", "complete_checkpoints", "delete_checkpoint", "read_manifest", "write_manifest"]

MANIFEST = "manifest.json"


class Manifest(Spec):
    """What a checkpoint holds and which files make it whole."""

    format_version: int = 1
    step: int
    attempt: int
    created_at: float
    layout: ResolvedLayout
    samples_consumed: int
    """Sequences that the reader has handed out; with the seed, the whole state of the reader."""
    data_fingerprint: str
    """Of the tokenized data; a checkpoint goes on with the same data only."""
    torch: str
    files: dict[str, int]
    """Size in bytes of every file of the checkpoint."""

    @property
    def num_bytes(self) -> int:
        """Size of the whole checkpoint."""
        return sum(self.files.values())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Complete a checkpoint whose files are all on disk."""
    fsync_folder(folder)
    write_atomic(folder / MANIFEST, manifest.model_dump_json(indent=2) + "\n")


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a complete checkpoint; None if it is missing, torn, or a file is missing or cut short."""
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
        whole = all((folder / name).stat().st_size == size for name, size in manifest.files.items())
    except (OSError, ValidationError):
        return None
    return manifest if whole else None


def complete_checkpoints(run_dir: RunDir) -> list[tuple[Manifest, Path]]:
    """Every complete checkpoint, oldest first."""
    found = [(read_manifest(folder), folder) for _, folder in run_dir.checkpoint_folders()]
    return [(manifest, folder) for manifest, folder in found if manifest is not None]


def delete_checkpoint(folder: Path) -> None:
    """Delete a checkpoint, its manifest first, so that a kill in between leaves an incomplete one."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
