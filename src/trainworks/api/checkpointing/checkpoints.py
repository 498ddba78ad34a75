"""Checkpoints of a run: list, verify, copy, restore and prune."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainworks.agent.launch import take_run
from trainworks.api.checkpointing.copies import CopyFacts, copies_in, place_at, prune_copies, rehearse
from trainworks.api.run_handle import Run, as_run
from trainworks.config.spec import CheckpointCopy
from trainworks.errors import UsageError
from trainworks.files import bytes_in, closing_handle
from trainworks.host.copies.bringing import bring_back, places
from trainworks.host.copies.places import copy_files, place_of
from trainworks.record.evaluations import best_step
from trainworks.record.manifest import (
    Damage,
    Manifest,
    check_file,
    check_manifest,
    complete_checkpoints,
    delete_checkpoint,
)

Progress = Callable[[int, int], None]
"""Receives bytes done and bytes in all."""


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """One checkpoint on disk."""

    step: int
    folder: Path
    manifest: Manifest | None
    """None if the checkpoint is not complete."""
    damage: Damage | None = None
    """The first problem that was found; None for an intact checkpoint, as far as it was read."""
    place: str | None = None
    """Address of the store that it was copied to."""

    @property
    def num_bytes(self) -> int | None:
        """Size of all files; None if the manifest is not there."""
        return self.manifest.num_bytes if self.manifest else None

    def row(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        return {
            "step": self.step,
            "folder": str(self.folder),
            "bytes": self.num_bytes,
            "saved_at": self.manifest.created_at if self.manifest else None,
            "layout": self.manifest.layout.describe() if self.manifest else None,
            "problem": str(self.damage) if self.damage else None,
        }


def checkpoints(run: Run | str | None = None, folder: Path | str = "runs") -> list[CheckpointFacts]:
    """Checkpoints of a run, oldest first; manifests and sizes are checked, contents are not read.

    Args:
        run: the run, its id or its folder; the newest run when None.
        folder: folder of all runs.

    Raises:
        UnknownRunError: no such run.

    Examples:
        >>> import tempfile, trainworks
        >>> folder = tempfile.mkdtemp()
        >>> checkpoints(trainworks.run(["true"], folder=folder))
        []
    """
    return [_facts(path, step) for step, path in as_run(run, folder).run_dir.checkpoint_folders()]


def verify_checkpoints(
    run: Run | str | None = None,
    folder: Path | str = "runs",
    *,
    step: int | None = None,
    progress: Progress | None = None,
) -> list[CheckpointFacts]:
    """Read every file of complete checkpoints, and compare it with its checksum.

    Args:
        run: the run, its id or its folder; the newest run when None.
        folder: folder of all runs.
        step: only the checkpoint of this step.
        progress: follows the reading.

    Raises:
        UnknownRunError: no such run.
        UsageError: no checkpoint of that step.
    """
    found = checkpoints(run, folder)
    if step is not None:
        found = [_checkpoint_at(found, step)]
    total, done, verified = sum(each.num_bytes or 0 for each in found), 0, []
    for each in found:
        damage, manifest = each.damage, each.manifest
        if manifest is None:
            verified.append(each)
            continue
        for name, size in manifest.files.items():
            damage = damage or check_file(each.folder, manifest, name)
            done += size
            if progress is not None:
                progress(done, total)
        verified.append(CheckpointFacts(each.step, each.folder, manifest, damage))
    return verified


def copy_checkpoint(
    run: Run | str | None = None, *, to: Path | str, folder: Path | str = "runs", step: int | None = None
) -> CheckpointFacts:
    """Copy a complete checkpoint to another place, where it is complete or absent.

    Args:
        run: the run, its id or its folder; the newest run when None.
        to: a folder, or `s3://bucket/prefix`, to which the run's id is added; gets `step-NNNNNNNN`. A checkpoint of
            that step that is intact there stays.
        folder: folder of all runs.
        step: of the checkpoint; the newest complete one when None.

    Raises:
        UnknownRunError: no such run.
        UsageError: no complete checkpoint, or none of that step.
        EnvironmentProblem: the checkpoint is damaged, or cannot be copied.
        DiskFullError: the disk is full.
    """
    found = as_run(run, folder)
    complete = complete_checkpoints(found.run_dir)
    if step is not None:
        complete = [(manifest, path) for manifest, path in complete if manifest.step == step]
    if not complete:
        which = "" if step is None else f" of step {step}"
        raise UsageError(f"run {found.id} has no complete checkpoint{which}", hint="trainworks checkpoint ls")
    manifest, source = complete[-1]
    if "://" not in str(to):
        return CheckpointFacts(manifest.step, copy_files(manifest, source, Path(to)), manifest)
    place = place_of(CheckpointCopy.model_validate(str(to)), found.id)
    place.put(manifest, source)
    return CheckpointFacts(manifest.step, source, manifest, place=place.address)


def restore_checkpoint(
    source: Path | str, run: Run | str | None = None, folder: Path | str = "runs"
) -> CheckpointFacts:
    """Bring a copied checkpoint back to its run, which resumes from the newest that it has.

    Args:
        source: the folder of the checkpoint, or `s3://bucket/prefix/RUN`, with `/step-NNNNNNNN` or the newest.
        run: the run, its id or its folder; the newest run when None.
        folder: folder of all runs.

    Raises:
        UnknownRunError: no such run.
        UsageError: the folder is not a complete checkpoint, or the run is live.
        EnvironmentProblem: the checkpoint is damaged, or cannot be copied.
    """
    if "://" in str(source):
        place, step = place_at(str(source))
        found = as_run(run, folder)
        with closing_handle(take_run(found.run_dir)):
            restored, target = bring_back(place, found.run_dir, step)
        return CheckpointFacts(restored.step, target, restored)
    source = Path(source)
    manifest = check_manifest(source)
    if isinstance(manifest, Damage):
        raise UsageError(f"`{source}` is not a complete checkpoint: {manifest}")
    found = as_run(run, folder)
    with closing_handle(take_run(found.run_dir)):
        return CheckpointFacts(manifest.step, copy_files(manifest, source, found.run_dir.checkpoints), manifest)


def checkpoint_copies(
    run: Run | str | None = None, folder: Path | str = "runs", *, rehearsed: bool = False
) -> list[CopyFacts]:
    """Copies of a run's checkpoints in the places of `checkpoint.copies`.

    Args:
        run: the run, its id or its folder; the newest run when None.
        folder: folder of all runs.
        rehearsed: bring the newest copy of each place here, compare its checksums, and load all that is in it.

    Raises:
        UnknownRunError: no such run.
        MissingExtraError: a library for a place is not installed.

    Examples:
        >>> import tempfile, trainworks
        >>> folder = tempfile.mkdtemp()
        >>> checkpoint_copies(trainworks.run(["true"], folder=folder))
        []
    """
    where = places(as_run(run, folder).run_dir)
    return [rehearse(place) for place in where] if rehearsed else copies_in(where)


def prune_checkpoints(
    run: Run | str | None = None, folder: Path | str = "runs", *, keep: int = 1, copies: bool = False
) -> int:
    """Delete all but the newest complete checkpoints of a run that is not live and the best one by its evaluations.

    Checkpoints that are not complete go, too.

    Args:
        run: the run, its id or its folder; the newest run when None.
        folder: folder of all runs.
        keep: complete checkpoints to keep, at least 1.
        copies: delete older copies in the places of `checkpoint.copies`, too, and spare that of the best one.

    Returns:
        Bytes that were freed.

    Raises:
        UnknownRunError: no such run.
        UsageError: the run is live, or has no complete checkpoint.
    """
    if keep < 1:
        raise UsageError(f"`keep` must be at least 1, got {keep}")
    found = as_run(run, folder)
    with closing_handle(take_run(found.run_dir)):
        complete = [path for _, path in complete_checkpoints(found.run_dir)]
        if not complete:
            raise UsageError(f"run {found.id} has no complete checkpoint", hint="delete the run with `trainworks rm`")
        best, freed = best_step(found.run_dir), 0
        kept = {*complete[-keep:], *([found.run_dir.checkpoint(best)] if best else [])}
        for _, path in found.run_dir.checkpoint_folders():
            if path not in kept:
                freed += bytes_in(path)
                delete_checkpoint(path)
        return freed + (prune_copies(places(found.run_dir), keep, best) if copies else 0)


def _facts(path: Path, step: int) -> CheckpointFacts:
    found = check_manifest(path)
    return CheckpointFacts(step, path, None, found) if isinstance(found, Damage) else CheckpointFacts(step, path, found)


def _checkpoint_at(found: list[CheckpointFacts], step: int) -> CheckpointFacts:
    for each in found:
        if each.step == step:
            return each
    known = ", ".join(str(each.step) for each in found) or "none"
    raise UsageError(f"no checkpoint of step {step}", hint=f"the steps that there are: {known}")
