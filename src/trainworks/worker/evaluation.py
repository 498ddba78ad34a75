"""Evaluation on held-out data: the same samples every time, the same value in every layout, training unchanged.

With micro-batches i of all ranks, each with n_i items (labels that count, else samples) and mean loss l_i:

    loss = sum_i n_i l_i / sum_i n_i        accuracy = right predictions / sum_i n_i

so that the value is the mean over all items, however they are divided among ranks and micro-batches. Ranks that hold
copies of a micro-batch (tp) count it alike, and those of other pipeline stages count nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from trainworks.config.data import Evaluation
from trainworks.config.run_file import Workload
from trainworks.errors import UsageError
from trainworks.record.evaluations import EvaluatedStep, read_evaluations
from trainworks.record.metrics import EvaluationResult
from trainworks.record.run_dir import RunDir
from trainworks.worker.data.reader import BatchReader, Dataset, move_to_device
from trainworks.worker.health.heartbeat import Heartbeat, Phase
from trainworks.worker.loss import IGNORED
from trainworks.worker.parallel.build import Parallel
from trainworks.worker.parallel.data_parallel import averaged_statistics
from trainworks.worker.tasks.causal_lm import Task
from trainworks.worker.tasks.open_task import OpenedTask
from trainworks.worker.timing import Timeline

SEED = 0
"""Seed of the order in which samples are taken: with `eval.steps` it chooses them, for runs of any seed alike."""


def build_evaluator(
    workload: Workload,
    opened: OpenedTask,
    parallel: Parallel,
    device: torch.device,
    timeline: Timeline,
    heartbeat: Heartbeat,
) -> Evaluator | None:
    """What evaluates the model, after a blank batch if that compiles; None for a run that does not evaluate."""
    if workload.eval is None or opened.held_out is None:
        return None
    evaluator = Evaluator(
        workload.eval,
        opened.held_out,
        opened.task,
        parallel,
        global_batch=workload.global_batch,
        device=device,
        timeline=timeline,
        heartbeat=heartbeat,
        masks_labels=workload.task != "module",
    )
    if workload.compile is True:
        evaluator.warm_up()
    return evaluator


@dataclass
class Evaluator:
    """Evaluates the model of one rank; all ranks call it together.

    Raises:
        UsageError: there are fewer held-out samples than one sequence, or, for a module, than one global batch.
    """

    settings: Evaluation
    dataset: Dataset
    task: Task
    parallel: Parallel
    global_batch: int
    device: torch.device
    timeline: Timeline
    heartbeat: Heartbeat
    masks_labels: bool = True
    """Whether labels can be left out, to evaluate a last batch that is not full. A module keeps to whole batches."""

    def __post_init__(self) -> None:
        least = 1 if self.masks_labels else self.global_batch
        if len(self.dataset) < least:
            raise UsageError(
                f"there are {len(self.dataset)} held-out samples, fewer than {least}",
                hint="hold out more data" if least == 1 else "lower `global_batch`, or hold out more data",
            )

    @property
    def num_batches(self) -> int:
        """Global batches of one evaluation."""
        available = len(self.dataset) / self.global_batch
        batches = int(np.ceil(available)) if self.masks_labels else int(available)
        return batches if self.settings.steps == "all" else min(batches, self.settings.steps)

    @property
    def num_samples(self) -> int:
        """Samples of one evaluation."""
        return min(len(self.dataset), self.num_batches * self.global_batch)

    def evaluate(self, step: int) -> EvaluationResult:
        """The result on the weights as they are; the same on every rank.

        Weights, gradients, optimizer and the reader of the training data stay untouched, and the next step seeds its
        own random numbers (`seed_step`).
        """
        mesh, count = self.parallel.mesh, self.num_batches
        reader = BatchReader.of_rank(
            self.dataset, mesh, self.device, seed=SEED, global_batch=self.global_batch, last_step=count
        )
        try:
            with self._evaluating():
                sums = [self._sums(reader, batch, step) for batch in range(count)]
        finally:
            reader.close()
        total = torch.stack(sums).sum(0)
        dist.all_reduce(total)
        self.timeline.take_waits()
        loss, items, right, counts_right = total.tolist()
        result = EvaluationResult(loss=loss / items if items else float("nan"), samples=self.num_samples)
        if counts_right:
            result["accuracy"] = right / items if items else float("nan")
        return result

    def evaluations_until(self, step: int, run_dir: RunDir) -> list[EvaluatedStep]:
        """The evaluations of the run up to a step, read from the record by rank 0: an early stop depends on them."""
        shared = [[]] if dist.get_rank() else [read_evaluations(run_dir, self.settings.metric, until_step=step)]
        dist.broadcast_object_list(shared, src=0)
        return shared[0]

    def warm_up(self) -> None:
        """Evaluate a blank batch, so that what compiles does it before the first step."""
        x, labels = self.task.split(move_to_device(self.task.blank_batch(self._accum), self.device))
        with self._evaluating():
            self.parallel.evaluate(x, labels)
        self.timeline.take_waits()

    @property
    def _accum(self) -> int:
        return self.parallel.mesh.layout.grad_accum_steps

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """The model in its evaluation mode: no dropout, and the running statistics of all ranks together."""
        parts = self.parallel.parts
        with averaged_statistics(parts):
            for part in parts:
                part.eval()
            try:
                yield
            finally:
                for part in parts:
                    part.train()
                self.parallel.leave_evaluation()

    def _sums(self, reader: BatchReader, batch: int, step: int) -> Tensor:
        """Sums over this rank's micro-batches of a batch: losses, items, right predictions, and whether it has those.

        Shape [4], fp64, on the device.
        """
        self.heartbeat.mark(Phase.EVALUATION, step)
        arrays = move_to_device(reader.next_batch(), self.device)
        x, labels = self.task.split(arrays)
        if self.masks_labels:
            real = torch.from_numpy(reader.samples(batch) < self.num_samples).to(self.device)
            labels = labels.masked_fill(~real.view(*real.shape, *[1] * (labels.dim() - 2)), IGNORED)
            items = (labels != IGNORED).flatten(1).sum(1).double()
        else:
            counted = self.task.num_items(arrays)
            items = torch.full((self._accum,), float(self.parallel.mesh.layout.micro_batch), device=self.device)
            items = items.double() if counted is None else counted.double()
        values = self.parallel.evaluate(x, labels).double()
        has_loss = float(self.parallel.has_loss)
        losses = torch.where(items > 0, values[:, 0] * items, 0.0).sum()
        counts_right = values.shape[1] > 1
        right = values[:, 1].sum() if counts_right else torch.zeros_like(losses)
        return torch.stack([losses, items.sum() * has_loss, right, torch.full_like(losses, float(counts_right))])
