"""Bad steps: detected on the device, kept out of weights and optimizer state, handled by policy.

Detection costs no host synchronisation and, while spikes are ignored, no collective: a loss that is not finite
makes its gradients NaN before they are reduced, so that the global gradient norm tells every rank the same.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from trainworks.config.recovery import Guard
from trainworks.errors import DivergedError
from trainworks.record.events.training import FaultyStep, RollbackEvent, SkippedEvent
from trainworks.record.faults import FAULTS, describe_values
from trainworks.record.run_dir import RunDir
from trainworks.recover.decisions import Action, SkipReason, decide_after_skip

_LOG = logging.getLogger(__name__)

Reason = Literal["nonfinite", "spike", "loss_scale"]

_NONFINITE, _SPIKE = 1.0, 2.0


class StepJudge:
    """Decide on the device, with the same result on every rank, whether a step may change the weights.

    A spike is a loss or gradient norm x with

        x > mean + sigmas * std        over the last `window` good steps

    once at least half of the window is filled. Source: `SkipStepOptimizer` of OLMo-core (Allen Institute for AI), which
    skips deviations to both sides and counts skipped steps into its window; here only rises count as
    spikes, and a skipped step does not enter the window.
    """

    def __init__(self, settings: Guard, device: torch.device) -> None:
        self._watches_spikes = settings.spike != "ignore"
        self._sigmas = settings.sigmas
        self._window = settings.window
        self._slots = torch.arange(settings.window, device=device)
        self._history = torch.zeros(2, settings.window, device=device)
        self._num_good = torch.zeros((), dtype=torch.int64, device=device)

    def judge(self, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """0 for a step to take, 1 for one that is not finite, 2 for a spike; scalar, fp32.

        The loss is the mean over the micro-batches of this rank, and the gradient norm that of the whole model on every
        rank.
        """
        finite = torch.isfinite(grad_norm)
        if not self._watches_spikes:
            return finite.logical_not().float()
        values = torch.stack([_mean_over_ranks(loss.float()), grad_norm.float()])
        finite &= torch.isfinite(values).all()
        verdict = torch.where(finite, self._is_spike(values) * _SPIKE, _NONFINITE)
        is_good = verdict == 0
        here = (self._slots == self._num_good % self._window) & is_good
        self._history.copy_(torch.where(here, values[:, None], self._history))
        self._num_good += is_good
        return verdict

    def _is_spike(self, values: Tensor) -> Tensor:
        filled = self._slots < self._num_good
        num = filled.sum()
        mean = self._history.sum(dim=1) / num
        deviations = torch.where(filled, self._history - mean[:, None], 0.0)
        std = (deviations.square().sum(dim=1) / (num - 1)).sqrt()
        return ((values > mean + self._sigmas * std).any() & (2 * num >= self._window)).float()

    def state(self) -> dict[str, Tensor]:
        """State for the checkpoint, loaded in place; empty while spikes are ignored."""
        return {"history": self._history, "num_good": self._num_good} if self._watches_spikes else {}


def _mean_over_ranks(loss: Tensor) -> Tensor:
    if dist.get_world_size() == 1:
        return loss
    total = loss.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


@dataclass(frozen=True, slots=True)
class SkippedStep:
    """A step that did not touch the weights."""

    step: int
    reason: Reason
    loss: float
    """Mean over the ranks."""
    grad_norm: float
    losses: tuple[float, ...] = ()
    """Losses by rank."""


def reason_of(verdict: float, loss: float, *, loss_scaling: bool) -> Reason | None:
    """Why a step was skipped; None if it was not.

    With fp16, overflowing gradients of a finite loss are not a fault: the loss scale was too high, and is lowered.
    """
    if verdict == 0:
        return None
    if verdict == _SPIKE:
        return "spike"
    return "loss_scale" if loss_scaling and math.isfinite(loss) else "nonfinite"


@dataclass(eq=False)
class FaultPolicy:
    """Reaction of the run to skipped steps, once per logging interval, with the same result on every rank."""

    settings: Guard
    run_dir: RunDir
    attempt: int
    rollbacks: int
    """Rollbacks of all attempts so far."""
    _in_a_row: int = field(default=0, init=False)
    _last_skipped: int = field(default=0, init=False)

    def apply(self, skipped: Sequence[SkippedStep]) -> SkippedStep | None:
        """Record the skipped steps; returns the last one that requires a rollback.

        Raises:
            DivergedError: the policy is to stop, or a limit is reached.
        """
        faults = [step for step in skipped if step.reason != "loss_scale"]
        for fault in faults:
            self._note({"kind": "skipped", **self._fields(fault)})
        going_back = [fault for fault in faults if self._decide(fault) is Action.ROLL_BACK]
        return going_back[-1] if going_back else None

    def rolled_back(self, fault: SkippedStep, to_step: int) -> None:
        """Record a completed rollback."""
        self.rollbacks += 1
        self._in_a_row = self._last_skipped = 0
        left_out = fault.step - to_step
        self._note({"kind": "rollback", **self._fields(fault), "to_step": to_step, "batches_left_out": left_out})

    def _decide(self, fault: SkippedStep) -> Action:
        self._in_a_row = self._in_a_row + 1 if fault.step == self._last_skipped + 1 else 1
        self._last_skipped = fault.step
        reason = SkipReason(fault.reason)
        decision = decide_after_skip(reason, self.settings, in_a_row=self._in_a_row, rollbacks=self.rollbacks)
        _LOG.info("step %d is %s: %s, %s", fault.step, FAULTS[fault.reason], decision.action, decision.reason)
        if decision.action is Action.STOP:
            raise self._diverged(fault, decision.reason)
        return decision.action

    def _diverged(self, fault: SkippedStep, why: str) -> DivergedError:
        """Error that ends the run and names another policy to try."""
        policy = self.settings.spike if fault.reason == "spike" else self.settings.nonfinite
        answer = "rollback" if policy == "skip" else "skip"
        values = describe_values(fault.loss, fault.grad_norm, fault.losses)
        option = "--spike" if fault.reason == "spike" else "--nonfinite"
        return DivergedError(
            f"step {fault.step} is {FAULTS[fault.reason]}, {why}: {values}",
            hint="look at the data of that step, and at `optimizer.lr`; then try another policy: "
            f"trainworks resume {self.run_dir.run_id} {option} {answer}",
        )

    def _fields(self, fault: SkippedStep) -> FaultyStep:
        return FaultyStep(
            attempt=self.attempt,
            step=fault.step,
            reason=fault.reason,
            loss=fault.loss,
            grad_norm=fault.grad_norm,
            losses=fault.losses,
        )

    def _note(self, event: SkippedEvent | RollbackEvent) -> None:
        if dist.get_rank() == 0:
            self.run_dir.note(event)
