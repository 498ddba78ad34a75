"""The files of a dataset, by number, as bytes in memory that the operating system reads when they are touched.

They are in a folder, or in a store: then the card is copied here, and the shards stream through the node's cache.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from trainworks.config.data import STDLIB, DataSource
from trainworks.errors import EnvironmentProblem, TrainworksError, UsageError
from trainworks.files import write_atomic
from trainworks.host.corpus import anchored_source
from trainworks.units import format_bytes
from trainworks.worker.data.card import CARD, DatasetCard, Shard, fingerprint
from trainworks.worker.data.order import Indices
from trainworks.worker.data.store import ShardCache, Store, naming_store

Bytes = NDArray[np.uint8]


class LocalShards:
    """Memory-mapped files of a folder.

    Raises:
        EnvironmentProblem: a file is missing, or has another size than the card says.
    """

    def __init__(self, folder: Path, shards: Mapping[str, Shard]) -> None:
        self._maps = [_checked(folder / name, shard) for name, shard in shards.items()]
        self._latest: MappedFile | None = None

    def open(self, number: int) -> Bytes:
        """The content of shard `number`; valid until the next call."""
        if self._latest is not None:
            self._latest.forget()
        self._latest = self._maps[number]
        return self._latest.content

    def fetch(self, numbers: Indices) -> None:
        """Shards that are needed now or soon, in this order: they are here."""


def _checked(path: Path, shard: Shard) -> MappedFile:
    """A whole file. Rows are cut out of it without looking at its end, so a shorter one must not be read."""
    found = path.stat().st_size if path.is_file() else None
    if found != shard.num_bytes:
        problem = "missing" if found is None else f"{found:,} bytes instead of {shard.num_bytes:,}"
        raise EnvironmentProblem(
            f"the prepared data is damaged: {path.name}: {problem}",
            place=str(path),
            hint=f"list every damaged shard with `trainworks data verify {path.parent}`; delete the folder to have it "
            "prepared again",
        )
    return MappedFile(path)


class MappedFile:
    """A file whose content is read when it is touched."""

    def __init__(self, path: Path) -> None:
        self._map: mmap.mmap | None = None
        self.content: Bytes = np.empty(0, dtype=np.uint8)
        if path.stat().st_size > 0:  # an empty file cannot be mapped
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.content = np.frombuffer(self._map, dtype=np.uint8)

    def forget(self) -> None:
        """Count what was touched no longer as memory of this process; the system may still have it cached.

        Linux maps 16 pages around every touched one, so that a rank that reads single rows would soon seem to hold the
        whole file.
        """
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)


WINDOW = 16
"""Shards of a store that are shuffled together, if the run file does not say."""

_FETCHING_THREADS = 4


def prepared_folder(source: DataSource, cache: Path) -> Path | None:
    """The folder of a source that was prepared before: here, or in a store, whose card is then fetched.

    Raises:
        EnvironmentProblem: a store does not answer.
    """
    if source.scheme not in (None, "hf"):
        return stored_data(source.source, cache)
    folder = Path(anchored_source(source.source))
    return folder if source.source != STDLIB and (folder / CARD).is_file() else None


def stored_data(address: str, cache: Path) -> Path | None:
    """A folder with the card and the tokenizer of prepared data in a store; None without a card.

    Raises:
        EnvironmentProblem: the store does not answer.
    """
    store = Store(address)
    if not store.exists(CARD):
        return None
    try:
        card = DatasetCard.model_validate_json(store.read(CARD))
    except ValidationError:
        raise EnvironmentProblem(f"`{address}/{CARD}` is not a card of this version", hint="prepare it again") from None
    folder = cache / f"{address.partition('://')[0]}-{fingerprint([address, card.fingerprint, card.tokenization])[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in card.companions:
        write_atomic(folder / name, store.read(name))
    write_atomic(folder / CARD, card.model_copy(update={"store": address}).model_dump_json(indent=2) + "\n")
    return folder


def put(folder: Path, card: DatasetCard, address: str) -> int:
    """Copy prepared data to a store, the card last; returns how many files were sent.

    A shard that is present with the right size is not sent again, so an interrupted `put` continues.
    """
    store, sent = Store(address), 0
    with naming_store(address):
        store.fs.makedirs(store.root, exist_ok=True)
        there = {path.rpartition("/")[2]: info["size"] for path, info in store.fs.find(store.root, detail=True).items()}
        names = [name for name, shard in card.shards.items() if there.get(name) != shard.num_bytes]
        for name in [*names, *card.companions, CARD]:
            store.fs.put_file(str(folder / name), store.path(name))
            sent += 1
    return sent


class StreamedShards:
    """Shards that are fetched when they are needed, and a window before. A window is shuffled together; so many shards
    and one more are read in turn.

    Raises:
        UsageError: the cache cannot hold three windows: one that slower ranks still read, this one and the next.
    """

    def __init__(self, card: DatasetCard, cache: ShardCache, *, window: int, limit_bytes: int) -> None:
        assert card.store is not None
        needed = 3 * (window + 1) * max((shard.num_bytes for shard in card.shards.values()), default=0)
        if min(needed, card.num_bytes) > limit_bytes:
            raise UsageError(
                f"`data.cache` ({format_bytes(limit_bytes)}) is less than three windows of {window} shards "
                f"({format_bytes(needed)})",
                hint="raise `data.cache`, or lower `data.shuffle_shards`",
            )
        self._store = Store(card.store)
        self._cache = cache
        self._shards = list(card.shards.items())
        self._prefix = card.fingerprint[:16]
        self._open: OrderedDict[int, tuple[MappedFile, int]] = OrderedDict()
        self._latest: MappedFile | None = None
        self._most_open = window + 1
        self._wanted: deque[int] = deque()
        self._news = threading.Condition()
        self._fetchers: list[threading.Thread] = []

    def open(self, number: int) -> Bytes:
        """The content of shard `number`; waits for the store only if it was not fetched ahead."""
        if self._latest is not None:
            self._latest.forget()
        self._latest = self._opened(number)
        return self._latest.content

    def _opened(self, number: int) -> MappedFile:
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number][0]
        while len(self._open) >= self._most_open:
            _, (_, lock) = self._open.popitem(last=False)
            os.close(lock)
        path, lock = self._cache.hold(*self._file(number))
        self._open[number] = MappedFile(path), lock
        return self._open[number][0]

    def fetch(self, numbers: Indices) -> None:
        """Fetch these in this order; earlier requests are dropped."""
        with self._news:
            self._wanted = deque(int(number) for number in numbers)
            self._news.notify_all()
        while len(self._fetchers) < _FETCHING_THREADS:
            self._fetchers.append(threading.Thread(target=self._fetch_wanted, name="shard-fetcher", daemon=True))
            self._fetchers[-1].start()

    def _fetch_wanted(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: len(self._wanted) > 0)
                number = self._wanted.popleft()
            try:
                self._cache.fetch_ahead(*self._file(number))
            except TrainworksError:  # the reader of the shard meets the error again and reports it
                with self._news:
                    self._wanted.clear()

    def _file(self, number: int) -> tuple[str, Shard, Store, str]:
        name, shard = self._shards[number]
        return f"{self._prefix}-{name}", shard, self._store, name


Shards = LocalShards | StreamedShards
"""Source of the files of a dataset."""
