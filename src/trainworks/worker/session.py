"""Record, checkpoints and clean stops for your own training loop.

    from trainworks.worker import session

    training = session.start(model, optimizer, num_steps=1000, checkpoint_every=100)
    for step in training:
        loss = ...                    # forward, backward, optimizer.step(): your own
        training.log(loss=loss)

The loop is a command: `trainworks run --nproc 2 -- python train.py`. Killed or stopped, `trainworks resume` starts it
again, and it continues after its last checkpoint.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel

from trainworks.config.layout import ResolvedLayout
from trainworks.errors import UsageError
from trainworks.host.network import LOOPBACK
from trainworks.record.events.job import StoppedEvent
from trainworks.record.events.training import AttemptEvent, MetricsSourceEvent
from trainworks.record.metrics import TOKENS_PER_STEP
from trainworks.record.run_dir import RunDir
from trainworks.worker.checkpoint.checkpointer import Checkpointer, CheckpointOrigin
from trainworks.worker.determinism import seed_step
from trainworks.worker.mesh import checkpoint_group, join_group
from trainworks.worker.stopping import StopRequest
from trainworks.worker.telemetry import Agreement, Telemetry
from trainworks.worker.timing import StepMarks, Timeline


def start(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    num_steps: int,
    checkpoint_every: int,
    samples_per_step: int = 1,
    log_every: int = 10,
    keep: int = 3,
    also: Mapping[str, Any] | None = None,
) -> Session:
    """Join the run, and load its newest checkpoint if there is one. All ranks call it, once.

    Args:
        model: as it is trained: plain, in DDP, or sharded by `fully_shard`; made alike on all ranks.
        optimizer: of its parameters.
        num_steps: of the whole run.
        checkpoint_every: steps.
        samples_per_step: of all ranks together, for the throughput; with `trains` in the run file its tokens count.
        log_every: steps after which metrics are written, and the ranks agree on a stop.
        keep: complete checkpoints, at least 2.
        also: what else belongs to the state: anything with `state_dict` and `load_state_dict`, such as a scheduler.

    Raises:
        UsageError: this process was not started by `trainworks run`.
        EnvironmentProblem: the checkpoint cannot be loaded.
    """
    folder = os.environ.get("TRAINWORKS_RUN_DIR")
    if folder is None:
        raise UsageError(
            "this process does not belong to a run", hint="start it with: trainworks run -- python train.py"
        )
    if not dist.is_initialized():
        device = next(model.parameters()).device  # the backend is that of the model: it may train on a CPU beside GPUs
        backend = "nccl" if device.type == "cuda" else "gloo"
        join_group(backend, os.environ.get("MASTER_ADDR", LOOPBACK), device=device)
    return Session(
        RunDir(Path(folder)),
        _State(model, optimizer, also or {}),
        num_steps=num_steps,
        checkpoint_every=checkpoint_every,
        samples_per_step=samples_per_step,
        log_every=log_every,
        keep=keep,
    )


class _State:
    """Optimizer, scheduler and the like, as a checkpoint takes and gives them (torch's `Stateful`).

    Names are those of the whole model, so that other ranks, in another layout, can load it.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, also: Mapping[str, Any]) -> None:
        self.model: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
        self._optimizer = optimizer
        self._also = also

    def state_dict(self) -> dict[str, object]:
        own = {name: each.state_dict() for name, each in self._also.items()}
        return {"optimizer": get_optimizer_state_dict(self.model, self._optimizer), "also": own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        set_optimizer_state_dict(self.model, self._optimizer, state["optimizer"])
        for name, each in self._also.items():
            each.load_state_dict(state["also"][name])

    def checkpoint_state(self) -> Mapping[str, object]:
        return {"optimizer": self, "random": _RandomState()}

    def fill_state(self) -> None:
        """Nothing to do: `get_optimizer_state_dict` creates the state."""


class _RandomState:
    """torch's generators of this rank (`Stateful`). The loop seeds and draws as it likes, so their state is saved."""

    def state_dict(self) -> dict[str, object]:
        state = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
        return {f"rank-{dist.get_rank()}": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = state[f"rank-{dist.get_rank()}"]
        torch.set_rng_state(own["cpu"])
        if "cuda" in own:
            torch.cuda.set_rng_state(own["cuda"])


@dataclass(eq=False)
class Session:
    """The steps that are left to do; iterate over it once. Made by `start`."""

    run_dir: RunDir
    state: _State
    num_steps: int
    checkpoint_every: int
    samples_per_step: int
    log_every: int
    keep: int

    def __post_init__(self) -> None:
        state, run_dir = self.state, self.run_dir
        self._device = next(state.model.parameters()).device
        attempt = int(os.environ.get("TRAINWORKS_ATTEMPT", "1"))
        ones = dict.fromkeys(("dp_shard", "cp", "tp", "pp", "ep", "micro_batch", "grad_accum_steps"), 1)
        layout = ResolvedLayout.model_validate({"dp_replicate": dist.get_world_size()} | ones)
        template = CheckpointOrigin(attempt=attempt, layout=layout, data_fingerprint="of the loop")
        self._checkpointer = Checkpointer(run_dir, checkpoint_group(), keep=self.keep, template=template)
        tokens = int(os.environ.get(TOKENS_PER_STEP, self.samples_per_step))
        self._telemetry = Telemetry(run_dir, attempt=attempt, tokens_per_step=tokens, num_stages=1, device=self._device)
        self._timeline = Timeline(self._device)
        self._logged: dict[str, Tensor | float] = {}
        self._stop = StopRequest(run_dir, watch_file=dist.get_rank() == 0)
        signal.signal(signal.SIGTERM, self._stop.note_signal)
        self.steps_done = self._resume()
        """Steps of the whole run so far."""
        if dist.get_rank() == 0:
            run_dir.note(MetricsSourceEvent(kind="metrics_source", source="session"))
            run_dir.note(
                AttemptEvent(
                    kind="attempt", attempt=attempt, world_size=dist.get_world_size(), resumed_from_step=self.steps_done
                )
            )

    @property
    def is_finished(self) -> bool:
        """True if all steps are done; False after a stop."""
        return self.steps_done >= self.num_steps

    def log(self, *, loss: Tensor | float, grad_norm: Tensor | float = 0.0, lr: float = 0.0) -> None:
        """Figures of the current step, of this rank; they are averaged over the ranks. Nothing waits for the device."""
        self._logged = {"loss": loss, "grad_norm": grad_norm, "lr": lr}

    def __iter__(self) -> Iterator[int]:
        """Numbers of the steps, from 1. Ends early, after a checkpoint, if the run is stopped.

        Raises:
            UsageError: a step logged no loss.
            TrainworksError: a checkpoint could not be written.
        """
        self._telemetry.begin()
        saved = step = self.steps_done
        stop = False
        while step < self.num_steps and not stop:
            step += 1
            marks = StepMarks(self._timeline.mark())
            marks.data = marks.begin
            yield step
            marks.gradients = marks.optimizer = self._timeline.mark()
            self.steps_done = step
            if step % self.checkpoint_every == 0:
                self._save(step)
                saved = step
            marks.end = self._timeline.mark()
            self._note(step, marks)
            if step % self.log_every == 0 or step in (saved, self.num_steps):
                stop = self._flush().stop
        if saved < step:
            self._save(step)
            self._checkpointer.allow_completion()
        self._checkpointer.wait()
        self._raise_failure()
        if not self.is_finished and dist.get_rank() == 0:
            self.run_dir.note(StoppedEvent(kind="stopped", step=step))
        # A thread of the checkpoints' group that still releases the tensors of the last collective while Python ends
        # would abort the process.
        dist.destroy_process_group(self._checkpointer.group)
        del self._checkpointer  # the last reference to the group: its end joins the threads

    def _note(self, step: int, marks: StepMarks) -> None:
        if not self._logged:
            raise UsageError(f"step {step} logged no loss", hint="call `training.log(loss=loss)` in every step")
        loss, norm = (
            torch.as_tensor(self._logged[name], dtype=torch.float32, device=self._device).detach().reshape(())
            for name in ("loss", "grad_norm")
        )
        lr, self._logged = float(self._logged["lr"]), {}
        self._telemetry.add(step, loss, norm, torch.zeros_like(loss), lr, marks)

    def _flush(self) -> Agreement:
        try:
            agreed = self._telemetry.flush(Agreement(bool(self._stop), False, self._checkpointer.failure is not None))
        finally:
            self._checkpointer.allow_completion()
        if agreed.failed:
            self._checkpointer.wait()
            self._raise_failure()
        return agreed

    def _raise_failure(self) -> None:
        if self._checkpointer.failure is not None:
            raise self._checkpointer.failure

    def _save(self, step: int) -> None:
        self._checkpointer.save(step, [self.state.model], self.state, samples_consumed=step)
        self._checkpointer.await_copy()  # a user's loop may change its weights at any time

    def _resume(self) -> int:
        manifest = self._checkpointer.load_newest([self.state.model], self.state)
        if manifest is None:
            return 0
        if manifest.layout.world_size != dist.get_world_size():
            seed_step(torch.initial_seed(), step=manifest.step, rank=dist.get_rank())
        return manifest.step
