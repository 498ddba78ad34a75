"""From text files to tokenized shards, once per text and tokenizer, cached.

<cache>/data/<key>/dataset.json   what it is; written last, so that the folder is complete or absent
                   tokenizer.json
                   tokens-00000.bin ...   little-endian uint16 (uint32 for vocabularies over 65,536)
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainworks.errors import EnvironmentProblem, TrainworksError, UsageError
from trainworks.files import naming_full_disk, write_atomic
from trainworks.host.corpus import STDLIB, source_files
from trainworks.host.folders import cache_folder
from trainworks.record.events import append_event
from trainworks.spec.quantities import Spec
from trainworks.spec.run_file import TRAINED_VOCABULARY, Data

__all__ = ["DatasetCard", "end_of_text", "prepare", "prepare_for_run", "read_card"]

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""What closes a document: the first that the tokenizer knows. A trained one knows the first."""
CARD = "dataset.json"
_TRAINING_SAMPLE_BYTES = 6_000_000
_BATCH_BYTES = 2_000_000
_SHARD_TOKENS = 1 << 27

_PROGRESS_INTERVAL_S = 0.5

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


class DatasetCard(Spec):
    """What a folder of tokenized shards holds."""

    source: str
    vocabulary: int
    dtype: str
    shards: dict[str, int]
    """Tokens in each shard file, in order."""
    num_bytes_of_text: int
    fingerprint: str
    """SHA-256 over all tokens: the same fingerprint is the same training data."""

    @property
    def num_tokens(self) -> int:
        """Tokens in all shards."""
        return sum(self.shards.values())


def prepare(data: Data, cache: Path, progress: Progress = lambda done, total: None) -> tuple[Path, DatasetCard]:
    """The folder of tokenized shards for `data`, made now if it is not there; one process at a time makes it.

    Raises:
        UsageError: the source names no files, or holds too little text for one sequence.
        EnvironmentProblem: the tokenizer file cannot be read.
        DiskFullError: no space for the shards; nothing is left behind.
    """
    files = source_files(data.source)
    folder = cache / _cache_key(data, files)
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if not (folder / CARD).exists():
            _make(data, files, folder, progress)
    card = read_card(folder)
    if card.num_tokens <= data.sequence_length:
        raise UsageError(
            f"`{data.source}` holds {card.num_tokens} tokens, fewer than one sequence of {data.sequence_length} + 1",
            hint="lower `data.sequence_length` or name more text",
        )
    return folder, card


def prepare_for_run(data: Data, cache: Path, events_file: Path | None, *, model_vocabulary: int) -> Path:
    """`prepare` with its progress and result written as events; silent when `events_file` is None.

    Raises:
        UsageError: the tokenizer has more entries than the model's embedding, besides `prepare`'s errors.
    """
    started = last = time.monotonic()
    made = False

    def report(done: int, total: int) -> None:
        nonlocal last, made
        made = True
        if events_file is not None and time.monotonic() - last >= _PROGRESS_INTERVAL_S:
            last = time.monotonic()
            append_event(events_file, "data_progress", done_bytes=done, total_bytes=total)

    folder, card = prepare(data, cache, report)
    if card.vocabulary > model_vocabulary:
        raise UsageError(
            f"the tokenizer has {card.vocabulary} entries, the model {model_vocabulary}",
            hint="take the tokenizer that belongs to the model",
        )
    if events_file is not None:
        append_event(
            events_file,
            "data_ready",
            folder=str(folder),
            num_tokens=card.num_tokens,
            fingerprint=card.fingerprint,
            seconds=time.monotonic() - started,
            cached=not made,
        )
    return folder


def read_card(folder: Path) -> DatasetCard:
    """The card of a complete folder of shards."""
    return DatasetCard.model_validate_json((folder / CARD).read_bytes())


def _cache_key(data: Data, files: list[Path]) -> str:
    facts = [(str(file), stat.st_size, stat.st_mtime_ns) for file in files for stat in [file.stat()]]
    tokenizer = (
        _hash_of(Path(data.tokenizer)) if data.tokenizer != "bpe" else f"bpe-{data.vocabulary or TRAINED_VOCABULARY}"
    )
    key = hashlib.sha256(json.dumps([1, tokenizer, facts]).encode()).hexdigest()[:16]
    return f"{STDLIB if data.source == STDLIB else 'files'}-{key}"


