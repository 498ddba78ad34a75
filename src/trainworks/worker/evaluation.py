"""Evaluation on held-out data: the same samples every time, the same value in every layout, training unchanged.

With micro-batches i of all ranks, each with n_i items (labels that count, else samples) and mean loss l_i:

    loss = sum_i n_i l_i / sum_i n_i        accuracy = right predictions / sum_i n_i

so that the value is the mean over all items, however they are divided among ranks and micro-batches. Ranks that hold
copies of a micro-batch (tp) count it alike, and those of other pipeline stages count nothing. Every held-out set has
figures of its own; those of the user's functions are in `callbacks`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

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
from trainworks.worker.callbacks import OwnMetrics, load_metrics
from trainworks.worker.data.reader import BatchReader, Dataset, move_to_device
from trainworks.worker.health.heartbeat import Heartbeat, Phase
from trainworks.worker.loss import IGNORED
from trainworks.worker.parallel.build import Parallel
from trainworks.worker.parallel.data_parallel import averaged_statistics
from trainworks.worker.tasks.causal_lm import Task, generate
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
    *,
    data_folder: Path,
    modules_folder: Path,
) -> Evaluator | None:
    """What evaluates the model, after a blank batch if that compiles; None for a run that does not evaluate."""
    if workload.eval is None or not opened.held_out:
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
        own=OwnMetrics(load_metrics(names, modules_folder), parallel.parts)
        if (names := workload.eval.metrics)
        else None,
        write=functools.partial(
            generate,
            parallel,
            data_folder,
            window=workload.data.sequence_length,
            device=device,
        ),
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
    datasets: Mapping[str, Dataset]
    """The held-out sets by their names; that of a single one is empty."""
    task: Task
    parallel: Parallel
    global_batch: int
    device: torch.device
    timeline: Timeline
    heartbeat: Heartbeat
    masks_labels: bool = True
    """Whether labels can be left out, to evaluate a last batch that is not full. A module keeps to whole batches."""

    own: OwnMetrics | None = None
    """Metrics of the user's own; None without any."""
    write: Callable[..., str] | None = None
    """Continues a prompt; all ranks call it together."""

    def __post_init__(self) -> None:
        least = 1 if self.masks_labels else self.global_batch
        for name, dataset in self.datasets.items():
            if len(dataset) < least:
                raise UsageError(
                    f"there are {len(dataset)} held-out samples{f' in `{name}`' if name else ''}, fewer than {least}",
                    hint="hold out more data" if least == 1 else "lower `global_batch`, or hold out more data",
                )

    def num_batches(self, dataset: Dataset) -> int:
        """Global batches of a held-out set that one evaluation takes."""
        available = len(dataset) / self.global_batch
        batches = int(np.ceil(available)) if self.masks_labels else int(available)
        return batches if self.settings.steps == "all" else min(batches, self.settings.steps)

    def num_samples(self, dataset: Dataset) -> int:
        """Samples of a held-out set that one evaluation takes."""
        return min(len(dataset), self.num_batches(dataset) * self.global_batch)

    def evaluate(self, step: int) -> EvaluationResult:
        """The result on the weights as they are; the same on every rank.

        Weights, gradients, optimizer and the reader of the training data stay untouched, and the next step seeds its
        own random numbers (`seed_step`).
        """
        sums: list[Tensor] = []
        own: dict[str, float] = {}
        with self._evaluating():
            for name, dataset in self.datasets.items():
                sums.append(self._sums_of_set(dataset, step))
                found = self.own.take() if self.own is not None else {}
                own |= {f"{name}/{key}" if name else key: value for key, value in found.items()}
        total = torch.stack(sums)
        dist.all_reduce(total)
        self.timeline.take_waits()
        sets = {
            name: self._result(dataset, *of_set)
            for (name, dataset), of_set in zip(self.datasets.items(), total.tolist(), strict=True)
        }
        result = sets[self.settings.deciding_set(sets)]
        figures = {
            f"{name}/{figure}": found[figure]  # type: ignore[literal-required]
            for name, found in sets.items()
            for figure in ("loss", "accuracy")
            if name and figure in found
        } | own
        return EvaluationResult(**result, figures=figures) if figures else result

    def _result(
        self, dataset: Dataset, loss: float, items: float, right: float, counts_right: float
    ) -> EvaluationResult:
        result = EvaluationResult(loss=loss / items if items else float("nan"), samples=self.num_samples(dataset))
        if counts_right:
            result["accuracy"] = right / items if items else float("nan")
        return result

    def _sums_of_set(self, dataset: Dataset, step: int) -> Tensor:
        """Sum of `_sums` over this rank's part of a held-out set."""
        count = self.num_batches(dataset)
        reader = BatchReader.of_rank(
            dataset, self.parallel.mesh, self.device, seed=SEED, global_batch=self.global_batch, last_step=count
        )
        try:
            sums = [self._sums(reader, batch, step, self.num_samples(dataset)) for batch in range(count)]
        finally:
            reader.close()
        return torch.stack(sums).sum(0)

    def generate(self, step: int) -> list[tuple[str, str]]:
        """Prompts and what the model writes after each, the same on every rank; none without `eval.generate`."""
        wanted = self.settings.generate
        if wanted is None or self.write is None:
            return []
        progress = functools.partial(self.heartbeat.mark, Phase.EVALUATION, step)
        options = {"most_tokens": wanted.tokens, "temperature": wanted.temperature, "seed": wanted.seed}
        with self._evaluating():
            texts = [(prompt, self.write(prompt, progress=progress, **options)) for prompt in wanted.prompts]
        self.timeline.take_waits()
        return texts

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

    def _sums(self, reader: BatchReader, batch: int, step: int, num_samples: int) -> Tensor:
        """Sums over this rank's micro-batches of a batch: losses, items, right predictions, and whether it has those.

        Shape [4], fp64, on the device.
        """
        self.heartbeat.mark(Phase.EVALUATION, step)
        arrays = move_to_device(reader.next_batch(), self.device)
        x, labels = self.task.split(arrays)
        real = torch.from_numpy(reader.samples(batch) < num_samples).to(self.device)
        if self.masks_labels:
            labels = labels.masked_fill(~real.view(*real.shape, *[1] * (labels.dim() - 2)), IGNORED)
            items = (labels != IGNORED).flatten(1).sum(1).double()
        else:
            counted = self.task.num_items(arrays)
            items = torch.full((self._accum,), float(self.parallel.mesh.layout.micro_batch), device=self.device)
            items = items.double() if counted is None else counted.double()
        with self.own.watching(labels, real, items) if self.own is not None else nullcontext():
            values = self.parallel.evaluate(x, labels).double()
        has_loss = float(self.parallel.has_loss)
        losses = torch.where(items > 0, values[:, 0] * items, 0.0).sum()
        counts_right = values.shape[1] > 1
        right = values[:, 1].sum() if counts_right else torch.zeros_like(losses)
        return torch.stack([losses, items.sum() * has_loss, right, torch.full_like(losses, float(counts_right))])
