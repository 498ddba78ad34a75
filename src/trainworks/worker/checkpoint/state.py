"""The state of a training run that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.staging import StagingOptions
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils._pytree import tree_map_only

from trainworks.worker.callbacks import Callbacks
from trainworks.worker.checkpoint.shards import packed, unpacked
from trainworks.worker.models.adapters import trained_state
from trainworks.worker.parallel.blocks import stored_weight


class HasState(Protocol):
    """State of a training run beside the model: the optimizer and what belongs to it."""

    def checkpoint_state(self) -> Mapping[str, object]:
        """State by name: `optimizer`, under parameter names common to all layouts, and further entries.

        `random` holds the state of each rank's generators, which other ranks do not load.
        """

    def fill_state(self) -> None:
        """Make the state that the first step would make, so that a checkpoint has something to be loaded into."""


@dataclass(frozen=True, slots=True)
class CallbackStates:
    """States of this rank's callbacks as one entry (`Stateful`); those of another rank can be loaded into them."""

    callbacks: Callbacks
    rank: int

    def state_dict(self) -> dict[str, object]:
        """The entry."""
        return {f"rank-{self.rank}": packed(self.callbacks.state_dict(), "the state of a callback")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the entry."""
        self.callbacks.load_state_dict(unpacked(state[f"rank-{self.rank}"]))


@dataclass(frozen=True, slots=True)
class StateWithCallbacks:
    """The state of a run whose callbacks keep theirs."""

    optimizer: HasState
    callbacks: Callbacks

    def checkpoint_state(self) -> Mapping[str, object]:
        """State of the optimizer, and of `callbacks`."""
        return {**self.optimizer.checkpoint_state(), "callbacks": CallbackStates(self.callbacks, dist.get_rank())}

    def fill_state(self) -> None:
        """Fill that of the optimizer."""
        self.optimizer.fill_state()


def loadable(state: dict[str, object], names: Iterable[str], *, same_ranks: bool) -> dict[str, object]:
    """What a checkpoint with entries of these names can fill; other ranks than those that wrote it take the callbacks'
    states of the first one, and no random numbers.
    """
    left_out = set() if same_ranks else {"random"}
    if not any(name.startswith("callbacks.") for name in names):  # of an earlier version, or of a run without any
        left_out.add("callbacks")
    kept = {key: value for key, value in state.items() if key not in left_out}
    if not same_ranks and isinstance(callbacks := kept.get("callbacks"), CallbackStates):
        kept["callbacks"] = replace(callbacks, rank=0)
    return kept


def whole_state(parts: Sequence[nn.Module], optimizer: HasState) -> dict[str, object]:
    """State to save or to load, under names and shapes of the whole model: each rank has its part, in any layout."""
    return {
        "model": {name: stored_weight(tensor) for part in parts for name, tensor in trained_state(part).items()},
        **optimizer.checkpoint_state(),
    }


def unchanging(state: Mapping[str, Any], parts: Sequence[nn.Module]) -> dict[str, object]:
    """The state with copies of what forward and backward change: buffers of the model, and the small rest."""
    parameters = {name for part in parts for name, _ in part.named_parameters()}
    model = {name: value if name in parameters else value.clone() for name, value in state["model"].items()}
    rest = {
        key: value.state_dict() if isinstance(value, Stateful) else value
        for key, value in state.items()
        if key != "model"
    }
    small = {key: tree_map_only(Tensor, Tensor.clone, value) for key, value in rest.items() if key != "optimizer"}
    return {"model": model, "optimizer": rest["optimizer"], **small}


def staging_options() -> StagingOptions:
    """Copies go to buffers that are kept for the next save, pinned where an accelerator copies by itself."""
    accelerator = torch.accelerator.is_available()
    return StagingOptions(accelerator, False, True, accelerator)
