"""Split data into a part to train on and a part that is held out for evaluation.

Which side a document belongs to depends on its content alone, h(document) < share with h uniform in 0 ... 1: the
sides never overlap, copies of a document are on the same side, and other documents of the source change nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainworks.errors import UsageError
from trainworks.files import naming_full_disk, temporary_folder, write_atomic
from trainworks.worker.data.card import CARD, DatasetCard, fingerprint, read_card
from trainworks.worker.data.order import permute

_SEED = 0x5911
"""Key of the permutation that chooses whole shards."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a split."""

    share: float
    """Share that is held out."""
    held_out: bool
    """The held-out side; else the one to train on."""

    @property
    def facts(self) -> list[object]:
        """What makes prepared data of this side different from that of the other one, and of all the data."""
        return ["held out" if self.held_out else "trained on", self.share]

    def has(self, content: bytes) -> bool:
        """Whether a document, or the name of a file, is on this side."""
        digest = hashlib.blake2b(content, digest_size=8).digest()
        return (int.from_bytes(digest, "little") < self.share * 2**64) == self.held_out

    def documents(self, texts: Iterable[str]) -> Iterator[str]:
        """The documents of this side, in order."""
        return (text for text in texts if self.has(text.encode("utf-8", errors="surrogatepass")))

    def shards(self, card: DatasetCard) -> DatasetCard:
        """The card of prepared data with this side's shards: a shard holds whole documents.

        Raises:
            UsageError: a single shard cannot be split.
        """
        names = list(card.shards)
        if len(names) < 2:
            raise UsageError(
                f"`{card.source}` is prepared data in a single shard, which cannot be split",
                hint="name held-out data in `eval.data`, or the texts that it was prepared from in `data.source`",
            )
        count = min(len(names) - 1, max(1, round(self.share * len(names))))
        chosen = permute(np.arange(count), num_items=len(names), seed=_SEED, epoch=0)
        held_out = {names[index] for index in chosen.tolist()}
        shards = {name: shard for name, shard in card.shards.items() if (name in held_out) == self.held_out}
        facts = fingerprint([card.fingerprint, *self.facts, *shards])
        return card.model_copy(update={"shards": shards, "fingerprint": facts})


def split_prepared(folder: Path, side: Side, cache: Path) -> Path:
    """A folder beside others in the cache with one side of prepared data; its shards are links, or stay in their store.

    Raises:
        UsageError: the data is one shard.
        DiskFullError: no space for the card.
    """
    card = side.shards(read_card(folder))
    part = cache / f"split-{fingerprint([card.fingerprint, card.tokenization])[:16]}"
    with naming_full_disk(part):
        part.mkdir(parents=True, exist_ok=True)
        for name in card.shards if card.store is None else ():
            _link(part / name, (folder / name).absolute())
        for name in card.companions:
            write_atomic(part / name, (folder / name).read_bytes())
        write_atomic(part / CARD, card.model_dump_json(indent=2) + "\n")
    return part


def _link(link: Path, file: Path) -> None:
    """Make a link, or point one at another place; several processes may do the same at once."""
    if link.is_symlink() and link.readlink() == file:
        return
    with temporary_folder(".link-", link.parent) as beside:
        made = beside / link.name
        made.symlink_to(file)
        made.replace(link)
