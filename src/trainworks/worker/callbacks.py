"""Classes of the user's own that are called during training, on every rank."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from trainworks.errors import UsageError, suggest
from trainworks.record.metrics import EvaluationResult
from trainworks.worker.tasks.user_module import import_user_module, search_first

_HOOKS = ("on_step", "on_eval", "on_checkpoint", "on_end")


Wishes = set[Literal["stop", "save", "evaluate"]]
"""What the callbacks of a rank ask the loop for; the ranks agree on it with the metrics."""


@dataclass(frozen=True, slots=True)
class CallbackState:
    """What a callback sees: this rank's own state after a step. Its methods ask the loop of all ranks for something.

    One rank may ask alone: all ranks do what any of them asked for. They agree when they exchange metrics, every
    `log_every_steps` of the plan, and after an evaluation or a checkpoint.
    """

    step: int
    """Optimizer steps done."""
    num_steps: int
    """Steps of the whole run."""
    rank: int
    world_size: int
    loss: Tensor | None
    """Mean over this rank's micro-batches of the last step, on the device; 0 on pipeline ranks without the last stage,
    None before the first step of this attempt. Reading its value makes the host wait for an accelerator."""
    grad_norm: Tensor | None
    """Norm of all gradients of the last step before clipping, the same on every rank."""
    lr: float
    """Learning rate of the last step."""
    parts: Sequence[nn.Module]
    """The model, or this rank's pipeline stages; parameters may be sharded (`DTensor`)."""
    evaluates: bool = False
    """Whether the run has held-out data."""
    wishes: Wishes = field(default_factory=set, repr=False)

    def stop(self) -> None:
        """Ask for the end of the run: after a checkpoint of the step that the ranks agree on, the run has succeeded.

        A run that fails between the agreement and its end stops after the same step when it is restarted.
        """
        self.wishes.add("stop")

    def save(self) -> None:
        """Ask for a checkpoint on disk, after the next step that the ranks agree on."""
        self.wishes.add("save")

    def evaluate(self) -> None:
        """Ask for an evaluation on held-out data, after the next step that the ranks agree on.

        Raises:
            UsageError: the run has no `workload.eval`.
        """
        if not self.evaluates:
            raise UsageError("the run has no held-out data to evaluate on", hint="set `workload.eval`")
        self.wishes.add("evaluate")


class Callbacks:
    """Calls the methods that the user's classes have, in the order of the run file; exceptions end the rank."""

    def __init__(self, callbacks: Sequence[object] = ()) -> None:
        self._callbacks = callbacks
        self._seconds = [0.0] * len(callbacks)
        self.wishes: Wishes = set()

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def take_seconds(self) -> list[float]:
        """Time of each class's methods since the last call, on the host."""
        seconds, self._seconds = self._seconds, [0.0] * len(self._callbacks)
        return seconds

    def take_wishes(self) -> Wishes:
        """What was asked for since the last call."""
        wishes, self.wishes = self.wishes, set()
        return wishes

    def on_step(self, state: CallbackState) -> None:
        """After every optimizer step."""
        self._call("on_step", state)

    def on_eval(self, state: CallbackState, result: EvaluationResult) -> None:
        """After every evaluation; the result is the same on all ranks."""
        self._call("on_eval", state, dict(result))

    def on_checkpoint(self, state: CallbackState, folder: Path) -> None:
        """On rank 0, after a checkpoint on disk is complete."""
        self._call("on_checkpoint", state, folder)

    def on_end(self, state: CallbackState) -> None:
        """After the last step, an early stop or a requested stop, when the last checkpoint is complete."""
        self._call("on_end", state)

    def _call(self, hook: str, *arguments: Any) -> None:
        for place, callback in enumerate(self._callbacks):
            method = getattr(callback, hook, None)
            if method is not None:
                began = time.perf_counter()
                method(*arguments)
                self._seconds[place] += time.perf_counter() - began


def load_callbacks(names: Sequence[str], folder: Path) -> Callbacks:
    """Make one object, without arguments, of each class that is named as `package.module:Class`.

    The folder is searched for the modules before the installed packages.

    Raises:
        UsageError: a module or class does not exist, its code fails, or it has no method of a callback, or an unknown
            one.
    """
    search_first(folder if names else None)
    return Callbacks([_load(name) for name in names])


def _load(name: str) -> object:
    module_name, _, class_name = name.partition(":")
    module = import_user_module(module_name)
    found = getattr(module, class_name, None)
    place = f"{module.__file__}:1"
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise UsageError(f"`{module_name}` has no class `{class_name}`", place=place, hint=suggest(class_name, classes))
    hooks = [key for key in dir(found) if key.startswith("on_")]
    unknown = next((key for key in hooks if key not in _HOOKS), None)
    if unknown is not None or not hooks:
        what = f"`{class_name}` has no method of a callback" if unknown is None else f"no callback has a `{unknown}`"
        hint = suggest(unknown or "", _HOOKS, otherwise=f"there are {', '.join(_HOOKS)}")
        raise UsageError(what, place=place, hint=hint)
    return found()
