"""Batches for one rank, read ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainworks.worker.data.order import Indices, Order
from trainworks.worker.mesh import Mesh

_BLOCK_BYTES = 4 << 20
_MAX_BLOCK_STEPS = 64


class Staging:
    """Host memory for batches on their way to a device.

    An accelerator copies from page-locked memory by itself, while the host continues; any other memory makes the host
    wait. torch's allocator takes such memory back once the copies from it have ended, so a batch may be dropped as soon
    as its copy has been issued.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.is_pinned = device.type == "cuda"

    def begin_thread(self) -> None:
        """Work with this device in the calling thread: each thread starts with the first device of the machine."""
        if self.is_pinned:
            torch.cuda.set_device(self._device)

    def place(self, tensor: Tensor) -> Tensor:
        """The tensor, copied to page-locked memory where the device needs it."""
        return tensor.pin_memory() if self.is_pinned else tensor


def move_to_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The batch on the device that computes with it. From page-locked memory (`Staging`) the copy is asynchronous."""
    return {name: values.to(device, non_blocking=True) for name, values in batch.items()}


class Dataset(Protocol):
    """Items by number, and their order: the interface that the reader needs.

    Your own dataset needs these five members, and no code for ranks, steps or resuming.
    """

    fingerprint: str
    """The same fingerprint is the same data: a run does not resume on another."""
    sample_bytes: int
    """Bytes of one gathered item, which set how far the reader reads ahead."""

    def __len__(self) -> int: ...

    def order(self, seed: int | Sequence[int]) -> Order:
        """Order of the items by sample number; several numbers together form one seed."""

    def gather(self, indices: Indices, samples: Indices) -> Mapping[str, NDArray[Any]]:
        """Arrays by name, each [n, ...], of the items `indices` [n].

        `samples` are their numbers g in the run, which augmentation and masking are keyed by, so that they too do not
        depend on the ranks and differ from epoch to epoch.
        """


class TokenView:
    """Rows of tokens in another form: as many, in the same order, and of the same data.

    A gathered row has `arrays` arrays of about its size.
    """

    def __init__(self, tokens: Dataset, *, arrays: int) -> None:
        self._tokens = tokens
        self.fingerprint = tokens.fingerprint
        self.sample_bytes = arrays * tokens.sample_bytes

    def __len__(self) -> int:
        return len(self._tokens)

    def order(self, seed: int | Sequence[int]) -> Order:
        """Order of the rows."""
        return self._tokens.order(seed)


class BatchReader:
    """This rank's micro-batches, step after step, read ahead by one thread.

    An optimizer step has `global_batch` samples over all ranks, and a forward of one rank `micro_batch`; micro_batch *
    dp divides global_batch. `first_step` counts the optimizer steps already done, and nothing is read from `last_step`
    on. Batches are in plain memory without `staging`.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        seed: int,
        global_batch: int,
        micro_batch: int,
        dp_rank: int,
        dp: int,
        first_step: int,
        last_step: int,
        staging: Staging | None = None,
    ) -> None:
        self._dataset = dataset
        self._order = dataset.order(seed)
        self._global_batch = global_batch
        self._accum = global_batch // (micro_batch * dp)
        self._micro_batch = micro_batch
        self._columns = np.arange(global_batch).reshape(self._accum, dp, micro_batch)[:, dp_rank].reshape(-1)
        self._last_step = last_step
        step_bytes = len(self._columns) * dataset.sample_bytes
        self._block_steps = int(np.clip(_BLOCK_BYTES // step_bytes, 1, _MAX_BLOCK_STEPS))
        self._staging = staging or Staging(torch.device("cpu"))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="batch-reader", initializer=self._staging.begin_thread)
        self._steps: Iterator[dict[str, Tensor]] = iter(())
        self._next_block = self._submit(first_step)

    @classmethod
    def of_rank(
        cls,
        dataset: Dataset,
        mesh: Mesh,
        device: torch.device,
        *,
        seed: int,
        global_batch: int,
        first_step: int = 0,
        last_step: int,
    ) -> BatchReader:
        """The reader of a rank of the mesh, for its device."""
        return cls(
            dataset,
            seed=seed,
            global_batch=global_batch,
            micro_batch=mesh.layout.micro_batch,
            dp_rank=mesh.dp_rank,
            dp=mesh.layout.dp,
            first_step=first_step,
            last_step=last_step,
            staging=Staging(device),
        )

    def next_batch(self) -> dict[str, Tensor]:
        """Arrays of the next optimizer step by name, each [accumulation, micro_batch, ...]; waits only if reading is
        behind.
        """
        for batch in self._steps:
            return batch
        blocks, first, last = self._next_block.result()
        self._next_block = self._submit(last)
        self._steps = ({name: block[step] for name, block in blocks.items()} for step in range(last - first))
        return next(self._steps)

    def samples(self, step: int) -> Indices:
        """Numbers g of this rank's samples of a step [accumulation, micro_batch]."""
        return self._samples(step, step + 1).reshape(self._accum, self._micro_batch)

    def close(self) -> None:
        """End the reading thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, step: int) -> Future[tuple[dict[str, Tensor], int, int]]:
        return self._pool.submit(self._read, step, min(step + self._block_steps, self._last_step))

    def _read(self, first: int, last: int) -> tuple[dict[str, Tensor], int, int]:
        """Arrays by name [steps, accumulation, micro_batch, ...] of steps `first` ... `last` - 1, with both numbers."""
        samples = self._samples(first, last)
        arrays = self._dataset.gather(self._order(samples), samples)
        shape: Sequence[int] = (last - first, self._accum, self._micro_batch)
        tensors = {name: self._staging.place(torch.from_numpy(array)) for name, array in arrays.items()}
        return {name: tensor.view(*shape, *tensor.shape[1:]) for name, tensor in tensors.items()}, first, last

    def _samples(self, first: int, last: int) -> Indices:
        return (np.arange(first, last)[:, None] * self._global_batch + self._columns).reshape(-1)
