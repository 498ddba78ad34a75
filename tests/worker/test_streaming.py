"""Prepared shards in an S3-compatible store: streamed through a cache of limited size, whatever goes wrong."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lanes import examples
from tests.worker.object_store import s3_server
from trainworks.config.data import Data
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.worker.data.card import DatasetCard, Shard, fingerprint, hash_file
from trainworks.worker.data.command import verify
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.prepare import prepare
from trainworks.worker.data.reader import BatchReader
from trainworks.worker.data.shards import put, stored_data
from trainworks.worker.data.store import ShardCache, Store

SHARDS, TOKENS, LENGTH = 12, 401, 16
SHARD_BYTES = 2 * TOKENS


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Twelve shards; every sequence begins with a token of its own."""
    folder = tmp_path_factory.mktemp("local")
    shards = {}
    for number in range(SHARDS):
        file = folder / f"tokens-{number:05d}.bin"
        (np.arange(TOKENS) + TOKENS * number).astype("<u2").tofile(file)
        shards[file.name] = Shard(items=TOKENS, num_bytes=SHARD_BYTES, sha256=hash_file(file))
    facts = fingerprint([shard.sha256 for shard in shards.values()])
    card = DatasetCard(source="test", fingerprint=facts, shards=shards, vocabulary=6000)
    (folder / "dataset.json").write_text(card.model_dump_json())
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {}}}')
    return folder, card


@pytest.fixture
def stored(server, local, tmp_path, monkeypatch):
    """The address of the shards in the store; this node's cache is empty."""
    monkeypatch.setenv("TRAINWORKS_CACHE", str(tmp_path / "cache"))
    folder, card = local
    address = f"s3://bucket/{tmp_path.name}"
    put(folder, card, address)
    return address


def data(address, **changes) -> Data:
    return Data(
        **({"source": address, "sequence_length": LENGTH, "cache": 12 * SHARD_BYTES, "shuffle_shards": 2} | changes)
    )


def read(address, cards, steps=40, **changes):
    dataset = open_dataset(stored_data(address, cards), data(address, **changes))
    reader = BatchReader(dataset, seed=1, global_batch=8, micro_batch=8, dp_rank=0, dp=1, first_step=0, last_step=steps)
    return [reader.next_batch()["tokens"][..., 0].flatten().tolist() for _ in range(steps)]


def held_bytes(cache):
    return bytes_in(cache / "data" / "shards")


def bytes_in(folder):
    """What the files take; a finished part has two names for a moment."""
    sizes = {}
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # removed or renamed meanwhile
            found = file.stat()
            sizes[found.st_ino] = 0 if file.suffix == ".lock" else found.st_size
    return sum(sizes.values())


def test_streamed_shards_give_the_sequence_of_local_ones(stored, local, tmp_path):
    dataset = open_dataset(local[0], data(str(local[0])))
    reader = BatchReader(dataset, seed=1, global_batch=8, micro_batch=8, dp_rank=0, dp=1, first_step=0, last_step=40)
    assert read(stored, tmp_path / "cards") == [
        reader.next_batch()["tokens"][..., 0].flatten().tolist() for _ in range(40)
    ]


def test_the_cache_never_holds_more_than_its_limit(stored, tmp_path):
    dataset = open_dataset(stored_data(stored, tmp_path / "cards"), data(stored, cache=9 * SHARD_BYTES))
    order = dataset.order(1)
    most = 0
    for g in range(2 * len(dataset)):
        dataset.gather(order(np.array([g])), np.array([g]))
        most = max(most, held_bytes(tmp_path / "cache"))
    assert 0 < most <= 9 * SHARD_BYTES


def test_ranks_of_a_node_share_one_copy(stored, tmp_path):
    folder = stored_data(stored, tmp_path / "cards")
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool:
        taken = list(pool.map(_read_a_rank, [folder] * 3, [stored] * 3, range(3)))
    everything = [token for tokens in taken for token in tokens]
    assert len(set(everything)) == len(everything) == 3 * len(taken[0])
    assert held_bytes(tmp_path / "cache") <= 12 * SHARD_BYTES


def _read_a_rank(folder, address, rank):
    dataset = open_dataset(folder, data(address, cache=12 * SHARD_BYTES))
    steps = len(dataset) // 6
    reader = BatchReader(
        dataset, seed=1, global_batch=6, micro_batch=2, dp_rank=rank, dp=3, first_step=0, last_step=steps
    )
    return [token for _ in range(steps) for token in reader.next_batch()["tokens"][..., 0].flatten().tolist()]


