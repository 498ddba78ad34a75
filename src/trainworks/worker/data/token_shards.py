"""Tokenize the parts of a source into shards, in several processes, continuing after a killed one.

Each part of the text becomes one shard, in any process. Packing keeps a document whole where it fits into a row.

<folder>.making/tokenizer.json         and chat.json, see tokenization.py
                finished.jsonl         one line per finished shard, written after the shard is on disk
                tokens-00000.bin ...
                dataset.json           written last; then the folder gets its name
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from trainworks.errors import EnvironmentProblem
from trainworks.files import append_text, write_atomic
from trainworks.host.process_end import follow_parent
from trainworks.worker.data.card import CARD, ChatCounts, DatasetCard, Progress, Shard, fingerprint, hash_file
from trainworks.worker.data.encoding import Recipe, dtype_of, encoder_of
from trainworks.worker.data.inputs import Piece
from trainworks.worker.data.tokenization import Tokenization, end_of_text
from trainworks.worker.data.tokens import MARKED_DTYPE, Tokens, marked_rows


@dataclass(frozen=True, slots=True)
class Made:
    """A finished shard, and what went into it."""

    name: str
    shard: Shard
    num_bytes_of_text: int
    padding_tokens: int
    counts: dict[str, int]
    """Counts of conversations, see `ChatEncoder`; empty for text."""


class ShardMaker:
    """Turns parts into shards; every process has its own."""

    def __init__(self, folder: Path, recipe: Recipe, tokenization: Tokenization) -> None:
        tokenizer = tokenization.tokenizer
        self.vocabulary = 1 + max(tokenizer.get_vocab().values())
        self.dtype = dtype_of(recipe, self.vocabulary)
        self._folder = folder
        self._recipe = recipe
        self._tokenization = tokenization
        self._filler = end_of_text(tokenizer) or 0

    def make(self, name: str, pieces: Sequence[Piece], progress: Callable[[int], None] = lambda done: None) -> Made:
        """Write the shard `name`, complete or not at all."""
        encoder = encoder_of(self._recipe, self._tokenization)
        encoded: list[Tokens] = []
        num_bytes = 0
        for batch, batch_bytes in encoder.encode(pieces):
            encoded += batch
            num_bytes += batch_bytes
            progress(batch_bytes)
        tokens, padding = self._rows(encoded)
        content = tokens.tobytes()
        write_atomic(self._folder / name, content)
        shard = Shard(items=tokens.size, num_bytes=len(content), sha256=hash_file(self._folder / name))
        return Made(name, shard, num_bytes, padding, dict(encoder.counts))

    def _rows(self, encoded: list[Tokens]) -> tuple[Tokens, int]:
        recipe = self._recipe
        if recipe.row is not None:
            texts = [each[:-1] for each in encoded] if recipe.has_values else encoded
            rows, padding = marked_rows(texts, recipe.row, filler=self._filler, one_per_row=recipe.one_per_row)
            if recipe.has_values:
                rows = np.column_stack((rows, np.array([each[-1] for each in encoded], dtype=MARKED_DTYPE)))
            return rows, padding
        return (np.concatenate(encoded) if encoded else np.empty(0, dtype=self.dtype)), 0


_makers: list[ShardMaker] = []
"""Shard maker of this process, if it belongs to a pool."""


def begin_process(parent: int, folder: Path, recipe: Recipe, tokenization: Tokenization) -> None:
    """Start of a pool's process: it ends with its parent, and its tokenizer keeps to one thread."""
    follow_parent(parent)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _makers.append(ShardMaker(folder, recipe, tokenization))


def make_in_process(name: str, pieces: Sequence[Piece]) -> Made:
    """`ShardMaker.make` in a process of a pool."""
    return _makers[0].make(name, pieces)


_FINISHED = "finished.jsonl"
_WORTH_PROCESSES_BYTES = 8_000_000


