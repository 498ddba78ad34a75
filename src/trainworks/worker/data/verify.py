"""Verify prepared data against its card."""

from __future__ import annotations

import hashlib
from pathlib import Path

from trainworks.host.corpus import anchored_source
from trainworks.worker.data.card import DatasetCard, Shard, read_card
from trainworks.worker.data.image_index import read_files
from trainworks.worker.data.store import Store, naming_store
from trainworks.worker.data.token_shards import Progress

_READ_BYTES = 4 << 20


def verify(folder: Path, progress: Progress) -> list[dict[str, str]]:
    """Every damaged or missing shard, `{"shard": .., "problem": ..}`, of prepared data here or in its store.

    Images in folders have no checksum: their sizes are compared.

    Raises:
        EnvironmentProblem: the store does not answer.
    """
    card = read_card(folder)
    if card.kind == "image-files":
        return _changed_files(folder)
    found: list[dict[str, str]] = []
    done = 0
    for name, shard in card.shards.items():
        problem = _problem(_store(folder, card), name, shard)
        if problem is not None:
            found.append({"shard": name, "problem": problem})
        done += shard.num_bytes
        progress(done, card.num_bytes)
    return found


def _store(folder: Path, card: DatasetCard) -> Store:
    return Store(card.store or anchored_source(str(folder)))


def _problem(store: Store, name: str, shard: Shard) -> str | None:
    path, digest, size = store.path(name), hashlib.sha256(), 0
    if not store.exists(name):
        return "missing"
    with naming_store(f"{store.address}/{name}"), store.fs.open(path, "rb", block_size=_READ_BYTES) as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
            size += len(chunk)
    if size != shard.num_bytes:
        return f"has {size} bytes, the card says {shard.num_bytes}"
    return None if digest.hexdigest() == shard.sha256 else "its SHA-256 is not that of the card"


def _changed_files(folder: Path) -> list[dict[str, str]]:
    found = []
    for file in read_files(folder):
        path = Path(file.path)
        if not path.is_file():
            found.append({"shard": file.path, "problem": "missing"})
        elif path.stat().st_size != file.num_bytes:
            found.append({"shard": file.path, "problem": f"has {path.stat().st_size} bytes, had {file.num_bytes}"})
    return found