def test_a_cache_smaller_than_three_windows_is_refused(stored, tmp_path):
    with pytest.raises(UsageError, match="is less than three windows of 2 shards"):
        read(stored, tmp_path / "cards", cache=3 * SHARD_BYTES)


def test_a_damaged_shard_is_never_read(stored, tmp_path):
    Store(stored).fs.pipe_file(Store(stored).path("tokens-00005.bin"), b"\0" * SHARD_BYTES)
    with pytest.raises(EnvironmentProblem, match=r"tokens-00005\.bin` is damaged: its SHA-256"):
        read(stored, tmp_path / "cards")
    assert not list((tmp_path / "cache").rglob("*tokens-00005.bin"))


def test_verify_names_what_is_damaged_and_what_is_missing(stored, tmp_path):
    store = Store(stored)
    store.fs.pipe_file(store.path("tokens-00002.bin"), b"\0" * SHARD_BYTES)
    store.fs.pipe_file(store.path("tokens-00003.bin"), b"short")
    store.fs.rm_file(store.path("tokens-00007.bin"))
    found = verify(stored_data(stored, tmp_path / "cards"), lambda done, total: None)
    assert [(damage["shard"], damage["problem"]) for damage in found] == [
        ("tokens-00002.bin", "its SHA-256 is not that of the card"),
        ("tokens-00003.bin", "has 5 bytes, the card says 802"),
        ("tokens-00007.bin", "missing"),
    ]


def test_put_sends_what_is_missing_only(stored, local):
    folder, card = local
    Store(stored).fs.rm_file(Store(stored).path("tokens-00007.bin"))
    assert put(folder, card, stored) == 3  # the shard, the tokenizer and the card


