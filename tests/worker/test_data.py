"""Which sequence comes when: a pure function of the seed and the step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainworks.worker.data import BatchReader, TokenDataset, permute
from trainworks.worker.prepare import DatasetCard

LENGTH = 4
SHARDS = {"a.bin": 41, "b.bin": 3, "c.bin": 22}


@pytest.fixture
def dataset(tmp_path):
    """Sequences whose first token names them: 10 of shard a, none of b, 5 of c."""
    for number, (name, size) in enumerate(SHARDS.items()):
        (np.arange(size) + 100 * number).astype("<u2").tofile(tmp_path / name)
    card = DatasetCard(source="test", vocabulary=500, dtype="<u2", shards=SHARDS, num_bytes_of_text=0, fingerprint="f")
    return TokenDataset(tmp_path, card, LENGTH)


def global_batches(dataset, steps, *, dp=1, micro_batch=1, first=0, global_batch=8):
    """First tokens of every step, over all ranks."""
    taken = {step: [] for step in range(first, steps)}
    for rank in range(dp):
        reader = BatchReader(
            dataset,
            seed=3,
            global_batch=global_batch,
            micro_batch=micro_batch,
            dp_rank=rank,
            dp=dp,
            first_step=first,
            last_step=steps,
        )
        for step in taken:
            taken[step] += reader.next_step()[..., 0].flatten().tolist()
        reader.close()
    return [sorted(tokens) for tokens in taken.values()]


@given(num_items=st.integers(1, 3000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 1000))
def test_an_epoch_is_a_permutation(num_items, seed, epoch):
    order = permute(np.arange(num_items), num_items=num_items, seed=seed, epoch=epoch)
    assert (np.sort(order) == np.arange(num_items)).all()


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [tuple(permute(np.arange(50), num_items=50, seed=s, epoch=e)) for s in range(4) for e in range(4)]
    assert len(set(orders)) == 16


def test_neighbours_do_not_stay_together():
    order = permute(np.arange(10_000), num_items=10_000, seed=1, epoch=0)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05


def test_a_sequence_never_crosses_two_shards(dataset):
    assert len(dataset) == 15
    first = dataset.gather(np.arange(15))
    assert (np.diff(first, axis=1) == 1).all()


def test_an_epoch_takes_every_sequence_once(dataset):
    taken = global_batches(dataset, 15, global_batch=1)
    assert sorted(token for batch in taken for token in batch) == sorted(dataset.gather(np.arange(15))[:, 0])


@pytest.mark.parametrize(("dp", "micro_batch"), [(1, 8), (2, 1), (2, 4), (4, 2), (8, 1)])
def test_the_global_batches_do_not_depend_on_the_ranks(dataset, dp, micro_batch):
    assert global_batches(dataset, 9, dp=dp, micro_batch=micro_batch) == global_batches(dataset, 9)


@pytest.mark.parametrize("first", [1, 4, 8])
def test_reading_from_a_step_repeats_and_skips_nothing(dataset, first):
    assert global_batches(dataset, 9, dp=2, first=first) == global_batches(dataset, 9)[first:]


def test_a_batch_has_one_token_more_than_the_sequence(dataset):
    reader = BatchReader(dataset, seed=0, global_batch=8, micro_batch=2, dp_rank=0, dp=2, first_step=0, last_step=1)
    batch = reader.next_step()
    assert (batch.shape, batch.dtype) == ((2, 2, LENGTH + 1), torch.int64)
