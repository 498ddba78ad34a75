"""Metrics of the training loop: once per logging interval, in one collective and one write.

The same collective carries what all ranks must agree on, at no extra cost: a stop request, a due checkpoint, a failed
checkpoint, a request to profile, what callbacks ask for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from trainworks.host import memory
from trainworks.record.events.training import CallbackStopEvent, SampleEvent
from trainworks.record.fence import AttemptFence
from trainworks.record.metrics import CallbackTimes, EvaluationResult, MetricsRow, SlowestRank, append_metrics
from trainworks.record.run_dir import RunDir
from trainworks.worker.guard import SkippedStep, reason_of
from trainworks.worker.timing import StepMarks

_DURATIONS = 8
"""Length of StepMarks.durations(), and the callbacks after the step."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Flags that at least one rank has set; all ranks see the same values."""

    stop: bool = False
    checkpoint: bool = False
    failed: bool = False
    profile: bool = False
    saving: bool = False
    skipped: tuple[SkippedStep, ...] = ()
    """The steps of the interval that did not touch the weights."""
    evaluate: bool = False
    """A callback asks for an evaluation."""
    finish: bool = False
    """A callback asks for the end of the run."""

    def flags(self) -> list[bool]:
        """Every flag, in the order in which ranks exchange them."""
        return [self.stop, self.checkpoint, self.failed, self.profile, self.saving, self.evaluate, self.finish]


@dataclass(slots=True)
class _Step:
    step: int
    loss: Tensor
    grad_norm: Tensor
    verdict: Tensor
    lr: float
    marks: StepMarks
    figures: Mapping[str, Tensor]
    evaluation: EvaluationResult | None = None