def test_a_store_that_dies_in_the_middle_is_an_error_in_seconds(local, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINWORKS_CACHE", str(tmp_path / "cache"))
    with s3_server() as server:
        put(*local, "s3://bucket/dies")
        dataset = open_dataset(stored_data("s3://bucket/dies", tmp_path / "cards"), data("s3://bucket/dies"))
        order = dataset.order(1)
        dataset.gather(order(np.arange(8)), np.arange(8))
        server.stop()
        begun = time.monotonic()
        with pytest.raises(EnvironmentProblem, match="cannot read `s3://bucket/dies/tokens-"):
            dataset.gather(order(np.arange(len(dataset))), np.arange(len(dataset)))
        assert time.monotonic() - begun < 60  # not the time-out of a collective


def test_a_killed_download_leaves_nothing_that_is_read(stored, local, tmp_path):
    """The part that it left is replaced, and its lock is gone with it."""
    cache = ShardCache(tmp_path / "c", 10**6)
    program = (
        "import fcntl, os, sys, time; f = os.open(sys.argv[1] + '/x.lock', os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(f, fcntl.LOCK_EX); open(sys.argv[1] + '/.x.part', 'wb').write(b'half'); print(1, flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "c")], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        child.kill()
    shard = local[1].shards["tokens-00000.bin"]
    path, lock = cache.hold("x", shard, Store(stored), "tokens-00000.bin")
    os.close(lock)
    assert hash_file(path) == shard.sha256
    assert not (tmp_path / "c" / ".x.part").exists()


def test_what_is_in_use_is_not_removed(stored, local, tmp_path, clock):
    cache = ShardCache(tmp_path / "c", 2 * SHARD_BYTES, clock)
    shards = list(local[1].shards.items())
    held = [cache.hold(name, shard, Store(stored), name) for name, shard in shards[:2]]
    with pytest.raises(EnvironmentProblem, match=r"no room for a shard of 802 B: 1\.60 kB of 1\.60 kB"):
        cache.hold(shards[2][0], shards[2][1], Store(stored), shards[2][0])
    for _, lock in held:
        os.close(lock)
    path, lock = cache.hold(shards[2][0], shards[2][1], Store(stored), shards[2][0])
    os.close(lock)
    assert path.exists() and not held[0][0].exists() and held[1][0].exists()


@settings(max_examples=examples(5))
@given(st.randoms(use_true_random=False))
def test_many_readers_at_once_see_whole_shards_within_the_limit(tmp_path_factory, local, generator: random.Random):
    folder, card = local
    place = tmp_path_factory.mktemp("race")
    cache = ShardCache(place, 5 * SHARD_BYTES)
    names = generator.choices(list(card.shards), k=60)

    def take(name):
        path, lock = cache.hold(name, card.shards[name], Store(str(folder)), name)
        whole = hash_file(path) == card.shards[name].sha256
        held = bytes_in(place)
        os.close(lock)
        return whole and held <= 5 * SHARD_BYTES

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(take, names))


def test_text_in_a_store_is_prepared_like_local_text(server, tmp_path, corpus):
    fs = Store("s3://bucket").fs
    for file in corpus.iterdir():
        fs.pipe_file(f"bucket/texts/{file.name}", file.read_bytes())
    there, card_there = prepare(Data(source="s3://bucket/texts/*.txt", sequence_length=32, vocabulary=300), tmp_path)
    here, card_here = prepare(Data(source=str(corpus), sequence_length=32, vocabulary=300), tmp_path)
    assert card_there.fingerprint == card_here.fingerprint
    assert there.name.startswith("s3-") and here.name.startswith("files-")


def test_an_address_with_nothing_there_is_refused(server, tmp_path):
    with pytest.raises(UsageError, match="`s3://bucket/nothing` names no files"):
        prepare(Data(source="s3://bucket/nothing", sequence_length=32), tmp_path)


def test_a_shard_that_another_rank_downloads_and_keeps_is_not_waited_for(stored, local, tmp_path, monkeypatch):
    """Between this rank's look and its download, another rank downloads the shard, and holds it from then on."""
    name, shard = next(iter(local[1].shards.items()))
    ours, theirs = ShardCache(tmp_path / "c", 10**6), ShardCache(tmp_path / "c", 10**6)
    held = []

    def overtaken(*arguments):
        held.append(theirs.hold(*arguments)[1])
        ShardCache.fetch_ahead(ours, *arguments)

    monkeypatch.setattr(ours, "fetch_ahead", overtaken)
    path, lock = ours.hold(name, shard, Store(stored), name)
    assert path.exists() and len(held) == 1
    for handle in (lock, *held):
        os.close(handle)


def test_the_exclusive_lock_is_never_waited_for(stored, local, tmp_path):
    name, shard = next(iter(local[1].shards.items()))
    cache = ShardCache(tmp_path / "c", 10**6)
    _, lock = cache.hold(name, shard, Store(stored), name)
    (tmp_path / "c" / name).rename(tmp_path / "elsewhere")
    cache.fetch_ahead(name, shard, Store(stored), name)
    assert not (tmp_path / "c" / name).exists()
    os.close(lock)


def test_a_shard_that_another_node_named_first_stays(stored, local, tmp_path, monkeypatch):
    """A client of NFS may still take the name for a free one; the readers of the other node keep their file."""
    name, shard = next(iter(local[1].shards.items()))
    cache = ShardCache(tmp_path / "c", 10**6)
    path, lock = cache.hold(name, shard, Store(stored), name)
    os.close(lock)
    named = path.stat().st_ino
    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", lambda _: False)
        cache.fetch_ahead(name, shard, Store(stored), name)
    assert path.stat().st_ino == named and sorted(file.name for file in path.parent.iterdir()) == sorted(
        [name, f"{name}.lock", "cache.lock"]
    )


def test_a_file_system_without_hard_links_keeps_a_cache(stored, local, tmp_path, monkeypatch):
    def refused(self, target):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    name, shard = next(iter(local[1].shards.items()))
    path, lock = ShardCache(tmp_path / "c", 10**6).hold(name, shard, Store(stored), name)
    os.close(lock)
    assert hash_file(path) == shard.sha256 and not path.with_name(f".{name}.part").exists()


def test_a_file_system_without_locks_is_one_clear_error(stored, local, tmp_path, monkeypatch):
    def refused(handle, **how):
        raise OSError(errno.ENOLCK, "No locks available")

    name, shard = next(iter(local[1].shards.items()))
    cache = ShardCache(tmp_path / "c", 10**6)
    monkeypatch.setattr("trainworks.worker.data.store.lock_file", refused)
    with pytest.raises(EnvironmentProblem, match="has no locks") as caught:
        cache.hold(name, shard, Store(stored), name)
    assert "TRAINWORKS_CACHE" in caught.value.hint
