"""Token batches as a pure function of (seed, step): nothing to lose, nothing to restore.

Sequence g of the run (g = 0, 1, 2 ...) belongs to epoch e = g // N at position p = g mod N, N sequences being one
pass over the data. Within an epoch the order is a keyed permutation P(seed, e): p -> index, computed where it is
needed and never stored. Optimizer step s takes g = s * global_batch ... (s + 1) * global_batch - 1, whatever the
number of ranks, so a run that is resumed mid-epoch, with more or fewer ranks, repeats and skips nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from trainworks.worker.prepare import DatasetCard

__all__ = ["BatchReader", "TokenDataset", "permute"]

_ROUNDS = 4
_BLOCK_BYTES = 4 << 20
_MAX_BLOCK_STEPS = 64

Indices = NDArray[np.int64]


def permute(positions: Indices, *, num_items: int, seed: int, epoch: int) -> Indices:
    """A keyed permutation of 0 ... num_items - 1, evaluated at `positions` only.

    A balanced Feistel network over the smallest 4^k >= num_items, walked until it lands inside (Black and Rogaway,
    "Ciphers with Arbitrary Finite Domains", 2002). Every (seed, epoch) gives another order.

    Args:
        positions: any shape, each in 0 ... num_items - 1.
        num_items: N >= 1.
        seed: of the run.
        epoch: which pass over the data.
    """
    half_bits = max(1, (max(num_items - 1, 1).bit_length() + 1) // 2)
    keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64).astype(np.uint64)
    walked = _feistel(positions.astype(np.uint64), half_bits, keys)
    while (outside := walked >= num_items).any():
        walked[outside] = _feistel(walked[outside], half_bits, keys)
    return walked.astype(np.int64)


def _feistel(values: NDArray[np.uint64], half_bits: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64: every output bit depends on every input bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class TokenDataset:
    """Memory-mapped shards, cut into sequences of T + 1 tokens that share their border token with the next."""

    def __init__(self, folder: Path, card: DatasetCard, sequence_length: int) -> None:
        self.sequence_length = sequence_length
        self.fingerprint = card.fingerprint
        self._shards = [np.memmap(folder / name, dtype=card.dtype, mode="r") for name in card.shards]
        per_shard = [max(0, (len(shard) - 1) // sequence_length) for shard in self._shards]
        self._first_of_shard = np.cumsum([0, *per_shard])
        self._window = np.arange(sequence_length + 1)

    def __len__(self) -> int:
        return int(self._first_of_shard[-1])

    def gather(self, indices: Indices) -> NDArray[np.int64]:
        """Tokens [n, T + 1] of the sequences `indices` [n]."""
        tokens = np.empty((len(indices), self.sequence_length + 1), dtype=np.int64)
        shard_of = np.searchsorted(self._first_of_shard, indices, side="right") - 1
        for number in np.unique(shard_of):
            rows = shard_of == number
            starts = (indices[rows] - self._first_of_shard[number]) * self.sequence_length
            tokens[rows] = self._shards[number][starts[:, None] + self._window]
        return tokens


class BatchReader:
    """This rank's micro-batches, step after step, read ahead by one thread.

    Args:
        dataset: the tokens.
        seed: of the run.
        global_batch: sequences per optimizer step over all ranks.
        micro_batch: sequences per forward of one rank.
        dp_rank: which data-parallel rank this is.
        dp: data-parallel ranks; micro_batch * dp divides global_batch.
        first_step: optimizer steps already done.
        last_step: nothing is read from this step on.
    """

    def __init__(
        self,
        dataset: TokenDataset,
        *,
        seed: int,
        global_batch: int,
        micro_batch: int,
        dp_rank: int,
        dp: int,
        first_step: int,
        last_step: int,
    ) -> None:
        self._dataset = dataset
        self._seed = seed
        self._global_batch = global_batch
        self._accum = global_batch // (micro_batch * dp)
        self._micro_batch = micro_batch
        columns = np.arange(global_batch).reshape(self._accum, dp, micro_batch)
        self._columns = columns[:, dp_rank].reshape(-1)
        self._last_step = last_step
        step_bytes = len(self._columns) * (dataset.sequence_length + 1) * 8
        self._block_steps = int(np.clip(_BLOCK_BYTES // step_bytes, 1, _MAX_BLOCK_STEPS))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="batch-reader")
        self._steps: Iterator[torch.Tensor] = iter(())
        self._next_block = self._submit(first_step)

    def next_step(self) -> torch.Tensor:
        """Tokens [accumulation, micro_batch, T + 1] of the next optimizer step; waits only if reading is behind."""
        for tokens in self._steps:
            return tokens
        block, following = self._next_block.result()
        self._next_block = self._submit(following)
        self._steps = iter(block)
        return next(self._steps)

    def close(self) -> None:
        """End the reading thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, step: int) -> Future[tuple[torch.Tensor, int]]:
        return self._pool.submit(self._read, step, min(step + self._block_steps, self._last_step))

    def _read(self, first: int, last: int) -> tuple[torch.Tensor, int]:
        """Tokens [steps, accumulation, micro_batch, T + 1] of steps `first` ... `last` - 1, and `last`."""
        steps = np.arange(first, last)
        tokens = self._dataset.gather(self._indices(steps))
        shape = (len(steps), self._accum, self._micro_batch, tokens.shape[-1])
        return torch.from_numpy(tokens).view(shape), last

    def _indices(self, steps: Indices) -> Indices:
        sequences = (steps[:, None] * self._global_batch + self._columns).reshape(-1)
        epochs, positions = np.divmod(sequences, len(self._dataset))
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            indices[chosen] = permute(
                positions[chosen], num_items=len(self._dataset), seed=self._seed, epoch=int(epoch)
            )
        return indices
