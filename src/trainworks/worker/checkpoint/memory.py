"""The tier of checkpoints in a node's shared memory, beside those on disk."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from trainworks.record.manifest import MANIFEST, Damage, Manifest, check_manifest, delete_checkpoint
from trainworks.record.run_dir import RunDir
from trainworks.recover.memory_checkpoints import make_memory_folder
from trainworks.worker.checkpoint.checksums import first_of_any_rank

Found = tuple[int, Path, Manifest | Damage]
"""Step, folder, and manifest of a checkpoint that was complete once."""


class MemoryTier:
    """Where checkpoints in memory are; all ranks are on one node.

    Args:
        run_dir: of the run.
        every: steps between two of them; no checkpoint goes to memory when None.
        group: of the checkpointer; the tier is off if one rank cannot have it.
    """

    def __init__(self, run_dir: RunDir, every: int | None, group: dist.ProcessGroup) -> None:
        folder = None if every is None else make_memory_folder(run_dir)
        has_none = every is not None and first_of_any_rank(None if folder else True, group)
        self._place = None if folder is None or has_none else RunDir(folder)
        self._every = every
        self.problem: str | None = None
        """Why this rank could not write to memory; the ranks agree at the next flush to stop."""

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint of this step goes to memory."""
        return self._every is not None and step % self._every == 0 and self._place is not None

    def folder(self, step: int) -> Path:
        """Folder of a checkpoint."""
        assert self._place is not None
        return self._place.checkpoint(step)

    def holds(self, folder: Path) -> bool:
        """Whether a checkpoint is in memory."""
        return self._place is not None and folder.parent == self._place.checkpoints

    def keep_only(self, step: int) -> None:
        """Delete all others: two are in memory only while one is written."""
        for other, folder in self._folders():
            if other != step:
                delete_checkpoint(folder)

    def found(self) -> list[Found]:
        """Every checkpoint that is complete; what was being written at a kill is deleted."""
        found: list[Found] = []
        for step, folder in self._folders():
            if (folder / MANIFEST).exists():
                found.append((step, folder, check_manifest(folder)))
            else:
                delete_checkpoint(folder)
        return found

    def _folders(self) -> list[tuple[int, Path]]:
        return [] if self._place is None else self._place.checkpoint_folders()
