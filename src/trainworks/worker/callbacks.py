"""Classes and metrics of the user's own that are called during training, on every rank."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainworks.config.data import is_set_name
from trainworks.errors import UsageError, suggest
from trainworks.record.metrics import EvaluationResult
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.tasks.user_module import blamed, import_user_module, place_of, search_first

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
        self._loaded: Mapping[int, Any] = {}
        self.wishes: Wishes = set()

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def take_seconds(self) -> list[float]:
        """Time of each class's methods since the last call, on the host."""
        seconds, self._seconds = self._seconds, [0.0] * len(self._callbacks)
        return seconds

    def state_dict(self) -> dict[str, Any]:
        """What was asked for since the ranks have last agreed, and by place the states of the objects that have one."""
        places = enumerate(self._callbacks)
        states = {place: each.state_dict() for place, each in places if hasattr(each, "state_dict")}
        return {"wishes": sorted(self.wishes), "states": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave; the objects get theirs from `restore`."""
        self.wishes, self._loaded = set(state["wishes"]), state["states"]

    def restore(self) -> None:
        """Give the objects the states that were loaded; an exception of one is not that of the checkpoint."""
        loaded, self._loaded = self._loaded, {}
        for place, each in enumerate(self._callbacks):
            if place in loaded and hasattr(each, "load_state_dict"):
                each.load_state_dict(loaded[place])

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
        UsageError: a module or class does not exist, its code fails, it has no method of a callback, an unknown one, or
            one half of `state_dict` and `load_state_dict`.
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
    halves = [name for name in ("state_dict", "load_state_dict") if not hasattr(found, name)]
    if len(halves) == 1:
        raise UsageError(f"`{class_name}` has a state and no `{halves[0]}`", place=place, hint=f"write `{halves[0]}`")
    return found()


_TAKEN = ("loss", "accuracy", "perplexity", "samples")
"""Names that evaluation has for itself."""


@dataclass(frozen=True, slots=True)
class EvaluatedBatch:
    """What a function sees of one micro-batch: its samples b, without those that fill up a last batch."""

    labels: Tensor
    """Tokens [b, T] or classes [b]; -100 where nothing is to be predicted. A rank of `cp` has its own positions."""
    predictions: Tensor
    """The likeliest token or class for each label."""
    log_probabilities: Tensor
    """Natural logarithm of the probability of each label, in fp32; 0 where it is -100."""
    logits: Tensor | None
    """[b, ..., V] in fp32; None of a causal-lm, whose logits never exist together."""


class OwnMetrics:
    """Calls the functions for each micro-batch, and adds up what they return.

    A function returns numbers by name, each a mean over the items that the loss is a mean over, or a pair of a
    numerator and a denominator. With numerators a_i and denominators b_i of all micro-batches i of all ranks:

        metric = sum_i a_i / sum_i b_i

    where a number x_i of a micro-batch with n_i items counts as the pair (n_i x_i, n_i). A micro-batch without items is
    left out.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]], parts: Sequence[nn.Module]) -> None:
        self._functions = functions
        last: list[Any] = [part.output if isinstance(part, Decoder) else part for part in parts]
        self._watched = [module for module in last if module is not None]  # an earlier pipeline stage has no output
        self._sums: dict[str, Tensor] = {}
        self._labels: Sequence[Tensor] = ()
        self._real: Sequence[Tensor] = ()
        self._items: Sequence[Tensor] = ()
        self._seen = 0
        self._error: UsageError | None = None

    @contextmanager
    def watching(self, labels: Tensor, real: Tensor, items: Tensor) -> Iterator[None]:
        """Call the functions for the micro-batches that the model evaluates meanwhile, in this order.

        Args:
            labels: [accumulation, micro_batch, ...].
            real: True for samples that count [accumulation, micro_batch].
            items: of each micro-batch [accumulation].

        Raises:
            UsageError: a function fails or returns something else; with its file and line.
        """
        self._labels, self._real, self._items, self._seen = tuple(labels), tuple(real), tuple(items), 0
        for module in self._watched:
            module.watch = self._see
        try:
            yield
        finally:
            for module in self._watched:
                module.watch = None
        if self._error is not None:  # raised here: a pipeline would wrap it
            raise self._error

    def take(self) -> dict[str, float]:
        """The metrics since the last call, by name; all ranks call it together and get the same."""
        mine = {name: sums.tolist() for name, sums in self._sums.items()}
        self._sums = {}
        of_ranks: list[dict[str, list[float]]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(of_ranks, mine)
        total: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for of_rank in of_ranks:
            for name, (above, below) in of_rank.items():
                total[name][0] += above
                total[name][1] += below
        return {name: above / below if below else float("nan") for name, (above, below) in sorted(total.items())}

    def _see(self, *seen: Any) -> None:
        """The next micro-batch: of a module itself and its batch, else what it predicts."""
        place, self._seen = self._seen, self._seen + 1
        items = self._items[place]
        if self._error is not None or not items:
            return
        if not isinstance(seen[0], nn.Module):
            seen = (self._batch(self._labels[place], self._real[place], *seen),)
        found: dict[str, Tensor] = {}
        for name, function in self._functions.items():
            try:
                returned = function(*seen)
            except Exception as error:  # the user's code
                self._error = blamed(error, place_of(function))
                return
            for key, pair in _pairs(returned, items):
                if pair is None or key in found:
                    self._error = _refusal(name, function, key)
                    return
                found[key] = pair
        for key, pair in found.items():
            self._sums[key] = self._sums[key] + pair if key in self._sums else pair

    def _batch(self, labels: Tensor, real: Tensor, predictions: Tensor, log_p: Tensor, logits: Any) -> EvaluatedBatch:
        return EvaluatedBatch(
            labels=labels[real],
            predictions=predictions.view(labels.shape)[real],
            log_probabilities=log_p.view(labels.shape)[real],
            logits=None if logits is None else logits.view(*labels.shape, -1)[real],
        )


def _pairs(returned: Any, items: Tensor) -> Iterator[tuple[Any, Tensor | None]]:
    """Names with numerator and denominator, fp64 [2]; None in place of what is neither a number nor a pair."""
    for name, value in returned.items() if isinstance(returned, Mapping) else [(None, None)]:
        pair = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
        numbers = [
            torch.as_tensor(each, dtype=torch.float64, device=items.device).detach().view(())
            for each in pair
            if isinstance(each, int | float) or (isinstance(each, Tensor) and each.numel() == 1)
        ]
        if not is_set_name(name) or name in _TAKEN or len(numbers) != 2 - (pair[1] is None):
            yield name, None
        else:
            yield name, torch.stack(numbers if len(numbers) == 2 else [numbers[0] * items, items.double()])


def _refusal(name: str, function: Callable[..., Any], key: object) -> UsageError:
    what = "something else than numbers by name" if key is None else f"no usable number for `{str(key)[:100]}`"
    return UsageError(
        f"`{name}` returned {what}",
        place=place_of(function),
        hint="return a dictionary of numbers, or of (numerator, denominator), by names that no other metric has",
    )


def load_metrics(names: Sequence[str], folder: Path) -> dict[str, Callable[..., Any]]:
    """The functions that are named as `package.module:function`, in this order.

    Raises:
        UsageError: a module or function does not exist, or the code of a module fails.
    """
    functions = {}
    search_first(folder if names else None)
    for name in names:
        module_name, _, function_name = name.partition(":")
        module = import_user_module(module_name)
        found = getattr(module, function_name, None)
        if not callable(found) or isinstance(found, type):
            known = [key for key, value in vars(module).items() if callable(value) and not isinstance(value, type)]
            raise UsageError(
                f"`{module_name}` has no function `{function_name}`",
                place=f"{module.__file__}:1",
                hint=suggest(function_name, known),
            )
        functions[name] = found
    return functions