@dataclass(eq=False)
class Telemetry:
    """Collects the steps of one logging interval; losses stay on the device until it ends."""

    run_dir: RunDir
    attempt: int
    tokens_per_step: int
    num_stages: int
    device: torch.device
    loss_scaling: bool = False
    _steps: list[_Step] = field(default_factory=list, init=False)
    _interval_began: float = field(default_factory=time.perf_counter, init=False)

    def __post_init__(self) -> None:
        self._fence = AttemptFence(self.run_dir.events_file, attempt=self.attempt, writer=os.getpid())

    def begin(self) -> None:
        """The first interval begins now."""
        self._interval_began = time.perf_counter()

    def add(
        self,
        step: int,
        loss: Tensor,
        grad_norm: Tensor,
        verdict: Tensor,
        lr: float,
        marks: StepMarks,
        figures: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Take one step's results; nothing is computed or copied yet. `figures` are further columns of the record, of
        the same names in every step and on every rank.
        """
        self._steps.append(_Step(step, loss, grad_norm, verdict, lr, marks, figures or {}))

    def add_evaluation(self, result: EvaluationResult) -> None:
        """Take the result of the evaluation after the last step; it is the same on every rank."""
        self._steps[-1].evaluation = result

    def note_texts(self, step: int, texts: Sequence[tuple[str, str]]) -> None:
        """Record (rank 0) what an evaluation has the model write after each prompt."""
        if dist.get_rank() == 0 and texts:
            self._fence.check()
            for prompt, text in texts:
                event = SampleEvent(kind="sample", step=step, prompt=prompt, text=text, evaluation=True)
                self.run_dir.note(event)

    def flush(self, mine: Agreement) -> Agreement:
        """Average the interval over the ranks, write it (rank 0), and agree."""
        found = [torch.stack([s.loss, s.grad_norm, s.verdict, *s.figures.values()]) for s in self._steps]
        values = torch.stack(found).double().cpu()
        losses = values[:, 0].clone()
        now = time.perf_counter()
        elapsed_s, self._interval_began = now - self._interval_began, now
        durations, callbacks = self._durations(elapsed_s)
        flags = torch.tensor(mine.flags(), dtype=torch.float64)
        world = dist.get_world_size()
        data_s, compute_s = durations[:, 1:3].mean(0).tolist()
        mine_now = (peak_memory_bytes(self.device), data_s, compute_s, *callbacks.mean(0).tolist())
        by_rank = torch.zeros(len(mine_now), world, dtype=torch.float64)
        by_rank[:, dist.get_rank()] = torch.tensor(mine_now, dtype=torch.float64)
        packed = torch.cat([values.flatten(), durations.flatten(), flags, by_rank.flatten(), torch.tensor([elapsed_s])])
        packed = _sum_over_ranks(packed, self.device)
        sizes = [values.numel(), durations.numel(), flags.numel(), by_rank.numel(), 1]
        values, durations, flags, by_rank, elapsed = packed.split(sizes)
        # One pipeline stage in `num_stages` has the loss, the others report 0; all have norm and verdict.
        values = values.view(len(self._steps), -1) / world
        values[:, 0] *= self.num_stages
        skipped = self._skipped(values)
        if dist.get_rank() == 0:
            rows = self._rows(values, durations.view(-1, _DURATIONS) / world, elapsed.item() / world)
            _name_skipped(rows, skipped)
            _close_interval(rows[-1], by_rank.view(-1, world))
            self._fence.check()
            append_metrics(self.run_dir.metrics_file, rows)
        skipped = self._with_losses_by_rank(skipped, losses)
        self._steps.clear()
        stop, checkpoint, failed, profile, saving, evaluate, finish = (bool(flag) for flag in flags)
        return Agreement(stop, checkpoint, failed, profile, saving, skipped, evaluate, finish)

    def note_finish(self, step: int) -> None:
        """Record (rank 0) that callbacks end the run after this step, before its last checkpoint is written."""
        if dist.get_rank() == 0:
            self._fence.check()
            self.run_dir.note(CallbackStopEvent(kind="callback_stop", step=step))

    def _durations(self, elapsed_s: float) -> tuple[Tensor, Tensor]:
        """Seconds of this rank's interval by step: its parts [steps, _DURATIONS], and its callbacks [steps, callbacks].

        What an accelerator computed while the host was in a callback is in the parts: a callback counts with the time
        that is left beside them.
        """
        parts = torch.tensor([s.marks.durations() for s in self._steps], dtype=torch.float64)
        callbacks = torch.tensor([s.marks.callbacks_s for s in self._steps], dtype=torch.float64)
        left_s, called_s = max(0.0, elapsed_s - float(parts[:, 0].sum())), float(callbacks.sum())
        if called_s > left_s:
            callbacks *= left_s / called_s
        return torch.cat([parts, callbacks.sum(1, keepdim=True)], 1), callbacks

    def _skipped(self, values: Tensor) -> tuple[SkippedStep, ...]:
        """The steps of the interval that were left out, from loss, gradient norm and verdict, its first columns."""
        judged = (
            (step.step, reason_of(verdict, loss, loss_scaling=self.loss_scaling), loss, norm)
            for step, (loss, norm, verdict, *_) in zip(self._steps, values.tolist(), strict=True)
        )
        return tuple(SkippedStep(step, reason, loss, norm) for step, reason, loss, norm in judged if reason)

    def _with_losses_by_rank(self, skipped: Sequence[SkippedStep], losses: Tensor) -> tuple[SkippedStep, ...]:
        """Every rank's own loss of the skipped steps; a collective of its own, because they are rare."""
        if not skipped:
            return ()
        own = losses[[fault.step - self._steps[0].step for fault in skipped]]
        by_rank = torch.zeros(dist.get_world_size(), len(skipped), dtype=torch.float64)
        by_rank[dist.get_rank()] = own
        by_rank = _sum_over_ranks(by_rank, self.device)
        return tuple(replace(fault, losses=tuple(by_rank[:, index].tolist())) for index, fault in enumerate(skipped))

    def _rows(self, values: Tensor, durations: Tensor, elapsed_s: float) -> list[MetricsRow]:
        """One row per step. What the interval took beyond its steps (the last flush) is spread over them as `other`."""
        whole_s = durations[:, 0] + durations[:, -1]
        other_s = max(0.0, elapsed_s - float(whole_s.sum())) / len(self._steps)
        ends_at = time.time() - elapsed_s + (whole_s + other_s).cumsum(0)
        rows: list[MetricsRow] = []
        for step, (loss, norm, _, *figures), parts, t in zip(
            self._steps, values.tolist(), durations.tolist(), ends_at.tolist(), strict=True
        ):
            total_s, data_s, compute_s, communication_s, optimizer_s, checkpoint_s, evaluation_s, callback_s = parts
            rows.append(
                MetricsRow(
                    step=step.step,
                    attempt=self.attempt,
                    t=t,
                    loss=loss,
                    grad_norm=norm,
                    lr=step.lr,
                    tokens=self.tokens_per_step,
                    step_s=total_s + callback_s + other_s,
                    data_s=data_s,
                    compute_s=compute_s,
                    communication_s=communication_s,
                    optimizer_s=optimizer_s,
                    checkpoint_s=checkpoint_s,
                    other_s=other_s,
                )
            )
            rows[-1] |= dict(zip(step.figures, figures, strict=True))  # type: ignore[typeddict-item]
            if step.evaluation is not None:
                rows[-1] |= {"evaluation_s": evaluation_s, "evaluation": step.evaluation}
            if step.marks.callbacks_s:
                rows[-1]["callback_s"] = callback_s
        return rows


def slowest_rank(data_s: Sequence[float], compute_s: Sequence[float]) -> SlowestRank:
    """The rank whose own work takes longest, and its lead over the median of the other ranks, of which there is one at
    least.

    Each rank waits for its batch for `data_s` per step, and computes for `compute_s`, without waits for other ranks.

    >>> slowest_rank([0.0, 0.25, 0.0], [1.0, 1.5, 1.0]) {'rank': 1, 'extra_s': 0.75, 'extra_data_s': 0.25}
    """
    work_s = [data + compute for data, compute in zip(data_s, compute_s, strict=True)]
    rank = max(range(len(work_s)), key=work_s.__getitem__)

    def lead(seconds: Sequence[float]) -> float:
        return seconds[rank] - median([*seconds[:rank], *seconds[rank + 1 :]])

    return SlowestRank(rank=rank, extra_s=lead(work_s), extra_data_s=lead(data_s))


def longest_callbacks(seconds: Sequence[Sequence[float]]) -> CallbackTimes:
    """The rank that spends longest in callbacks, and the callback that takes it longest.

    `seconds` are per step, of each callback on each rank.

    >>> longest_callbacks([[0.25, 0.0], [0.5, 0.125]]) {'rank': 0, 'total_s': 0.75, 'longest': 1, 'longest_s': 0.5}
    """
    totals = [sum(of_rank) for of_rank in zip(*seconds, strict=True)]
    rank = max(range(len(totals)), key=totals.__getitem__)
    longest = max(range(len(seconds)), key=lambda place: seconds[place][rank])
    return CallbackTimes(rank=rank, total_s=totals[rank], longest=longest, longest_s=seconds[longest][rank])


def _close_interval(row: MetricsRow, by_rank: Tensor) -> None:
    peak, data, compute, *callbacks = by_rank.tolist()
    row["memory_peak_bytes"] = int(max(peak))
    if len(peak) > 1:
        row["slowest"] = slowest_rank(data, compute)
    if callbacks:
        row["callbacks"] = longest_callbacks(callbacks)


def _name_skipped(rows: Sequence[MetricsRow], skipped: Sequence[SkippedStep]) -> None:
    reasons = {fault.step: fault.reason for fault in skipped}
    for row in rows:
        if reason := reasons.get(row["step"]):
            row["skipped"] = reason


def _sum_over_ranks(values: Tensor, device: torch.device) -> Tensor:
    if dist.get_world_size() == 1:
        return values
    on_device = values.to(device)
    dist.all_reduce(on_device)
    return on_device.cpu()


def peak_memory_bytes(device: torch.device) -> int:
    """Largest memory so far: of this rank's accelerator as nvidia-smi counts it, with the driver's context; resident
    memory of this rank on a CPU.
    """
    if device.type == "cpu":
        return memory.peak_bytes()
    free, total = torch.cuda.mem_get_info(device)
    not_of_torch = total - free - torch.cuda.memory_reserved(device)
    return not_of_torch + torch.cuda.max_memory_reserved(device)
