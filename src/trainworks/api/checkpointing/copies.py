"""Copies of a run's checkpoints in its further places: list, verify, prune, bring back, and prove that they open."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from trainworks.config.spec import CheckpointCopy
from trainworks.errors import MissingExtraError, TrainworksError, UsageError
from trainworks.host.copies.bringing import brought
from trainworks.host.copies.places import CheckpointPlace, FolderPlace, outdated
from trainworks.host.copies.s3 import S3Place
from trainworks.record.manifest import Manifest

_STEP = re.compile(r"(?P<place>.+)/step-(?P<step>\d+)/?")


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """One copy of a checkpoint, or a place that cannot be read."""

    place: str
    step: int | None
    """None if the place has no copy, or cannot be read."""
    manifest: Manifest | None
    problem: str | None = None
    entries: int | None = None
    """Tensors and values that were loaded from it."""

    def row(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        return {
            "place": self.place,
            "step": self.step,
            "bytes": self.manifest.num_bytes if self.manifest else None,
            "saved_at": self.manifest.created_at if self.manifest else None,
            "entries": self.entries,
            "problem": self.problem,
        }


def copies_in(where: Sequence[CheckpointPlace]) -> list[CopyFacts]:
    """Every complete copy in some places; manifests are read, contents are not."""
    found = []
    for place in where:
        try:
            there = place.manifests()
        except TrainworksError as error:
            found.append(CopyFacts(place.address, None, None, error.message))
            continue
        found += [CopyFacts(place.address, step, there[step]) for step in sorted(there)]
        if not there:
            found.append(CopyFacts(place.address, None, None, "no complete copy"))
    return found


def rehearse(place: CheckpointPlace) -> CopyFacts:
    """Bring the newest copy of a place to this machine, compare its checksums, and load all that is in it.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        shards = import_module("trainworks.worker.checkpoint.shards")
    except ImportError:
        raise MissingExtraError("torch", "train") from None
    try:
        there = place.manifests()
        if not there:
            return CopyFacts(place.address, None, None, "no complete copy")
        manifest = there[max(there)]
        with brought(place, manifest) as folder:
            return CopyFacts(place.address, manifest.step, manifest, None, shards.open_checkpoint(folder))
    except (TrainworksError, OSError) as error:
        return CopyFacts(place.address, None, None, str(error))


def place_at(address: str) -> tuple[CheckpointPlace, int | None]:
    """The place that `--from` names, and the step if it names one: `s3://bucket/prefix/RUN`, with `/step-N` or without.

    Raises:
        UsageError: no such folder.
    """
    found = _STEP.fullmatch(address)
    where, step = (found["place"], int(found["step"])) if found else (address.rstrip("/"), None)
    if "://" in where:
        checked = CheckpointCopy(to=where)
        return S3Place(checked.to), step
    if not Path(where).is_dir():
        raise UsageError(f"no folder `{where}`")
    return FolderPlace(Path(where)), step


def prune_copies(where: Sequence[CheckpointPlace], keep: int, best: int | None = None) -> int:
    """Delete all but the newest copies of each place and that of the best step; returns the bytes that were freed."""
    freed = 0
    for place in where:
        there = place.manifests()
        for step in outdated(there, keep, best):
            freed += there[step].num_bytes
            place.delete(step)
    return freed
