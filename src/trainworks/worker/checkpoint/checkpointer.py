"""Checkpoints: sharded, written while training continues, complete when their manifest is.

A checkpoint holds model and optimizer state under their parameter names (so that any layout loads it), loss scaler, and
the step, which determines the learning rate, the reader's position and the random numbers.
"""

from __future__ import annotations

import functools
import os
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import InitVar, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NotRequired, TypedDict

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from trainworks.config.layout import ResolvedLayout
from trainworks.errors import EnvironmentProblem, TrainworksError
from trainworks.record.events.training import (
    CheckpointDamagedEvent,
    CheckpointEvent,
    CheckpointFailedEvent,
    MemoryCheckpointsEndedEvent,
)
from trainworks.record.fence import AttemptFence
from trainworks.record.manifest import (
    MANIFEST,
    Damage,
    Manifest,
    check_manifest,
    check_tokenization,
    complete_checkpoints,
    delete_checkpoint,
    write_manifest,
)
from trainworks.record.run_dir import RunDir
from trainworks.recover.decisions import Action, decide_resume
from trainworks.worker.checkpoint import failures
from trainworks.worker.checkpoint.memory import Found, MemoryTier
from trainworks.worker.checkpoint.metadata import UnreadableCheckpointError, WrittenFile
from trainworks.worker.checkpoint.shards import LoadPlannerOfValues, SavePlannerOfValues, ShardWriter, reader_of
from trainworks.worker.checkpoint.state import HasState, loadable, staging_options, unchanging, whole_state
from trainworks.worker.models.torch_versions import reusable_stager


class CheckpointOrigin(TypedDict):
    """Fields of `Manifest` that do not change from one checkpoint of an attempt to the next."""

    attempt: int
    layout: ResolvedLayout
    data_fingerprint: str
    tokenization: NotRequired[str | None]
    base_fingerprint: NotRequired[str | None]


