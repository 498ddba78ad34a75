"""Which sequence comes when: a pure function of the seed and the step."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainworks.errors import EnvironmentProblem
from trainworks.worker.data.card import DatasetCard, Shard
from trainworks.worker.data.order import WindowShuffle, permute
from trainworks.worker.data.reader import BatchReader, Staging
from trainworks.worker.data.shards import LocalShards
from trainworks.worker.data.tokens import TokenDataset
from trainworks.worker.loop import move_to_device

LENGTH = 4
SHARDS = {"a.bin": 41, "b.bin": 3, "c.bin": 22}


@pytest.fixture
def card(tmp_path):
    """Three shards, written; each token tells its shard and place."""
    for number, (name, size) in enumerate(SHARDS.items()):
        (np.arange(size) + 100 * number).astype("<u2").tofile(tmp_path / name)
    shards = {name: Shard(items=size, num_bytes=2 * size, sha256="") for name, size in SHARDS.items()}
    return DatasetCard(source="test", vocabulary=500, shards=shards, fingerprint="f")


@pytest.fixture
def dataset(card, tmp_path):
    """Sequences whose first token names them: 10 of shard a, none of b, 5 of c."""
    return TokenDataset(tmp_path, card, LENGTH)


def rows(dataset):
    return dataset.gather(np.arange(len(dataset)), np.arange(len(dataset)))["tokens"]


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
            taken[step] += reader.next_batch()["tokens"][..., 0].flatten().tolist()
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
    first = rows(dataset)
    assert (np.diff(first, axis=1) == 1).all()


def test_an_epoch_takes_every_sequence_once(dataset):
    taken = global_batches(dataset, 15, global_batch=1)
    assert sorted(token for batch in taken for token in batch) == sorted(rows(dataset)[:, 0])


@pytest.mark.parametrize(("dp", "micro_batch"), [(1, 8), (2, 1), (2, 4), (4, 2), (8, 1)])
def test_the_global_batches_do_not_depend_on_the_ranks(dataset, dp, micro_batch):
    assert global_batches(dataset, 9, dp=dp, micro_batch=micro_batch) == global_batches(dataset, 9)


@pytest.mark.parametrize("first", [1, 4, 8])
def test_reading_from_a_step_repeats_and_skips_nothing(dataset, first):
    assert global_batches(dataset, 9, dp=2, first=first) == global_batches(dataset, 9)[first:]


def test_a_batch_has_one_token_more_than_the_sequence(dataset):
    reader = BatchReader(dataset, seed=0, global_batch=8, micro_batch=2, dp_rank=0, dp=2, first_step=0, last_step=1)
    batch = reader.next_batch()["tokens"]
    assert (batch.shape, batch.dtype) == ((2, 2, LENGTH + 1), torch.int64)


SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)


@given(sizes=SIZES, seed=st.integers(0, 2**63 - 1), window=st.integers(1, 5), epoch=st.integers(0, 3))
def test_an_epoch_of_windows_takes_every_item_once(sizes, seed, window, epoch):
    order = WindowShuffle(sizes, seed, window=window)
    n = sum(sizes)
    assert sorted(order(np.arange(epoch * n, (epoch + 1) * n))) == list(range(n))


@given(sizes=SIZES, seed=st.integers(0, 2**63 - 1), window=st.integers(1, 5))
def test_what_a_window_reads_was_announced(sizes, seed, window):
    announced = []
    order = WindowShuffle(sizes, seed, window=window, ahead=lambda shards: announced.append(set(shards.tolist())))
    shard_of = np.repeat(np.arange(len(sizes)), sizes)
    for g in range(0, 2 * sum(sizes), 3):
        assert int(shard_of[order(np.array([g]))[0]]) in announced[-1]


def test_the_next_window_is_announced_when_a_window_is_entered():
    announced = []
    order = WindowShuffle([10] * 8, 1, window=2, ahead=lambda shards: announced.append(shards.tolist()))
    order(np.arange(20))
    assert announced == [[*order.shards_of(0, 0), *order.shards_of(0, 1)]]
    order(np.arange(75, 80))
    assert announced[1] == [*order.shards_of(0, 3), *order.shards_of(1, 0)]


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), window=st.integers(1, 5))
def test_of_equal_shards_a_window_reads_one_more_than_it_is_wide(sizes, window):
    sizes = [sizes[0]] * len(sizes)
    order = WindowShuffle(sizes, 1, window=window)
    assert all(len(order.shards_of(0, number)) <= window + 1 for number in range(len(sizes)))


def test_a_batch_is_the_same_whether_read_alone_or_in_a_block(dataset):
    order = dataset.order(1)
    assert (order(np.arange(40)) == [order(np.array([g]))[0] for g in range(40)]).all()


def test_a_dataset_of_ones_own_needs_five_members():
    class Squares:
        fingerprint, sample_bytes = "squares", 16

        def __len__(self):
            return 10

        def order(self, seed):
            return lambda samples: samples % 10

        def gather(self, indices, samples):
            return {"x": indices[:, None] ** 2, "g": samples}

    reader = BatchReader(Squares(), seed=0, global_batch=4, micro_batch=1, dp_rank=1, dp=2, first_step=3, last_step=5)
    batch = reader.next_batch()
    assert (batch["x"].shape, batch["x"].flatten().tolist(), batch["g"].flatten().tolist()) == (
        (2, 1, 1),
        [9, 25],
        [13, 15],
    )


@pytest.mark.parametrize("damage", ["cut short", "missing"])
def test_a_local_shard_that_is_not_whole_is_refused(card, tmp_path, damage):
    """Rows are cut out of the mapped file: behind its end they would be other bytes, or a crash."""
    shard = tmp_path / "c.bin"
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(
        EnvironmentProblem, match=r"the prepared data is damaged: c\.bin: (missing|42 bytes instead of 44)"
    ):
        TokenDataset(tmp_path, card, LENGTH)


def test_only_the_open_shard_counts_as_memory_of_the_rank(tmp_path):
    """Else a run seems to need the memory of all the data that it has read, which the system may drop at any time."""
    names, size = ["a.bin", "b.bin"], 1 << 20
    for name in names:
        (tmp_path / name).write_bytes(name[:1].encode() * size)
    shards = LocalShards(tmp_path, {name: Shard(items=size, num_bytes=size, sha256="") for name in names})
    first = shards.open(0)
    assert (bytes(first) == b"a" * size, resident_bytes(tmp_path / "a.bin")) == (True, size)
    assert bytes(shards.open(1)) == b"b" * size
    assert [resident_bytes(tmp_path / name) for name in names] == [0, size]
    assert first[0] == ord("a")


def resident_bytes(path):
    """Bytes of a mapped file that count as memory of this process."""
    areas = Path("/proc/self/smaps").read_text().splitlines()
    at = next(number for number, line in enumerate(areas) if line.endswith(str(path)))
    return 1024 * next(int(line.split()[1]) for line in areas[at:] if line.startswith("Rss:"))


class RecordedStaging(Staging):
    """Page-locked memory of a machine without an accelerator: what would be locked is written down."""

    def __init__(self, device):
        super().__init__(torch.device(device))
        self.threads, self.placed = [], []

    def begin_thread(self):
        self.threads.append(threading.current_thread().name)

    def place(self, tensor):
        self.placed.append((threading.current_thread().name, tensor))
        return tensor


def test_every_batch_lies_in_staged_memory_that_the_reading_thread_filled(dataset):
    staging = RecordedStaging("cuda:1")
    reader = BatchReader(
        dataset, seed=0, global_batch=8, micro_batch=2, dp_rank=0, dp=2, first_step=0, last_step=70, staging=staging
    )
    memory = [reader.next_batch()["tokens"].untyped_storage().data_ptr() for _ in range(70)]
    reader.close()
    assert set(memory) <= {tensor.untyped_storage().data_ptr() for _, tensor in staging.placed}
    assert {name for name, _ in staging.placed} == set(staging.threads)
    assert threading.current_thread().name not in staging.threads
    assert len(staging.threads) == 1


def test_only_an_accelerator_has_its_batches_in_page_locked_memory():
    tensor = torch.zeros(3)
    assert [Staging(torch.device(name)).is_pinned for name in ("cpu", "cuda", "cuda:3")] == [False, True, True]
    assert Staging(torch.device("cpu")).place(tensor) is tensor


@pytest.mark.gpu
def test_a_copy_from_staged_memory_does_not_wait_for_the_device():
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    staged = Staging(torch.device("cuda:0")).place(torch.arange(1 << 20))
    assert staged.is_pinned()
    busy = torch.cuda.Event()
    torch.cuda._sleep(1 << 30)
    copied = move_to_device({"x": staged}, torch.device("cuda:0"))["x"]
    busy.record()
    assert not busy.query()
    del staged
    assert torch.equal(copied.cpu(), torch.arange(1 << 20))