def make_token_shards(
    work: Path,
    parts: Sequence[Sequence[Piece]],
    *,
    source: str,
    recipe: Recipe,
    tokenization: Tokenization,
    processes: int,
    progress: Progress,
) -> DatasetCard:
    """Make the shards that are not finished yet, one for each part, then the card.

    The bytes of every shard depend on its part, the recipe and the tokenization only, so the result is the same whether
    one process made it in one go or many did in several.

    Raises:
        UsageError: the text cannot be read as it is.
        DiskFullError: no space left; finished shards stay.
        EnvironmentProblem: a process was killed.
    """
    if (work / CARD).exists():
        return DatasetCard.model_validate_json((work / CARD).read_bytes())
    names = {f"tokens-{number:05d}.bin": part for number, part in enumerate(parts)}
    done = _kept(work, names)
    tokenization.write(work)
    total = sum(piece.num_bytes for part in parts for piece in part)
    counted = sum(piece.num_bytes for name in done for piece in names[name])
    progress(counted, total)

    def advance(num_bytes: int) -> None:
        nonlocal counted
        counted = min(counted + num_bytes, total)
        progress(counted, total)

    maker = ShardMaker(work, recipe, tokenization)
    open_parts = {name: part for name, part in names.items() if name not in done}
    todo_bytes = sum(piece.num_bytes for part in open_parts.values() for piece in part)
    several = processes > 1 and len(open_parts) > 1 and todo_bytes >= _WORTH_PROCESSES_BYTES
    made = (
        _make_in_processes(work, open_parts, (recipe, tokenization), processes, advance)
        if several
        else (maker.make(name, part, advance) for name, part in open_parts.items())
    )
    for finished in made:
        append_text(work / _FINISHED, json.dumps(asdict(finished) | {"shard": finished.shard.model_dump()}) + "\n")
        done[finished.name] = finished
    card = _card(maker, [done[name] for name in names], source, recipe, tokenization.fingerprint)
    write_atomic(work / CARD, card.model_dump_json(indent=2) + "\n")
    (work / _FINISHED).unlink()
    return card


def _make_in_processes(
    work: Path,
    parts: dict[str, Sequence[Piece]],
    of_makers: tuple[Recipe, Tokenization],
    processes: int,
    advance: Callable[[int], None],
) -> Iterator[Made]:
    pool = ProcessPoolExecutor(
        min(processes, len(parts)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=begin_process,
        initargs=(os.getpid(), work, *of_makers),
    )
    try:
        futures = {pool.submit(make_in_process, name, part): part for name, part in parts.items()}
        for future in as_completed(futures):
            yield future.result()
            advance(sum(piece.num_bytes for piece in futures[future]))
    except BrokenProcessPool:
        raise EnvironmentProblem(
            "a process that tokenizes was killed, perhaps for want of memory",
            hint="ask again, with fewer `--processes`: what is finished is kept",
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _kept(work: Path, names: dict[str, Sequence[Piece]]) -> dict[str, Made]:
    """Finished shards of an earlier try whose bytes are what they were; anything else is cleared away."""
    kept: dict[str, Made] = {}
    for line in (work / _FINISHED).read_text().splitlines() if (work / _FINISHED).exists() else []:
        try:
            facts = json.loads(line)
            made = Made(**facts | {"shard": Shard.model_validate(facts["shard"])})
        except (ValueError, TypeError, KeyError):
            continue  # cut off by the end of the process
        file = work / made.name
        if made.name in names and file.is_file() and hash_file(file) == made.shard.sha256:
            kept[made.name] = made
    for file in work.iterdir():
        if file.name not in (*kept, _FINISHED):
            file.unlink()
    return kept


def _card(maker: ShardMaker, made: Sequence[Made], source: str, recipe: Recipe, tokenization: str) -> DatasetCard:
    shards = {one.name: one.shard for one in made}
    counts = sum((Counter(one.counts) for one in made), Counter())
    return DatasetCard(
        source=source,
        fingerprint=fingerprint([maker.dtype.str, recipe.row, *(shard.sha256 for shard in shards.values())]),
        shards=shards,
        vocabulary=maker.vocabulary,
        dtype=maker.dtype.str,
        num_bytes_of_text=sum(one.num_bytes_of_text for one in made),
        packed=recipe.row,
        marked=recipe.marked,
        one_per_row=recipe.one_per_row,
        pairs=recipe.chat is not None and recipe.chat.pairs,
        margins=recipe.chat is not None and recipe.chat.margins,
        labels=recipe.chat is not None and recipe.chat.labels,
        chats=ChatCounts(**counts) if recipe.chat is not None else None,
        padding_tokens=sum(one.padding_tokens for one in made),
        tokenization=tokenization,
    )
