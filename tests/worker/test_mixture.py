"""Mixing sources by weight: laws of which source the g-th sample comes from, and which of its samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lanes import examples
from trainworks.worker.data.card import DatasetCard, Shard
from trainworks.worker.data.opening import Dealer, MixedDataset, MixedOrder
from trainworks.worker.data.order import FullShuffle
from trainworks.worker.data.reader import BatchReader
from trainworks.worker.data.tokens import TokenDataset

WEIGHTS = st.lists(st.floats(0.1, 100), min_size=1, max_size=6)
SEEDS = st.integers(0, 2**63 - 1)


@settings(max_examples=examples(25))
@given(weights=WEIGHTS, seed=SEEDS, blocks=st.integers(1, 3))
def test_every_source_gets_its_share_to_less_than_one_sample(weights, seed, blocks):
    deal = Dealer(weights, seed)
    n = deal.block * blocks
    sources, _ = deal(np.arange(n))
    shares = n * np.array(weights) / sum(weights)
    assert (abs(np.bincount(sources, minlength=len(weights)) - shares) < 1 + 1e-6).all()


@settings(max_examples=examples(25))
@given(weights=WEIGHTS, seed=SEEDS)
def test_each_source_is_taken_in_its_own_order_without_gaps(weights, seed):
    deal = Dealer(weights, seed)
    sources, numbers = deal(np.arange(deal.block + 1000))
    for source in range(len(weights)):
        taken = numbers[sources == source]
        assert (taken == np.arange(len(taken))).all()


@settings(max_examples=examples(25))
@given(weights=WEIGHTS, seed=SEEDS, data=st.data())
def test_one_sample_is_dealt_as_in_the_whole_sequence(weights, seed, data):
    deal = Dealer(weights, seed)
    g = data.draw(st.integers(0, 2 * deal.block - 1))
    whole = [array[g] for array in deal(np.arange(2 * deal.block))]
    assert [array[0] for array in Dealer(weights, seed)(np.array([g]))] == whole


@settings(max_examples=examples(20))
@given(sizes=st.lists(st.integers(50, 300), min_size=1, max_size=4), seed=SEEDS, data=st.data())
def test_nothing_repeats_within_an_epoch_of_its_source(sizes, seed, data):
    weights = data.draw(st.lists(st.floats(0.1, 10), min_size=len(sizes), max_size=len(sizes)))
    order = MixedOrder([FullShuffle(size, (seed, n)) for n, size in enumerate(sizes)], sizes, Dealer(weights, seed))
    items = order(np.arange(5000))
    firsts = np.cumsum([0, *sizes])
    for first, size in zip(firsts, sizes, strict=False):
        of_source = items[(items >= first) & (items < first + size)] - first
        for epoch in range(len(of_source) // size):
            assert sorted(of_source[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_by_size_one_epoch_takes_everything_once():
    sizes = [4096, 8192]
    order = MixedOrder([FullShuffle(size, n) for n, size in enumerate(sizes)], sizes, Dealer(sizes, 1))
    assert sorted(order(np.arange(12288))) == list(range(12288))


def test_a_weight_of_a_hundred_thousandth_is_still_met():
    sources, _ = Dealer([1e-5, 1], 1)(np.arange(2_000_000))
    assert 18 <= (sources == 0).sum() <= 22


def test_seeds_deal_in_other_orders():
    dealt = {tuple(Dealer([1, 1], seed)(np.arange(64))[0]) for seed in range(8)}
    assert len(dealt) == 8


@pytest.fixture
def mixed(tmp_path):
    """Two datasets; the tokens of the second begin at 1000."""
    parts = []
    for number, size in enumerate((41, 201)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (np.arange(size) + 1000 * number).astype("<u2").tofile(folder / "a.bin")
        shards = {"a.bin": Shard(items=size, num_bytes=2 * size, sha256="")}
        parts.append(TokenDataset(folder, DatasetCard(source="", fingerprint=str(number), shards=shards), 4))
    return MixedDataset(parts, [3, 1])


def first_tokens(dataset, *, dp, micro_batch):
    readers = [
        BatchReader(
            dataset,
            seed=5,
            global_batch=8,
            micro_batch=micro_batch,
            dp_rank=rank,
            dp=dp,
            first_step=0,
            last_step=30,
        )
        for rank in range(dp)
    ]
    return [
        sorted(t for reader in readers for t in reader.next_batch()["tokens"][..., 0].flatten().tolist())
        for _ in range(30)
    ]


@pytest.mark.parametrize(("dp", "micro_batch"), [(1, 2), (2, 4), (4, 1), (8, 1)])
def test_the_mixed_sequence_does_not_depend_on_the_ranks(mixed, dp, micro_batch):
    assert first_tokens(mixed, dp=dp, micro_batch=micro_batch) == first_tokens(mixed, dp=1, micro_batch=8)


def test_a_mixture_gathers_rows_in_the_order_asked_for(mixed):
    tokens = mixed.gather(np.array([12, 0, 11, 9]), np.arange(4))["tokens"]
    assert tokens[:, 0].tolist() == [1008, 0, 1004, 36]