def _hash_of(tokenizer: Path) -> str:
    try:
        return hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    except OSError as error:
        raise EnvironmentProblem(f"cannot read tokenizer `{tokenizer}`: {error.strerror}") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(data: Data, files: list[Path], folder: Path, progress: Progress) -> None:
    for abandoned in folder.parent.glob(f".{folder.name}.*"):  # by one that was killed: we hold the lock
        shutil.rmtree(abandoned, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with naming_full_disk(folder):
            tokenizer = _train_tokenizer(data, files) if data.tokenizer == "bpe" else _load(data.tokenizer)
            tokenizer.save(str(temporary / "tokenizer.json"))
            card = _write_shards(tokenizer, data, files, temporary, progress)
            write_atomic(temporary / CARD, card.model_dump_json(indent=2) + "\n")
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _load(path: str) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises plain Exception
        raise EnvironmentProblem(f"`{path}` is not a tokenizer.json: {error}") from None
    return tokenizer


def end_of_text(tokenizer: Tokenizer) -> int | None:
    """The token that closes a document; None if the tokenizer has none, and documents then follow each other."""
    known = (tokenizer.token_to_id(name) for name in END_OF_TEXT)
    return next((token for token in known if token is not None), None)


def _train_tokenizer(data: Data, files: list[Path]) -> Tokenizer:
    """A byte-level BPE tokenizer, trained on files spread evenly over the source."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=data.vocabulary or TRAINED_VOCABULARY,
        special_tokens=[END_OF_TEXT[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    total = sum(file.stat().st_size for file in files)
    every = max(1, round(total / _TRAINING_SAMPLE_BYTES))
    tokenizer.train_from_iterator((_text(file) for file in files[::every]), trainer)
    return tokenizer


def _write_shards(tokenizer: Tokenizer, data: Data, files: list[Path], folder: Path, progress: Progress) -> DatasetCard:
    vocabulary = 1 + max(tokenizer.get_vocab().values())
    dtype = np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")
    shards: dict[str, int] = {}
    digest, done = hashlib.sha256(), 0
    total = sum(file.stat().st_size for file in files)
    for tokens, num_bytes in _encoded(tokenizer, files, dtype):
        name = _shard_with_room(shards, len(tokens))
        with (folder / name).open("ab") as shard:
            shard.write(tokens.tobytes())
            os.fsync(shard.fileno())
        shards[name] = shards.get(name, 0) + len(tokens)
        digest.update(tokens.tobytes())
        done += num_bytes
        progress(done, total)
    return DatasetCard(
        source=data.source,
        vocabulary=vocabulary,
        dtype=dtype.str,
        shards=shards,
        num_bytes_of_text=done,
        fingerprint=digest.hexdigest(),
    )


def _shard_with_room(shards: dict[str, int], num_tokens: int) -> str:
    last = next(reversed(shards), None)
    if last is not None and shards[last] + num_tokens <= _SHARD_TOKENS:
        return last
    return f"tokens-{len(shards):05d}.bin"


def _encoded(
    tokenizer: Tokenizer, files: list[Path], dtype: np.dtype[np.unsignedinteger]
) -> Iterator[tuple[NDArray[np.unsignedinteger], int]]:
    """Batches of documents as one array of tokens, each document closed by `end_of_text`, and their size as text."""
    end = end_of_text(tokenizer)
    closing = [] if end is None else [end]
    for batch in _batches(files):
        encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        parts = [np.array(encoding.ids + closing, dtype=dtype) for encoding in encodings]
        yield np.concatenate(parts), sum(len(text.encode()) for text in batch)


def _batches(files: list[Path]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for file in files:
        batch.append(_text(file))
        size += len(batch[-1])
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _text(file: Path) -> str:
    return file.read_bytes().decode("utf-8", errors="replace")


def _main(data_json: str) -> int:
    """`python -m trainworks.worker.prepare DATA_JSON`: prepare, and print the size of the data."""
    try:
        _, card = prepare(Data.model_validate_json(data_json), cache_folder("data"))
    except TrainworksError as error:
        print(error.message, file=sys.stderr)  # noqa: T201
        return error.exit_code
    print(json.dumps({"num_tokens": card.num_tokens}))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
