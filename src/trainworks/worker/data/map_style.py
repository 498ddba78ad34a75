"""Any dataset with `__len__` and `__getitem__`, read as the reader reads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate

from trainworks.errors import UsageError
from trainworks.worker.data.order import FullShuffle, Indices, Order

_PROBES = 16
"""Items sampled for a fingerprint."""


class MapStyleDataset:
    """Items of a map-style dataset as arrays by name.

    An item is a tensor, a tuple or a dictionary of them; arrays and numbers count as tensors. A dataset with
    `gather(indices, samples)` gives arrays of many items at once; `samples` are their numbers in the run, which
    should key random draws. One with `fingerprint` identifies itself.

    Raises:
        UsageError: it has no length, no items, or items that are nothing of the kind.
    """

    def __init__(self, dataset: Any, place: str) -> None:
        self._dataset = dataset
        self._gathers = hasattr(dataset, "gather") and not isinstance(dataset, torch.Tensor)  # whose gather is another
        self._place = place
        self._names: tuple[str, ...] = ()
        self._kind: type = dict
        try:
            self._len = len(dataset)
        except TypeError:
            raise self._refusal("has no length: give it `__len__` and `__getitem__`") from None
        if self._len == 0:
            raise self._refusal("is empty")
        first = self.gather(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
        self.sample_bytes = max(1, sum(array.nbytes for array in first.values()))
        self.fingerprint = str(getattr(dataset, "fingerprint", None) or self._probed())

    def __len__(self) -> int:
        return self._len

    def order(self, seed: int | Sequence[int]) -> Order:
        """The dataset's own, else every epoch a shuffle of all items."""
        if hasattr(self._dataset, "order"):
            order: Order = self._dataset.order(seed)
            return order
        return FullShuffle(len(self), seed)

    def gather(self, indices: Indices, samples: Indices) -> dict[str, NDArray[Any]]:
        """Arrays by name, or by place in the tuple."""
        if self._gathers:
            named: Mapping[str, Any] = self._dataset.gather(indices, samples)
            return {name: np.ascontiguousarray(array) for name, array in named.items()}
        batch = default_collate([self._dataset[int(index)] for index in indices])
        return {name: tensor.contiguous().numpy() for name, tensor in self._by_name(batch).items()}

    def as_item(self, batch: Mapping[str, Any]) -> Any:
        """Input of the model, reassembled: a tensor, a tuple or a dictionary."""
        if self._kind is dict:
            return dict(batch)
        values = tuple(batch[name] for name in self._names)
        return values if self._kind is tuple else values[0]

    def _by_name(self, batch: Any) -> dict[str, torch.Tensor]:
        self._kind = next((kind for kind in (dict, tuple) if isinstance(batch, kind)), torch.Tensor)
        if isinstance(batch, list):  # what default_collate makes of tuples
            self._kind = tuple
        values = batch if isinstance(batch, dict) else {str(place): value for place, value in enumerate(_listed(batch))}
        self._names = tuple(values)
        for name, value in values.items():
            if not isinstance(value, torch.Tensor):
                raise self._refusal(f"gives {type(value).__name__} in `{name}`; an item holds tensors, arrays, numbers")
        return values

    def _probed(self) -> str:
        """Fingerprint of the length and some items, the same on all ranks."""
        digest = hashlib.sha256(str(self._len).encode())
        indices = np.unique(np.linspace(0, self._len - 1, _PROBES).astype(np.int64))
        for array in self.gather(indices, indices).values():
            digest.update(array.tobytes())
        return digest.hexdigest()

    def _refusal(self, problem: str) -> UsageError:
        return UsageError(f"the dataset {problem}", place=self._place)


def _listed(batch: Any) -> list[Any]:
    return list(batch) if isinstance(batch, list | tuple) else [batch]
