"""Metrics of the user's own on held-out data: functions that see what the model predicts, on every rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainworks.config.data import is_set_name
from trainworks.errors import UsageError, suggest
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.tasks.user_module import blamed, import_user_module, place_of, search_first

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
        self._watched = [each for each in (_last_module(part) for part in parts) if each is not None]
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


def _last_module(part: nn.Module) -> Any:
    """The module of a part that computes the loss; None of an earlier pipeline stage."""
    return part.output if isinstance(part, Decoder) else part


def _pairs(returned: Any, items: Tensor) -> Iterator[tuple[Any, Tensor | None]]:
    """Names with numerator and denominator, fp64 [2]; None in place of what is neither a number nor a pair."""
    for name, value in returned.items() if isinstance(returned, Mapping) else [(None, None)]:
        pair = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
        numbers = [_number(each, items.device) for each in pair if each is not None]
        is_named = is_set_name(name) and name not in _TAKEN
        if not is_named or not numbers or any(each is None for each in numbers):
            yield name, None
        else:
            above, below = (numbers[0] * items, items.double()) if len(numbers) == 1 else numbers  # type: ignore[operator]
            yield name, torch.stack([above, below])  # type: ignore[list-item]


def _number(value: Any, device: torch.device) -> Tensor | None:
    if not isinstance(value, Tensor | int | float) or (isinstance(value, Tensor) and value.numel() != 1):
        return None
    return torch.as_tensor(value, dtype=torch.float64, device=device).detach().view(())


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
