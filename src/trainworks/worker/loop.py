"""The training loop."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch import Tensor

from trainworks.errors import DivergedError, EnvironmentProblem
from trainworks.record.evaluations import EvaluatedStep, standing
from trainworks.record.metrics import EvaluationResult
from trainworks.record.resolved import Plan
from trainworks.worker.callbacks import Callbacks, CallbackState
from trainworks.worker.checkpoint.checkpointer import Checkpointer
from trainworks.worker.checkpoint.interval import MeasuredInterval
from trainworks.worker.checkpoint.state import HasState, StateWithCallbacks
from trainworks.worker.data.reader import BatchReader, move_to_device
from trainworks.worker.determinism import seed_step
from trainworks.worker.evaluation import Evaluator
from trainworks.worker.guard import FaultPolicy, SkippedStep
from trainworks.worker.health.heartbeat import Heartbeat, Phase
from trainworks.worker.loss import loss_weights
from trainworks.worker.optimizer import StepOptimizer
from trainworks.worker.parallel.build import Parallel
from trainworks.worker.parallel.data_parallel import average_statistics
from trainworks.worker.profiling import StepProfiler
from trainworks.worker.stopping import StopRequest
from trainworks.worker.tasks.causal_lm import Task
from trainworks.worker.telemetry import Agreement, Telemetry
from trainworks.worker.timing import StepMarks, Timeline


@dataclass
class Trainer:
    """Everything that one rank trains with.

    The loop never asks the device for a value between two flushes: on an accelerator the host runs ahead of it.
    """

    plan: Plan
    seed: int
    """Seed of the run; see `seed_step`."""
    global_batch: int
    device: torch.device
    task: Task
    parallel: Parallel
    optimizer: StepOptimizer
    read_from: Callable[[int], BatchReader]
    """Starts reading at a batch, counted from 0."""
    timeline: Timeline
    telemetry: Telemetry
    checkpointer: Checkpointer
    fault_policy: FaultPolicy
    profiler: StepProfiler
    stop: StopRequest
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    interval: MeasuredInterval | None = None
    """Time between checkpoints, on rank 0; None on other ranks, and where steps count."""
    evaluator: Evaluator | None = None
    """None for a run that does not evaluate."""
    callbacks: Callbacks = field(default_factory=Callbacks)
    evaluations: list[EvaluatedStep] = field(default_factory=list)
    """Evaluations so far that led to the present weights."""
    batches_left_out: int = 0
    """Batches skipped by rollbacks: step s trains on batch s - 1 + batches_left_out."""
    finish_at: int | None = None
    """Step after which callbacks end the run, once the ranks have agreed on it."""
    _fault: SkippedStep | None = None
    """The skipped step that asks for a rollback."""
    _last: tuple[Tensor, Tensor] | None = None
    """Loss and gradient norm of the last step."""
    _result: EvaluationResult | None = None
    """Result of the last evaluation."""
    _last_saved_step: int = 0
    _last_save_at: float = field(default_factory=time.monotonic)

    @property
    def state(self) -> HasState:
        """What a checkpoint holds beside the model."""
        return StateWithCallbacks(self.optimizer, self.callbacks) if self.callbacks else self.optimizer

    def run(self, steps_done: int) -> int:
        """Train from `steps_done` to the plan's last step, to an early stop, or until a stop is agreed.

        Returns:
            Steps done; a checkpoint of that step is complete.

        Raises:
            TrainworksError: a checkpoint could not be written; the one before it is complete.
        """
        agreed, save_due = Agreement(), False
        reader = self.read_from(steps_done + self.batches_left_out)
        self._begin(steps_done)
        step = steps_done
        while not self.is_finished(step):
            step += 1
            marks = self._train_step(step, reader)
            evaluated = self._evaluate(step, marks, asked=agreed.evaluate)
            self._call_back(step, marks, evaluated=evaluated)
            saved = self._save_if_due(step, agreed, asked=save_due or (evaluated and self._best_step == step))
            save_due = False
            marks.end = self.timeline.mark()
            self.profiler.end_step(step)
            is_logged = step in (steps_done + 1, self.plan.num_steps) or step % self.plan.log_every_steps == 0
            if saved or evaluated or is_logged:
                agreed = self._flush(step)
                save_due = save_due or agreed.checkpoint
                if self._fault is not None:
                    step, reader = self._roll_back(self._fault, step, reader)
            if agreed.stop:
                break
        reader.close()
        self.profiler.close()
        self._finish(step)
        return step

    def _finish(self, step: int) -> None:
        """Complete a checkpoint of the last step."""
        if self._last_saved_step < step:
            self._save(step)
            self.checkpointer.allow_completion()
        self.checkpointer.wait()
        self._raise_failure()
        self._announce_checkpoints(step)
        if self.callbacks:
            self.callbacks.on_end(self._state(step))

    def _call_back(self, step: int, marks: StepMarks, *, evaluated: bool) -> None:
        """Call back before a checkpoint of the step, which holds the states that the callbacks then have."""
        if not self.callbacks:
            return
        self.callbacks.on_step(self._state(step))
        if evaluated and self._result is not None:
            self.callbacks.on_eval(self._state(step), self._result)
        self._announce_checkpoints(step)
        marks.callbacks_s = self.callbacks.take_seconds()
        marks.called = self.timeline.mark()

    def _announce_checkpoints(self, step: int) -> None:
        for folder in self.checkpointer.take_completed():
            if self.callbacks:
                self.callbacks.on_checkpoint(self._state(step), folder)

    def _state(self, step: int) -> CallbackState:
        loss, grad_norm = self._last or (None, None)
        return CallbackState(
            step=step,
            num_steps=self.plan.num_steps,
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            loss=loss,
            grad_norm=grad_norm,
            lr=self.optimizer.lr,
            parts=self.parallel.parts,
            evaluates=self.evaluator is not None,
            wishes=self.callbacks.wishes,
        )

    def _begin(self, steps_done: int) -> None:
        self.callbacks.restore()
        self._last_saved_step = steps_done
        self.checkpointer.kept_step = self._best_step
        self.profiler.take(steps_done)
        gc.collect()
        gc.disable()  # it stops a rank at random moments, and all the ranks that wait for it; `_flush` collects
        self.telemetry.begin()

    def _train_step(self, step: int, reader: BatchReader) -> StepMarks:
        """One optimizer step; its loss is the weighted mean over the micro-batches of this rank."""
        self.heartbeat.mark(Phase.DATA, step)
        self.profiler.begin_step(step)
        marks = StepMarks(self.timeline.mark())
        batch = move_to_device(reader.next_batch(), self.device)
        marks.data = self.timeline.mark()
        self.heartbeat.mark(Phase.COMPUTE, step)
        x, labels = self.task.split(batch)
        seed_step(self.seed, step=step, rank=dist.get_rank())
        scale = self.optimizer.loss_scale.per_micro_batch(self.plan.layout.grad_accum_steps)
        weights = loss_weights(self.task.num_items(batch), self.timeline)
        loss = self.parallel.gradients(x, labels, scale=scale, weights=weights)
        marks.waits = self.timeline.take_waits()
        marks.gradients = self.timeline.mark()
        self.checkpointer.await_copy()
        marks.free = self.timeline.mark()
        self.heartbeat.mark(Phase.OPTIMIZER, step)
        grad_norm = self.optimizer.step(step - 1, loss)
        self._last = loss, grad_norm
        marks.optimizer = self.timeline.mark()
        figures = self.parallel.take_figures()
        self.telemetry.add(step, loss, grad_norm, self.optimizer.verdict, self.optimizer.lr, marks, figures)
        return marks

    def _evaluate(self, step: int, marks: StepMarks, *, asked: bool) -> bool:
        """Evaluate after this step if it is due or asked for; returns whether it was."""
        if self.evaluator is None or not (asked or self.evaluator.settings.is_due(step, self.plan.num_steps)):
            return False
        result = self._result = self.evaluator.evaluate(step)
        texts = self.evaluator.generate(step)
        marks.evaluated = self.timeline.mark()
        self.telemetry.add_evaluation(result)
        self.telemetry.note_texts(step, texts)
        self.evaluations.append(EvaluatedStep(step, result.get(self.evaluator.settings.metric, math.nan)))
        return True

    def is_finished(self, step: int) -> bool:
        """Whether training ends after this step: the plan, an early stop or a callback says so."""
        return step >= min(self.plan.num_steps, self.finish_at or self.plan.num_steps) or self.has_stalled

    @property
    def has_stalled(self) -> bool:
        """Whether the evaluations so far ask for an early stop."""
        if self.evaluator is None:
            return False
        settings = self.evaluator.settings
        return standing(self.evaluations, settings).is_stalled(settings.patience)

    @property
    def _best_step(self) -> int | None:
        """Step with the best weights so far, which are to be kept."""
        if self.evaluator is None or not self.evaluator.settings.keep_best:
            return None
        best = standing(self.evaluations, self.evaluator.settings).best
        return best.step if best else None

    def _save(self, step: int) -> None:
        self.heartbeat.mark(Phase.CHECKPOINT, step)
        consumed = (step + self.batches_left_out) * self.global_batch
        average_statistics(self.parallel.parts)
        self.checkpointer.save(step, self.parallel.parts, self.state, samples_consumed=consumed)
        self.checkpointer.kept_step = self._best_step  # now: an earlier save, which deletes old ones, has ended
        self._last_saved_step, self._last_save_at = step, time.monotonic()

    def _save_if_due(self, step: int, agreed: Agreement, *, asked: bool) -> bool:
        """Save to disk, or to memory unless the last flush found a rank that still saves: no step waits for it.

        Returns whether the step has to be flushed: the record holds it before the checkpoint is complete.
        """
        every = self.plan.checkpoint_every_steps
        if asked or (every is not None and step % every == 0):
            self._save(step)
            return True
        if not self.checkpointer.memory.is_due(step):
            return False
        if not agreed.saving:
            consumed = (step + self.batches_left_out) * self.global_batch
            average_statistics(self.parallel.parts)
            self.checkpointer.save(step, self.parallel.parts, self.state, samples_consumed=consumed, to_memory=True)
        return True

    def _flush(self, step: int) -> Agreement:
        self.heartbeat.mark(Phase.COMMUNICATION, step)
        waited_s = time.monotonic() - self._last_save_at
        wishes = self.callbacks.take_wishes()
        due = self.stop.take_save_request() or (self.interval is not None and waited_s >= self.interval.seconds)
        failed = self.checkpointer.failure is not None
        try:
            saving = self.checkpointer.is_saving or self.checkpointer.memory.problem is not None
            mine = Agreement(bool(self.stop), due or "save" in wishes, failed, self.profiler.is_wanted(), saving)
            agreed = self.telemetry.flush(replace(mine, evaluate="evaluate" in wishes, finish="stop" in wishes))
            self._fault = self._apply_fault_policy(agreed.skipped)
        finally:
            self.checkpointer.allow_completion()
        if agreed.profile:
            self.profiler.take(step)
        if agreed.finish and self.finish_at is None:
            self.finish_at = step
            self.telemetry.note_finish(step)
        gc.collect(1)
        if agreed.failed:
            self.checkpointer.wait()
            self._raise_failure()
            raise EnvironmentProblem("another rank could not write its part of the checkpoint")
        return agreed

    def _apply_fault_policy(self, skipped: Sequence[SkippedStep]) -> SkippedStep | None:
        """Apply the fault policy; abandon checkpoints begun since a fault that it rolls back, and return that fault."""
        if not skipped:
            return None
        try:
            fault = self.fault_policy.apply(skipped)
        except DivergedError:
            self.checkpointer.abandon_from(skipped[0].step)
            raise
        if fault is not None:
            self.checkpointer.abandon_from(fault.step)
        return fault

    def _roll_back(self, fault: SkippedStep, step: int, reader: BatchReader) -> tuple[int, BatchReader]:
        """Load the newest checkpoint, and leave out every batch since then up to that of the fault.

        The same batches would lead to the same fault. Leaving out those before it too is what PaLM's authors found to
        work (Chowdhery et al., 2022, section 5.1).

        Returns:
            Steps done, and who reads on from there. Without a checkpoint those that were: the step was skipped.
        """
        self._fault = None
        found = self.checkpointer.newest()
        if found is None:
            return step, reader
        manifest, folder = found
        self.batches_left_out += fault.step - manifest.step
        consumed = (manifest.step + self.batches_left_out) * self.global_batch
        self.checkpointer.continue_behind(manifest, folder, samples_consumed=consumed)
        self.heartbeat.mark(Phase.LOADING, step)
        self.checkpointer.load(manifest, folder, self.parallel.parts, self.state)
        self.callbacks.restore()
        self.fault_policy.rolled_back(fault, manifest.step)
        self._last_saved_step = manifest.step
        self.evaluations = [each for each in self.evaluations if each.step <= manifest.step]
        self.checkpointer.kept_step = self._best_step
        self.telemetry.begin()
        reader.close()
        return manifest.step, self.read_from(manifest.step + self.batches_left_out)

    def _raise_failure(self) -> None:
        if self.checkpointer.failure is not None:
            raise self.checkpointer.failure


def warm_up(parallel: Parallel, task: Task, timeline: Timeline, device: torch.device) -> None:
    """One forward and backward whose gradients are thrown away; random state and weights stay as they were.

    DDP orders its buckets by the first backward it sees, and FSDP2 lays its shards out in the first forward. Done here,
    every step that counts has the same order, and with it the same rounding, in a fresh run and in a resumed one.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        batch = task.blank_batch(parallel.warm_up_micro_batches)
        parallel.gradients(*task.split(move_to_device(batch, device)), scale=1.0)
    parallel.settle()
    timeline.take_waits()
    for part in parallel.parts:
        part.zero_grad(set_to_none=True)
