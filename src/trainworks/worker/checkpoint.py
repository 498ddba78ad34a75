"""Checkpoints: sharded, written while training goes on, complete when their manifest is.

What is in one: model and optimizer state under their parameter names (so that any layout loads it), loss scaler,
random state of every rank, and the step, from which the learning rate and the reader's position follow.
"""

from __future__ import annotations

import errno
import re
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from trainworks.errors import DiskFullError, EnvironmentProblem, TrainworksError
from trainworks.files import free_bytes
from trainworks.record.events import append_event
from trainworks.record.manifest import (
    MANIFEST,
    Manifest,
    complete_checkpoints,
    delete_checkpoint,
    read_manifest,
    write_manifest,
)
from trainworks.record.run_dir import RunDir
from trainworks.units import format_bytes
from trainworks.worker.optimizer import StepOptimizer

__all__ = ["Checkpointer"]

_DISK_FULL = re.compile("No space left on device|inline_container|unexpected pos")


class Checkpointer:
    """Saves and loads the state of one training run.

    Args:
        run_dir: whose `checkpoints/` is written.
        group: a process group of its own: saving talks to the other ranks from a thread while training does too.
        keep: complete checkpoints to keep.
        template: the manifest's fields that do not change from one checkpoint to the next.
    """

    def __init__(self, run_dir: RunDir, group: dist.ProcessGroup, *, keep: int, template: dict[str, Any]) -> None:
        self._run_dir = run_dir
        self._group = group
        self._keep = keep
        self._template = template
        self._pending: Future[Any] | None = None
        self._may_complete = threading.Event()
        self.failure: TrainworksError | None = None
        """Why the last checkpoint could not be completed; the loop reads it once per logging interval."""

    def save(self, step: int, module: nn.Module, optimizer: StepOptimizer, *, samples_consumed: int) -> float:
        """Start saving; returns after the state was copied. Waits first if the previous save still runs.

        The checkpoint becomes complete only after `allow_completion`: a run that resumes from it starts at the next
        step, and the rows of the steps before must be in the record by then.

        Returns:
            Seconds for which training stood still.
        """
        started = time.perf_counter()
        self.wait()
        if self.failure is not None:
            return time.perf_counter() - started
        self._may_complete.clear()
        folder = self._run_dir.checkpoint(step)
        if dist.get_rank() == 0:
            delete_checkpoint(folder)
        written: Future[Any] = dcp.async_save(  # type: ignore[assignment]  # its other type comes with a process
            _state(module, optimizer), checkpoint_id=folder, process_group=self._group
        )
        stall_s = time.perf_counter() - started
        fields = {"step": step, "samples_consumed": samples_consumed, **self._template}
        self._pending = Future()
        written.add_done_callback(lambda done: self._finish(done, folder, fields, started, stall_s))
        return stall_s

    def allow_completion(self) -> None:
        """The record holds every step up to the one that is being saved."""
        self._may_complete.set()

    def wait(self) -> None:
        """Wait until the save that is under way, if any, is complete or has failed."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def _finish(self, done: Future[Any], folder: Path, fields: dict[str, Any], started: float, stall_s: float) -> None:
        """Runs in the saving thread, after every rank has written its part."""
        try:
            done.result()
            self._may_complete.wait()
            if dist.get_rank() == 0:
                self._complete(folder, fields, started, stall_s)
        except BaseException as error:  # CheckpointException is one; the loop reports it and ends the run
            self.failure = _explained(error, folder)
            if dist.get_rank() == 0:
                delete_checkpoint(folder)
                self._note_failure(fields["step"])
        finally:
            assert self._pending is not None
            self._pending.set_result(None)

    def _complete(self, folder: Path, fields: dict[str, Any], started: float, stall_s: float) -> None:
        files = {file.name: file.stat().st_size for file in folder.iterdir() if file.name != MANIFEST}
        manifest = Manifest(created_at=time.time(), torch=torch.__version__, files=files, **fields)
        write_manifest(folder, manifest)
        append_event(
            self._run_dir.events_file,
            "checkpoint",
            attempt=manifest.attempt,
            step=manifest.step,
            stall_s=stall_s,
            write_s=time.perf_counter() - started,
            bytes=manifest.num_bytes,
        )
        for _, old in complete_checkpoints(self._run_dir)[: -self._keep]:
            delete_checkpoint(old)

    def _note_failure(self, step: int) -> None:
        try:
            append_event(self._run_dir.events_file, "checkpoint_failed", step=step, message=str(self.failure))
        except TrainworksError:
            pass  # the same full disk; the failure itself is raised by the loop

    def newest(self) -> tuple[Manifest, Path] | None:
        """The newest complete checkpoint, the same one on every rank."""
        shared: list[Any] = [self._newest_of_disk() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(shared, src=0)
        found: tuple[Manifest, Path] | None = shared[0]
        return found

    def _newest_of_disk(self) -> tuple[Manifest, Path] | None:
        """What was being written at a kill is deleted; what was complete once and is damaged now is reported."""
        for step, folder in reversed(self._run_dir.checkpoint_folders()):
            if manifest := read_manifest(folder):
                return manifest, folder
            if (folder / MANIFEST).exists():
                append_event(self._run_dir.events_file, "checkpoint_damaged", step=step, folder=str(folder))
            else:
                delete_checkpoint(folder)
        return None

    def load(self, manifest: Manifest, folder: Path, module: nn.Module, optimizer: StepOptimizer) -> None:
        """Put a checkpoint's state into the model, the optimizer and the random generators.

        Raises:
            EnvironmentProblem: the checkpoint was made from other data, or for another model.
        """
        if manifest.data_fingerprint != self._template["data_fingerprint"]:
            raise EnvironmentProblem(
                f"the data changed since step {manifest.step}: the run cannot go on where it was",
                hint="restore the text files, or start a new run",
            )
        state = _state(module, optimizer)
        same_world = manifest.layout.world_size == dist.get_world_size()
        if not same_world:
            del state["random"]
        try:
            dcp.load(state, checkpoint_id=folder, process_group=self._group)
        except (CheckpointException, RuntimeError, ValueError) as error:
            raise EnvironmentProblem(f"cannot load checkpoint `{folder}`: {error}") from None
        set_state_dict(module, optimizer.adamw, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        if optimizer.scaler.is_enabled():
            optimizer.scaler.load_state_dict(state["scaler"])
        if same_world:
            _set_random_state(state["random"][_rank_key()])
        else:
            torch.manual_seed(manifest.step * dist.get_world_size() + dist.get_rank())


def _state(module: nn.Module, optimizer: StepOptimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(module, optimizer.adamw)
    return {
        "model": model_state,
        "optimizer": optimizer_state,
        "scaler": optimizer.scaler.state_dict(),
        "random": {_rank_key(): _random_state()},
    }


def _rank_key() -> str:
    return f"rank-{dist.get_rank()}"


def _random_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def _explained(error: BaseException, folder: Path) -> TrainworksError:
    """The reason of a failed save, found among what all the ranks reported."""
    reasons = [error]
    if isinstance(error, CheckpointException):
        reasons = [reason for reason, _ in error.failures.values()]
    for reason in reasons:
        if isinstance(reason, TrainworksError):
            return reason
        if _is_disk_full(reason):
            return DiskFullError(
                f"no space left on device: {format_bytes(free_bytes(folder))} free, writing checkpoint `{folder.name}`",
                hint="free some space or lower `checkpoint.keep`, then: trainworks resume",
            )
    return EnvironmentProblem(f"cannot write checkpoint `{folder}`: {reasons[0]}")


def _is_disk_full(error: BaseException) -> bool:
    """ENOSPC, in the words of the system or of torch's zip writer, which finds its file shorter than it wrote."""
    number = getattr(error, "errno", None)
    return number in (errno.ENOSPC, errno.EDQUOT) or _DISK_FULL.search(str(error)) is not None
