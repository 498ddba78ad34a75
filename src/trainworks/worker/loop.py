"""The training loop."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainworks.errors import EnvironmentProblem
from trainworks.record.resolved import Plan
from trainworks.record.run_dir import RunDir
from trainworks.worker.checkpoint import Checkpointer
from trainworks.worker.data import BatchReader
from trainworks.worker.optimizer import StepOptimizer
from trainworks.worker.parallel import Parallel
from trainworks.worker.telemetry import Agreement, Telemetry
from trainworks.worker.timing import StepMarks, Timeline

__all__ = ["StopRequest", "Trainer"]


class StopRequest:
    """Whether this rank has been asked to stop: by a signal, or by the stop file, which rank 0 looks at."""

    def __init__(self, run_dir: RunDir, *, watch_file: bool) -> None:
        self.signalled = False
        self._file = run_dir.stop_file if watch_file else None

    def __bool__(self) -> bool:
        return self.signalled or (self._file is not None and self._file.exists())


@dataclass
class Trainer:
    """Everything that one rank trains with.

    The loop never asks the device for a value between two flushes: on an accelerator the host runs ahead of it.
    """

    plan: Plan
    global_batch: int
    device: torch.device
    parallel: Parallel
    optimizer: StepOptimizer
    read_from: Callable[[int], BatchReader]
    """Starts reading at a step."""
    timeline: Timeline
    telemetry: Telemetry
    checkpointer: Checkpointer
    stop: StopRequest
    _last_saved_step: int = 0
    _last_save_at: float = field(default_factory=time.monotonic)

    def warm_up(self) -> None:
        """One forward and backward whose gradients are thrown away; random state and weights stay as they were.

        DDP orders its buckets by the first backward it sees. Done here, every step that counts has the same order,
        and with it the same rounding, in a fresh run and in a resumed one.
        """
        shape = (self.plan.layout.micro_batch, self.plan.tokens_per_step // self.global_batch + 1)
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            tokens = torch.zeros(shape, dtype=torch.int64, device=self.device)
            self.parallel.accumulate(tokens, scale=1.0, last=True)
        self.parallel.settle()
        self.timeline.take_waits()
        self.optimizer.adamw.zero_grad(set_to_none=True)

    def run(self, steps_done: int) -> int:
        """Train from `steps_done` to the plan's last step, or until a stop is agreed.

        Returns:
            Steps done; a checkpoint of that step is complete.

        Raises:
            TrainworksError: a checkpoint could not be written; the one before it is complete.
        """
        agreed, save_due = Agreement(), False
        reader = self.read_from(steps_done)
        _collect_garbage_by_hand()
        self.telemetry.begin()
        for step in range(steps_done + 1, self.plan.num_steps + 1):
            marks = self._train_step(step, reader)
            if saved := save_due or self._is_checkpoint_step(step):
                self._save(step)
                save_due = False
            marks.end = self.timeline.mark()
            if saved or step == steps_done + 1 or self._is_logging_step(step):
                agreed = self._flush()
                save_due = save_due or agreed.checkpoint
            if agreed.stop:
                break
        reader.close()
        if self._last_saved_step < step:
            self._save(step)
            self.checkpointer.allow_completion()
        self.checkpointer.wait()
        self._raise_failure()
        return step

    def _train_step(self, step: int, reader: BatchReader) -> StepMarks:
        """One optimizer step; its loss is the mean over the micro-batches of this rank."""
        marks = StepMarks(self.timeline.mark())
        tokens = reader.next_step().to(self.device, non_blocking=True)
        marks.data = self.timeline.mark()
        loss = self._gradients(tokens)
        marks.waits = self.timeline.take_waits()
        marks.gradients = self.timeline.mark()
        grad_norm = self.optimizer.step(step - 1)
        marks.optimizer = self.timeline.mark()
        self.telemetry.add(step, loss, grad_norm, self.optimizer.lr, marks)
        return marks

    def _gradients(self, tokens: Tensor) -> Tensor:
        accum = tokens.shape[0]
        scale = self.optimizer.loss_scale(accum)
        losses = [
            self.parallel.accumulate(micro_batch, scale=scale, last=index == accum - 1)
            for index, micro_batch in enumerate(tokens.unbind(0))
        ]
        return losses[0] if accum == 1 else torch.stack(losses).mean()

    def _is_logging_step(self, step: int) -> bool:
        return step % self.plan.log_every_steps == 0 or step == self.plan.num_steps

    def _is_checkpoint_step(self, step: int) -> bool:
        every = self.plan.checkpoint_every_steps
        return every is not None and step % every == 0

    def _save(self, step: int) -> None:
        self.checkpointer.save(step, self.parallel.module, self.optimizer, samples_consumed=step * self.global_batch)
        self._last_saved_step, self._last_save_at = step, time.monotonic()

    def _flush(self) -> Agreement:
        every_s = self.plan.checkpoint_every_s
        due = every_s is not None and time.monotonic() - self._last_save_at >= every_s
        failed = self.checkpointer.failure is not None
        try:
            agreed = self.telemetry.flush(Agreement(stop=bool(self.stop), checkpoint=due, failed=failed))
        finally:
            self.checkpointer.allow_completion()
        gc.collect(1)
        if agreed.failed:
            self.checkpointer.wait()
            self._raise_failure()
            raise EnvironmentProblem("another rank could not write its part of the checkpoint")
        return agreed

    def _raise_failure(self) -> None:
        if self.checkpointer.failure is not None:
            raise self.checkpointer.failure


def _collect_garbage_by_hand() -> None:
    """Python's collector stops a rank at moments of its own, and with it all the ranks that wait for that one."""
    gc.collect()
    gc.freeze()
    gc.disable()
