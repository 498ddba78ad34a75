"""Copies of a run's checkpoints in its further places: list, verify, prune, bring back, and prove that they open."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from trainworks.config.recovery import CheckpointCopy
from trainworks.errors import EnvironmentProblem, MissingExtraError, TrainworksError, UsageError
from trainworks.files import temporary_folder
from trainworks.observe.copies.places import CheckpointPlace, FolderPlace, copy_files, first_damage, outdated, place_of
from trainworks.observe.copies.s3 import S3Place
from trainworks.record.events.training import CheckpointRestoredEvent
from trainworks.record.manifest import Manifest, complete_checkpoints
from trainworks.record.run_dir import RunDir

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


def places(run_dir: RunDir) -> list[CheckpointPlace]:
    """The places of `checkpoint.copies` of a run."""
    return [place_of(copy, run_dir.run_id) for copy in run_dir.read_resolved().run_file.checkpoint.copies]


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


@contextmanager
def brought(place: CheckpointPlace, manifest: Manifest, scratch: Path | None = None) -> Iterator[Path]:
    """A copy in a folder of this machine, compared with its checksums, until the end of the block.

    Raises:
        EnvironmentProblem: it is damaged, or the place cannot be read.
    """
    with temporary_folder(".bringing-", scratch) as folder:
        place.get(manifest, folder)
        if damage := first_damage(folder, manifest):
            raise EnvironmentProblem(f"the copy of step {manifest.step} in `{place.address}` is damaged: {damage}")
        yield folder


def bring_back(place: CheckpointPlace, run_dir: RunDir, step: int | None = None) -> tuple[Manifest, Path]:
    """Bring a copy back to its run, the newest when no step is given.

    Raises:
        UsageError: the place lacks that copy.
        EnvironmentProblem: it is damaged, or the place cannot be read.
    """
    there = place.manifests()
    if (wanted := max(there, default=None) if step is None else step) not in there or wanted is None:
        which = "" if step is None else f" of step {step:,}"
        raise UsageError(f"`{place.address}` has no complete copy{which}")
    run_dir.checkpoints.mkdir(exist_ok=True)
    with brought(place, there[wanted], run_dir.checkpoints) as folder:
        return there[wanted], copy_files(there[wanted], folder, run_dir.checkpoints)


def bring_newest(run_dir: RunDir, where: Sequence[CheckpointPlace]) -> tuple[Manifest, CheckpointPlace] | None:
    """Bring the newest copy of all places to a run that has none as new; None if it has.

    A place that cannot be read, and a copy that is damaged, are passed over while another or the run itself has a
    checkpoint.

    Raises:
        EnvironmentProblem: nothing has one, and a place cannot be read.
    """
    local = max((manifest.step for manifest, _ in complete_checkpoints(run_dir)), default=None)
    found: list[tuple[int, CheckpointPlace]] = []
    failure: TrainworksError | None = None
    for place in where:
        try:
            found += [(step, place) for step in place.manifests() if local is None or step > local]
        except TrainworksError as error:
            failure = error
    for step, place in sorted(found, key=lambda each: each[0], reverse=True):
        try:
            manifest, _ = bring_back(place, run_dir, step)
            run_dir.note(CheckpointRestoredEvent(kind="checkpoint_restored", step=step, place=place.address))
            return manifest, place
        except TrainworksError as error:
            failure = error
    if failure is not None and local is None:
        raise failure
    return None


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