@dataclass(eq=False)
class Checkpointer:
    """Saves and loads the state of one training run."""

    run_dir: RunDir
    group: dist.ProcessGroup
    """A group of its own: saving talks to the other ranks from a thread while training does too."""
    keep: int
    """Complete checkpoints that stay."""
    template: CheckpointOrigin
    """What the manifest of every checkpoint says of the run."""
    tier: InitVar[MemoryTier | None] = None
    """In the shared memory of the nodes; none when None."""

    def __post_init__(self, tier: MemoryTier | None) -> None:
        self.memory = tier or MemoryTier(self.run_dir, None, self.group)
        run_dir, attempt = self.run_dir, self.template["attempt"]
        self._fence = AttemptFence(run_dir.events_file, attempt=attempt, writer=os.getpid())
        self._pending: Future[Any] | None = None
        self._may_complete = threading.Event()
        self._stager = reusable_stager(staging_options())
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-writer")
        self._copied: Future[Any] | None = None
        self._stall_s = 0.0
        self._saving_step = 0
        self._abandoned = False
        self._damaged: dict[int, Damage] = {}
        """Checkpoints on disk that cannot be loaded, by step; the same on every rank."""
        self._unreported: list[int] = []
        """Steps of them that no event names yet."""
        self.kept_step: int | None = None
        """Step whose checkpoint is not deleted for its age: the best evaluation."""
        self.measured: Callable[[float, float], None] = lambda stall_s, write_s: None
        """Takes the costs of each checkpoint on disk, on rank 0."""
        self.failure: TrainworksError | None = None
        """Why the last checkpoint could not be completed; the loop reads it once per logging interval."""
        self._completed: SimpleQueue[Path] = SimpleQueue()

    @property
    def is_saving(self) -> bool:
        """Whether a save of this rank still runs."""
        return self._pending is not None and not self._pending.done()

    def save(
        self,
        step: int,
        parts: Sequence[nn.Module],
        optimizer: HasState,
        *,
        samples_consumed: int,
        to_memory: bool = False,
    ) -> None:
        """Start saving, to disk or to memory. Waits first if the previous save still runs.

        The state is copied beside the next step's forward and backward, which only read it (CheckFreq, Mohan et al.
        2021); `await_copy` has to be called before it changes. The checkpoint becomes complete only after
        `allow_completion`: a run that resumes from it starts at the next step, and the rows of the steps before must be
        in the record by then.
        """
        started = time.perf_counter()
        self.wait()
        if self.failure is not None:
            return
        self._may_complete.clear()
        self._saving_step = step
        if not to_memory:
            self._damaged.pop(step, None)
        folder = self.memory.folder(step) if to_memory else self.run_dir.checkpoint(step)
        if self.memory.completes(folder):
            delete_checkpoint(folder)
        state = unchanging(whole_state(parts, optimizer), parts)
        if torch.cuda.is_initialized():  # the copy runs on its own stream, which does not wait for this one
            torch.cuda.current_stream().synchronize()
        copied = self._stager.stage(state)
        assert isinstance(copied, Future)
        self._copied = copied
        self._stall_s = time.perf_counter() - started
        self._pending = self._writer.submit(self._write, copied, folder, step, samples_consumed, started)

    def take_completed(self) -> list[Path]:
        """Checkpoints on disk that have been completed since the last call; none on other ranks than 0."""
        return [self._completed.get() for _ in range(self._completed.qsize())]

    def await_copy(self) -> None:
        """Wait until weights and optimizer state may change."""
        if self._copied is None:
            return
        started = time.perf_counter()
        wait((self._copied,))  # why it failed, if it did, is the writer's to say
        self._copied = None
        self._stall_s += time.perf_counter() - started

    def allow_completion(self) -> None:
        """The record holds every step up to the one that is being saved."""
        self._may_complete.set()

    def abandon_from(self, step: int) -> None:
        """Delete the files of a running save of `step` or later; complete an earlier one."""
        self._abandoned = self._saving_step >= step
        self.allow_completion()
        self.wait()
        self._abandoned = False

    def wait(self) -> None:
        """Wait until the save that is under way, if any, is complete or has failed."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def _write(self, copied: Future[Any], folder: Path, step: int, samples_consumed: int, started: float) -> None:
        """Runs in the writing thread."""
        is_copied = False
        try:
            writer = ShardWriter(folder, durable=not self.memory.holds(folder))
            dcp.save(copied.result(), storage_writer=writer, planner=SavePlannerOfValues(), process_group=self.group)
            written = failures.gather_values(writer.written, self.group)
            files = {name: file for each in written for name, file in each.items()}
            if self.memory.holds(folder):
                self.memory.copy_to_peer(folder, written)
                is_copied = True
            self._may_complete.wait()
            if self.memory.holds(folder):
                self.memory.await_record()
            if self.memory.completes(folder):
                if self._abandoned:
                    delete_checkpoint(folder)
                else:
                    self._complete(folder, files, step, samples_consumed, started)
        except BaseException as error:  # CheckpointException is one; the loop reports it and ends the run
            self._fail(error, folder, step, keeps_files=is_copied)

    def _fail(self, error: BaseException, folder: Path, step: int, *, keeps_files: bool) -> None:
        """Note why a save failed; files that have copies stay, as another node may have completed the checkpoint."""
        problem = failures.explained_failure(error, folder)
        if self._fence.is_superseded:
            self.failure = problem  # and nothing else: the folder may be the later start's by now
            return
        if in_memory := self.memory.holds(folder):
            self.memory.problem = problem.message  # the disk has its own, and training goes on
        else:
            self.failure = problem
        if self.memory.completes(folder) and not keeps_files:
            delete_checkpoint(folder)
        if dist.get_rank() == 0:
            message = str(problem)
            with suppress(TrainworksError):  # the same full disk; the failure itself is raised by the loop
                self.run_dir.note(
                    MemoryCheckpointsEndedEvent(kind="memory_checkpoints_ended", step=step, message=message)
                    if in_memory
                    else CheckpointFailedEvent(kind="checkpoint_failed", step=step, message=message)
                )

    def _complete(
        self, folder: Path, files: dict[str, WrittenFile], step: int, samples_consumed: int, started: float
    ) -> None:
        manifest = Manifest(
            created_at=time.time(),
            torch=torch.__version__,
            files={name: file.num_bytes for name, file in files.items()},
            checksums={name: file.crc32 for name, file in files.items()},
            step=step,
            samples_consumed=samples_consumed,
            **self.template,
        )
        self._fence.check()
        write_manifest(folder, manifest)
        if self.memory.holds(folder):
            self.memory.keep_only(manifest.step)
            return
        self._completed.put(folder)
        write_s = time.perf_counter() - started
        self.run_dir.note(
            CheckpointEvent(
                kind="checkpoint",
                attempt=manifest.attempt,
                step=manifest.step,
                stall_s=self._stall_s,
                write_s=write_s,
                bytes=manifest.num_bytes,
            )
        )
        self.measured(self._stall_s, write_s)
        self._delete_old()

    def _delete_old(self) -> None:
        """Keep the newest `keep` checkpoints and that of `kept_step`; damaged ones neither count nor go."""
        complete = complete_checkpoints(self.run_dir)
        loadable = [folder for manifest, folder in complete if manifest.step not in self._damaged]
        for folder in loadable[: -self.keep]:
            if self.kept_step is None or folder != self.run_dir.checkpoint(self.kept_step):
                delete_checkpoint(folder)

    def load_newest(self, parts: Sequence[nn.Module], optimizer: HasState) -> Manifest | None:
        """Load the newest checkpoint that can be loaded; every rank loads the same one.

        Returns:
            Its manifest; None if the run has completed no checkpoint.

        Raises:
            UsageError: the checkpoint was made by another model.
            EnvironmentProblem: the data changed since the checkpoint, or no checkpoint can be loaded.
        """
        while found := self.newest():
            manifest, folder = found
            try:
                self.load(manifest, folder, parts, optimizer)
                return manifest
            except UnreadableCheckpointError as error:
                self._pass_over(manifest.step, folder, Damage(None, error.message))
        decision = decide_resume(damaged=len(self._damaged), has_loadable=False)
        if decision.action is Action.STOP:
            raise self._none_loadable(decision.reason)
        return None

    def _none_loadable(self, reason: str) -> EnvironmentProblem:
        tried = "; ".join(f"step {step:,}: {damage}" for step, damage in sorted(self._damaged.items(), reverse=True))
        file = self.run_dir.run_file
        command = f": trainworks run {shlex.quote(str(file))}" if file.exists() else ""
        return EnvironmentProblem(
            f"{reason}: {tried}",
            place=str(self.run_dir.checkpoints),
            hint=f"put back a copy of one of these folders, or start a new run{command}",
        )

    def newest(self) -> tuple[Manifest, Path] | None:
        """The newest checkpoint whose files are as they were written, the same one on every rank.

        Each rank compares the checksums of a share of the files. Damaged checkpoints are reported, and left where they
        are; what was being written at a kill is deleted.
        """
        on_disk: list[Any] = [self._find_on_disk() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(on_disk, src=0)
        found: list[Found] = [*self.memory.found(), *on_disk[0]]
        for step, folder, checked in sorted(found, key=lambda each: each[0], reverse=True):  # of one step, memory first
            in_memory = self.memory.holds(folder)
            if step in self._damaged and not in_memory:
                continue
            if isinstance(checked, Damage):
                self._pass_over(step, folder, checked)
                continue
            restored = self.memory.restore if in_memory else functools.partial(failures.find_damage, group=self.group)
            if (damage := restored(checked, folder)) is None:
                self._report_damage(fallback_step=step)
                return checked, folder
            self._pass_over(step, folder, damage)
        self._report_damage(fallback_step=None)
        return None

    def _find_on_disk(self) -> list[Found]:
        """Every checkpoint that was complete once, newest first."""
        found: list[Found] = []
        for step, folder in reversed(self.run_dir.checkpoint_folders()):
            if (folder / MANIFEST).exists():
                found.append((step, folder, check_manifest(folder)))
            else:
                delete_checkpoint(folder)
        return found

    def _pass_over(self, step: int, folder: Path, damage: Damage) -> None:
        if self.memory.holds(folder):
            dist.barrier(self.group)  # no rank reads it any more
            if self.memory.completes(folder):
                delete_checkpoint(folder)
            dist.barrier(self.group)
            return
        self._damaged[step] = damage
        self._unreported.append(step)

    def _report_damage(self, *, fallback_step: int | None) -> None:
        if dist.get_rank() == 0:
            for step in self._unreported:
                damage = self._damaged[step]
                self.run_dir.note(
                    CheckpointDamagedEvent(
                        kind="checkpoint_damaged",
                        step=step,
                        folder=str(self.run_dir.checkpoint(step)),
                        file=damage.file,
                        problem=damage.problem,
                        fallback_step=fallback_step,
                    )
                )
        self._unreported.clear()

    def continue_behind(self, manifest: Manifest, folder: Path, *, samples_consumed: int) -> None:
        """A run that resumes from this checkpoint continues after that sample."""
        if self.memory.completes(folder):
            write_manifest(folder, manifest.model_copy(update={"samples_consumed": samples_consumed}))
        dist.barrier(self.group)

    def load(self, manifest: Manifest, folder: Path, parts: Sequence[nn.Module], optimizer: HasState) -> None:
        """Put a checkpoint's state into the model and the optimizer.

        Raises:
            UsageError: the checkpoint was made by another model.
            EnvironmentProblem: the checkpoint was made from other data or beside other frozen weights, or cannot be
                read.
        """
        if manifest.data_fingerprint != self.template["data_fingerprint"]:
            raise EnvironmentProblem(
                f"the data changed since step {manifest.step}: the run cannot continue where it was",
                hint="restore the text files, or start a new run",
            )
        check_tokenization(manifest, self.template.get("tokenization"))
        if (
            None not in (then := manifest.base_fingerprint, now := self.template.get("base_fingerprint"))
            and then != now
        ):
            raise EnvironmentProblem(
                f"the frozen weights in `model.hf` changed since step {manifest.step}: what was trained beside them "
                "does not fit them any more",
                hint="restore the folder, or start a new run",
            )
        self.await_copy()
        optimizer.fill_state()
        same_ranks = manifest.layout.world_size == dist.get_world_size()
        if (error := self._load_state(whole_state(parts, optimizer), folder, same_ranks=same_ranks)) is not None:
            raise failures.load_failure(error, manifest) from None

    def _load_state(self, state: dict[str, object], folder: Path, *, same_ranks: bool) -> BaseException | None:
        """Fill the state from the files; returns the first error of any rank, to all ranks."""
        own: BaseException | None = None
        try:
            reader = reader_of(folder)
            state = loadable(state, reader.read_metadata().state_dict_metadata, same_ranks=same_ranks)
        except Exception as error:
            own = error
        if (failed := failures.first_of_any_rank(own, self.group)) is not None:
            return failed
        try:
            dcp.load(state, storage_reader=reader, planner=LoadPlannerOfValues(), process_group=self.group)
        except CheckpointException as error:
            own, _ = error.failures[min(error.failures)]
        except Exception as error:  # of a state that takes what was read itself; it may not survive pickling
            own = RuntimeError(f"{type(error).__name__}: {error}")
        return failures.first_of_any_rank(own, self.group)
