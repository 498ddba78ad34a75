"""Values of a checkpoint that are not tensors: saved only if they can be loaded without running code."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import ReadItem, WriteItem, WriteItemType
from torch.serialization import safe_globals

from trainworks.errors import UsageError
from trainworks.worker.checkpoint.metadata import UnreadableCheckpointError

_NUMPY: list[Any] = [
    np.ndarray,
    np.dtype,
    np.empty(0).__reduce__()[0],
    np.float64(0).__reduce__()[0],
    *{type(np.dtype(kind)) for kind in "?bBhHiIlLqQefd"},
]
"""Arrays and numbers of numpy, such as the state of its generators."""


class SavePlannerOfValues(DefaultSavePlanner):
    """Refuses, at the save, what `LoadPlannerOfValues` would refuse at the load."""

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002 as torch names it
        """The bytes of a value; tensors as they are."""
        written = super().transform_object(write_item, object)
        if write_item.type == WriteItemType.BYTE_IO:
            try:
                _load(io.BytesIO(written.getbuffer()))
            except pickle.UnpicklingError:
                raise UsageError(
                    f"cannot save `{write_item.index.fqn}`, a {type(object).__qualname__}: loading it could run code",
                    hint="keep tensors, numbers, text, and lists and dicts of them in `state_dict`",
                ) from None
        return written


class LoadPlannerOfValues(DefaultLoadPlanner):
    """Loads values with torch's unpickler for tensors and plain values."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put a value into the state."""
        name = read_item.dest_index.fqn
        try:
            loaded = _load(value)
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise UnreadableCheckpointError(f"`{name}` is not a plain value: {str(error).splitlines()[0]}") from None
        set_element(self.original_state_dict, self.mappings[name], loaded)


def _load(content: io.BytesIO) -> Any:
    with safe_globals(_NUMPY):
        return torch.load(content, map_location="cpu", weights_only=True)
