"""Open a folder of prepared data as a dataset."""

from __future__ import annotations

from pathlib import Path

from trainworks.config.data import Data
from trainworks.host.folders import cache_folder
from trainworks.worker.data.cache import ShardCache
from trainworks.worker.data.card import DatasetCard, read_card
from trainworks.worker.data.images import FolderImages, ShardedImages, read_files
from trainworks.worker.data.mixture import MixedDataset
from trainworks.worker.data.packing import MarkedTokens, PairedTokens
from trainworks.worker.data.reader import Dataset
from trainworks.worker.data.shards import WINDOW, LocalShards, Shards, StreamedShards
from trainworks.worker.data.tokens import TokenDataset


def open_dataset(folder: Path, data: Data, *, augment: bool = True, seed: int = 1) -> Dataset:
    """The dataset of a folder that `prepare` made.

    Args:
        folder: with a card.
        data: sequence length, image size, how to shuffle, space for a cache.
        augment: crop and mirror images at random.
        seed: of these crops.

    Raises:
        UsageError: the cache is too small for the shuffle.
        EnvironmentProblem: the card is damaged.
    """
    card = read_card(folder)
    if card.kind == "mixture":
        parts = [open_dataset(Path(part.folder), data, augment=augment, seed=seed) for part in card.parts]
        weights = [part.weight for part in card.parts if part.weight is not None]
        return MixedDataset(parts, weights or None)
    if card.kind == "image-files":
        return FolderImages(card, read_files(folder), data.image_size or 0, augment=augment, seed=seed)
    window = data.shuffle_shards or (WINDOW if card.store else None)
    shards = _shards(folder, card, data)
    if card.kind == "images":
        return ShardedImages(card, shards, data.image_size or 0, augment=augment, seed=seed, window=window)
    if card.pairs:
        row = 2 * (data.sequence_length + 1)
        return PairedTokens(TokenDataset(folder, card, row - 1, shards=shards, window=window))
    tokens = TokenDataset(folder, card, data.sequence_length, shards=shards, window=window)
    return MarkedTokens(tokens, one_per_row=card.one_per_row) if card.marked else tokens


def _shards(folder: Path, card: DatasetCard, data: Data) -> Shards:
    if card.store is None:
        return LocalShards(folder, card.shards)
    cache = ShardCache(cache_folder("data", "shards"), data.cache_bytes)
    window = min(data.shuffle_shards or WINDOW, len(card.shards))
    return StreamedShards(card, cache, window=window, limit_bytes=data.cache_bytes)
