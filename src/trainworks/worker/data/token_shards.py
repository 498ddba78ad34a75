"""Tokenize the parts of a source into shards, in several processes, continuing after a killed one.

Each part of the text becomes one shard, in any process. Packing keeps a document whole where it fits into a row.

<folder>.making/tokenizer.json
                finished.jsonl         one line per finished shard, written after the shard is on disk
                tokens-00000.bin ...
                dataset.json           written last; then the folder gets its name
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainworks.errors import DiskFullError, EnvironmentProblem
from trainworks.files import append_text, fsync_folder, write_atomic
from trainworks.host.process import die_with_parent
from trainworks.worker.data.card import CARD, DatasetCard, Shard, fingerprint, hash_file
from trainworks.worker.data.inputs import Piece, documents

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""End-of-document tokens: the first that the tokenizer has is used. A trained tokenizer has the first."""
_BATCH_BYTES = 2_000_000

Tokens = NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True)
class Made:
    """A finished shard, and what went into it."""

    name: str
    shard: Shard
    num_bytes_of_text: int
    padding_tokens: int


class ShardMaker:
    """Turns parts into shards; every process has its own.

    Args:
        folder: that holds tokenizer.json and receives the shards.
        column: of the text.
        packed: tokens per row of packed documents; None to let documents follow each other.
    """

    def __init__(self, folder: Path, column: str | None, packed: int | None) -> None:
        self.tokenizer = load_tokenizer(folder / "tokenizer.json")
        self.vocabulary = 1 + max(self.tokenizer.get_vocab().values())
        self.dtype = np.dtype("<u2" if self.vocabulary <= 1 << 16 else "<u4")
        self._folder = folder
        self._column = column
        self._packed = packed
        self._end = end_of_text(self.tokenizer)

    def make(self, name: str, pieces: Sequence[Piece], progress: Callable[[int], None] = lambda done: None) -> Made:
        """Write the shard `name`, complete or not at all."""
        encoded: list[Tokens] = []
        num_bytes = 0
        for batch, batch_bytes in self._encoded(pieces):
            encoded += batch
            num_bytes += batch_bytes
            progress(batch_bytes)
        tokens, padding = self._rows(encoded)
        content = tokens.tobytes()
        write_atomic(self._folder / name, content)
        shard = Shard(items=tokens.size, num_bytes=len(content), sha256=hash_file(self._folder / name))
        return Made(name, shard, num_bytes, padding)

    def _rows(self, encoded: list[Tokens]) -> tuple[Tokens, int]:
        if self._packed is not None:
            return pack(encoded, self._packed, filler=self._end or 0)
        return (np.concatenate(encoded) if encoded else np.empty(0, dtype=self.dtype)), 0

    def _encoded(self, pieces: Sequence[Piece]) -> Iterator[tuple[list[Tokens], int]]:
        """Tokens of a batch of documents, each closed by `end_of_text`, and their size as text."""
        closing = [] if self._end is None else [self._end]
        for batch in _batches(documents(pieces, self._column)):
            encodings = self.tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            tokens = [np.array(encoding.ids + closing, dtype=self.dtype) for encoding in encodings]
            yield tokens, sum(len(text.encode()) for text in batch)


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def end_of_text(tokenizer: Tokenizer) -> int | None:
    """The token that closes a document; None if the tokenizer has none, and documents then follow each other."""
    known = (tokenizer.token_to_id(name) for name in END_OF_TEXT)
    return next((token for token in known if token is not None), None)


