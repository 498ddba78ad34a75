"""Copies the newest checkpoint of a run to one further place, beside the run.

The resolved run names this module, and the supervisor of the run starts `python -m
trainworks.api.checkpointing.copier RUN_DIR NUMBER` once per entry of `checkpoint.copies`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from trainworks.agent.current_state import current_state
from trainworks.api.checkpointing.copies import outdated
from trainworks.api.checkpointing.places import CheckpointPlace, place_of
from trainworks.host.clock import SystemClock
from trainworks.jobs.state import JobState
from trainworks.observe.following import SettledState, follow, stay_behind, take_turn
from trainworks.record.evaluations import best_step
from trainworks.record.events import append_event
from trainworks.record.manifest import MANIFEST, Manifest, complete_checkpoints
from trainworks.record.run_dir import RunDir


class Copier:
    """Keeps the newest checkpoints of a run in another place.

    Args:
        run_dir: of the run.
        place: of the copies.
        keep: complete copies to keep there.
        state: of the run.
        best_step: step of the best evaluation, whose copy is spared.
    """

    def __init__(
        self,
        run_dir: RunDir,
        place: CheckpointPlace,
        *,
        keep: int,
        state: Callable[[], JobState],
        best_step: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._run_dir = run_dir
        self._best_step = best_step
        self._place = place
        self._keep = keep
        self._state = state
        self._copied_at: float | None = None
        """`created_at` of the checkpoint that was copied last."""
        self._step = 0

    def send(self) -> JobState:
        """Copy the newest checkpoint if it is not there; returns the state of the run before."""
        state = self._state()
        complete = complete_checkpoints(self._run_dir)
        if not complete or complete[-1][0].created_at == self._copied_at:
            return state
        manifest, folder = complete[-1]
        self._step = manifest.step
        started = time.monotonic()
        staging = self._run_dir.path / f"copying-{os.getpid()}"
        try:
            if not linked(manifest, folder, staging):
                return JobState.RUNNING  # the run has deleted it meanwhile: there is a newer one
            self._put(manifest, staging)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        self._copied_at = manifest.created_at
        append_event(
            self._run_dir.events_file,
            "checkpoint_copied",
            step=manifest.step,
            to=self._place.address,
            bytes=manifest.num_bytes,
            seconds=time.monotonic() - started,
        )
        return state

    def _put(self, manifest: Manifest, folder: Path) -> None:
        there = self._place.manifests()
        before = there.get(manifest.step)
        if before is not None and before.checksums != manifest.checksums:  # of before a rollback
            self._place.delete(manifest.step)
        if before is None or before.checksums != manifest.checksums:
            self._place.put(manifest, folder)
        for step in outdated({*there, manifest.step}, self._keep, self._best_step()):
            self._place.delete(step)

    def note(self, problem: str) -> None:
        """Record that a copy failed; it is tried again."""
        append_event(
            self._run_dir.events_file,
            "checkpoint_copy_failed",
            step=self._step,
            to=self._place.address,
            message=problem,
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


def forget_staging(run_dir: RunDir) -> None:
    """Delete the links of a copier that was killed."""
    for left in run_dir.path.glob("copying-*"):
        shutil.rmtree(left, ignore_errors=True)


def main(run_folder: str, number: str) -> int:
    """Copy until the run ends; returns the exit code, 1 if its last checkpoint is not copied."""
    run_dir, clock = RunDir(Path(run_folder)), SystemClock()
    state = SettledState(lambda: current_state(run_dir.read_status()), clock)
    stay_behind(state, clock)
    take_turn(run_dir, f"copier-{number}", clock)
    copy = run_dir.read_resolved().run_file.checkpoint.copies[int(number)]
    place = place_of(copy, run_dir.run_id)
    copier = Copier(run_dir, place, keep=copy.keep, state=state, best_step=lambda: best_step(run_dir))
    return 0 if follow(copier, state, clock) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
