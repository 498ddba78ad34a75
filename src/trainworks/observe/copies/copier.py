"""Copies the newest checkpoint of a run to one further place, beside the run.

The resolved run names this module, and the supervisor of the run starts `python -m
trainworks.observe.copies.copier RUN_DIR NUMBER` once per entry of `checkpoint.copies`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from trainworks.agent.current_state import current_state
from trainworks.host.clock import SystemClock
from trainworks.host.copies.places import CheckpointPlace, outdated, place_of
from trainworks.host.copies.record_copy import record_of
from trainworks.jobs.state import JobState
from trainworks.observe.following import SettledState, follow, stay_behind, take_turn
from trainworks.record.evaluations import best_step
from trainworks.record.events.training import CheckpointCopiedEvent, CheckpointCopyFailedEvent
from trainworks.record.manifest import MANIFEST, Manifest, complete_checkpoints
from trainworks.record.run_dir import RunDir


class Copier:
    """Keeps the newest checkpoints of a run in another place.

    It keeps `keep` complete copies, and spares that of the best evaluation. `before_copy` sends what has to be there
    before a checkpoint: the record of the steps that led to it. `number` is that of the place among those
    of the run; each has a copier of its own.
    """

    def __init__(
        self,
        run_dir: RunDir,
        place: CheckpointPlace,
        *,
        keep: int,
        state: Callable[[], JobState],
        best_step: Callable[[], int | None] = lambda: None,
        before_copy: Callable[[], object] = lambda: None,
        number: str = "0",
    ) -> None:
        self._run_dir = run_dir
        self._best_step = best_step
        self._before_copy = before_copy
        self._place = place
        self._keep = keep
        self._state = state
        self._copied_at: float | None = None
        """`created_at` of the checkpoint that was copied last."""
        self._step = 0
        self._staging = run_dir.path / f"copying-{number}"
        shutil.rmtree(self._staging, ignore_errors=True)  # of a copier that was killed

    def send(self) -> JobState:
        """Copy the newest checkpoint if it is not there; returns the state of the run before."""
        state = self._state()
        complete = complete_checkpoints(self._run_dir)
        if not complete or complete[-1][0].created_at == self._copied_at:
            return state
        manifest, folder = complete[-1]
        self._step = manifest.step
        started = time.monotonic()
        try:
            if not linked(manifest, folder, self._staging):
                return JobState.RUNNING  # the run has deleted it meanwhile: there is a newer one
            self._before_copy()
            self._put(manifest, self._staging)
        finally:
            shutil.rmtree(self._staging, ignore_errors=True)
        self._copied_at = manifest.created_at
        self._run_dir.note(
            CheckpointCopiedEvent(
                kind="checkpoint_copied",
                step=manifest.step,
                to=self._place.address,
                bytes=manifest.num_bytes,
                seconds=time.monotonic() - started,
            )
        )
        return state

    def _put(self, manifest: Manifest, folder: Path) -> None:
        there = self._place.manifests()
        before = there.get(manifest.step)
        if before is None or before.checksums != manifest.checksums:
            if before is not None:  # of before a rollback
                self._place.delete(manifest.step)
            self._place.put(manifest, folder)
        for step in outdated({*there, manifest.step}, self._keep, self._best_step()):
            self._place.delete(step)

    def note(self, problem: str) -> None:
        """Record that a copy failed; it is tried again."""
        self._run_dir.note(
            CheckpointCopyFailedEvent(
                kind="checkpoint_copy_failed",
                step=self._step,
                to=self._place.address,
                message=problem,
            )
        )

    def close(self) -> None:
        """Nothing stays open between two copies."""


def linked(manifest: Manifest, folder: Path, staging: Path) -> bool:
    """Hard links to all files of a checkpoint, which the run may then delete; False if it already has."""
    shutil.rmtree(staging, ignore_errors=True)
    try:
        for name in (*manifest.files, MANIFEST):
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(folder / name, staging / name)
    except FileNotFoundError:
        return False
    return True


def main(run_folder: str, number: str) -> int:
    """Copy until the run ends; returns the exit code, 1 if its last checkpoint is not copied."""
    run_dir, clock = RunDir(Path(run_folder)), SystemClock()
    state = SettledState(lambda: current_state(run_dir.read_status()), clock)
    stay_behind(state, clock)
    take_turn(run_dir, f"copier-{number}", clock)
    copy = run_dir.read_resolved().run_file.checkpoint.copies[int(number)]
    place = place_of(copy, run_dir.run_id)
    record = record_of(run_dir.read_resolved().run_file, run_dir.run_id)
    copier = Copier(
        run_dir,
        place,
        keep=copy.keep,
        state=state,
        best_step=partial(best_step, run_dir),
        before_copy=partial(record.send, run_dir) if record is not None else lambda: None,
        number=number,
    )
    return 0 if follow(copier, state, clock) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