def load_tokenizer(path: Path | str) -> Tokenizer:
    """A tokenizer.json.

    Raises:
        EnvironmentProblem: it is none.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise EnvironmentProblem(f"`{path}` is not a tokenizer.json: {error}") from None
    return tokenizer


_makers: list[ShardMaker] = []
"""Shard maker of this process, if it belongs to a pool."""


def begin_process(parent: int, folder: Path, column: str | None, packed: int | None) -> None:
    """Start of a pool's process: it ends with its parent, and its tokenizer keeps to one thread."""
    die_with_parent(signal.SIGKILL, parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _makers.append(ShardMaker(folder, column, packed))


def make_in_process(name: str, pieces: Sequence[Piece]) -> Made:
    """`ShardMaker.make` in a process of a pool."""
    return _makers[0].make(name, pieces)


def pack(documents: list[Tokens], row: int, filler: int) -> tuple[Tokens, int]:
    """Best-fit decreasing: each document, longest first, goes into the row where it leaves the least room.

    A document longer than a row is cut into rows that share their border token, so that every token is still
    predicted from the one before; its last piece is packed like a document. Rows keep the order in which they
    were begun (Ding et al., "Fewer Truncations Improve Language Modeling", 2024).

    Args:
        documents: tokens of each, closed by the end-of-text token.
        row: tokens per row, T + 1.
        filler: token that fills what is left of a row.

    Returns:
        Rows [n, row], and how many of their tokens are filler.
    """
    pieces = [piece for document in documents for piece in _cut(document, row)]
    rows: list[list[Tokens]] = []
    open_rows: list[tuple[int, int]] = []  # (room, row), sorted
    for number in sorted(range(len(pieces)), key=lambda index: (-len(pieces[index]), index)):
        size = len(pieces[number])
        place = bisect_left(open_rows, (size, 0))
        if place < len(open_rows):
            room, chosen = open_rows.pop(place)
        else:
            room, chosen = row, len(rows)
            rows.append([])
        rows[chosen].append(pieces[number])
        if room > size:
            insort(open_rows, (room - size, chosen))
    packed = np.full((len(rows), row), filler, dtype=documents[0].dtype if documents else np.uint16)
    for target, parts in zip(packed, rows, strict=True):
        joined = np.concatenate(parts)
        target[: len(joined)] = joined
    return packed, packed.size - sum(len(piece) for piece in pieces)


def _cut(document: Tokens, row: int) -> list[Tokens]:
    last_start = max(len(document) - 2, 0)  # a piece of one token alone would predict nothing
    return [document[start : start + row] for start in range(0, last_start + 1, row - 1)]


_FINISHED = "finished.jsonl"
_TOKENIZER = "tokenizer.json"
_WORTH_PROCESSES_BYTES = 8_000_000

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


@contextmanager
def making(folder: Path) -> Iterator[Path]:
    """The folder beside `folder` in which it is made; renamed at the end, kept for another try after a failure."""
    beside = folder.with_name(f".{folder.name}.making")
    beside.mkdir(parents=True, exist_ok=True)
    try:
        yield beside
    except DiskFullError as error:
        hint = f"free some space and ask again: what is finished is kept in `{beside}` and not made again"
        raise DiskFullError(error.message, hint=hint) from None
    if folder.exists():  # without a card: not ours to keep
        shutil.rmtree(folder)
    beside.rename(folder)
    fsync_folder(folder.parent)


def make_token_shards(
    work: Path,
    parts: Sequence[Sequence[Piece]],
    *,
    source: str,
    column: str | None,
    packed: int | None,
    processes: int,
    progress: Progress,
) -> DatasetCard:
    """Make the shards that are not finished yet, then the card.

    The bytes of every shard depend on its part and the tokenizer only, so the result is the same whether one process
    made it in one go or many did in several.

    Args:
        work: holds tokenizer.json, and perhaps shards of an earlier try.
        parts: one per shard.
        source: for the card.
        column: of the text.
        packed: tokens per row of packed documents.
        processes: to tokenize in.
        progress: called as text is done.

    Raises:
        UsageError: the text cannot be read as it is.
        DiskFullError: no space left; finished shards stay.
        EnvironmentProblem: a process was killed.
    """
    if (work / CARD).exists():
        return DatasetCard.model_validate_json((work / CARD).read_bytes())
    names = {f"tokens-{number:05d}.bin": part for number, part in enumerate(parts)}
    done = _kept(work, names)
    total = sum(piece.num_bytes for part in parts for piece in part)
    counted = sum(piece.num_bytes for name in done for piece in names[name])
    if counted:
        progress(counted, total)

    def advance(num_bytes: int) -> None:
        nonlocal counted
        counted = min(counted + num_bytes, total)
        progress(counted, total)

    maker = ShardMaker(work, column, packed)
    open_parts = {name: part for name, part in names.items() if name not in done}
    todo_bytes = sum(piece.num_bytes for part in open_parts.values() for piece in part)
    several = processes > 1 and len(open_parts) > 1 and todo_bytes >= _WORTH_PROCESSES_BYTES
    made = (
        _in_processes(work, open_parts, column, packed, processes, advance)
        if several
        else (maker.make(name, part, advance) for name, part in open_parts.items())
    )
    for finished in made:
        append_text(work / _FINISHED, json.dumps(asdict(finished) | {"shard": finished.shard.model_dump()}) + "\n")
        done[finished.name] = finished
    card = _card(maker, [done[name] for name in names], source, packed, hash_file(work / _TOKENIZER))
    write_atomic(work / CARD, card.model_dump_json(indent=2) + "\n")
    (work / _FINISHED).unlink()
    return card


def _in_processes(
    work: Path,
    parts: dict[str, Sequence[Piece]],
    column: str | None,
    packed: int | None,
    processes: int,
    advance: Callable[[int], None],
) -> Iterator[Made]:
    pool = ProcessPoolExecutor(
        min(processes, len(parts)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=begin_process,
        initargs=(os.getpid(), work, column, packed),
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
        if file.name not in (*kept, _FINISHED, _TOKENIZER):
            file.unlink()
    return kept


def _card(
    maker: ShardMaker, made: Sequence[Made], source: str, packed: int | None, tokenizer_sha256: str
) -> DatasetCard:
    shards = {one.name: one.shard for one in made}
    return DatasetCard(
        source=source,
        fingerprint=fingerprint([maker.dtype.str, packed, *(shard.sha256 for shard in shards.values())]),
        shards=shards,
        vocabulary=maker.vocabulary,
        dtype=maker.dtype.str,
        num_bytes_of_text=sum(one.num_bytes_of_text for one in made),
        packed=packed,
        padding_tokens=sum(one.padding_tokens for one in made),
        tokenizer_sha256=tokenizer_sha256,
    )
