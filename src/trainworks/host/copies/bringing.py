"""Bring checkpoints back from their copies to the run that they are of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trainworks.errors import EnvironmentProblem, TrainworksError, UsageError
from trainworks.files import temporary_folder
from trainworks.host.copies.places import CheckpointPlace, copy_files, first_damage, place_of
from trainworks.record.events.training import CheckpointRestoredEvent
from trainworks.record.manifest import Manifest, complete_checkpoints
from trainworks.record.run_dir import RunDir


def places(run_dir: RunDir) -> list[CheckpointPlace]:
    """The places of `checkpoint.copies` of a run."""
    return [place_of(copy, run_dir.run_id) for copy in run_dir.read_resolved().run_file.checkpoint.copies]


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
