"""Files of a text source, their division into parts, and the documents of a part. One part becomes one shard.

The division depends on the source alone, never on how many processes tokenize it, so that shards are identical for any
number of processes and interruptions.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, cast

from trainworks.config.data import DataSource
from trainworks.errors import EnvironmentProblem, UsageError, suggest
from trainworks.host.corpus import anchored_source, source_files
from trainworks.worker.data.split import Side
from trainworks.worker.data.store import Store, extra, naming_store

Format = Literal["text", "jsonl", "parquet", "arrow"]

_SMALLEST_PART_BYTES = 1_000_000
_LARGEST_PART_BYTES = 64_000_000
_PARTS = 64
_FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".arrow": "arrow"}
_IMAGES = (".jpg", ".jpeg", ".png", ".webp")
_OF_DATASETS = ("dataset_dict.json", "state.json")


@dataclass(frozen=True, slots=True)
class Input:
    """A file of a source."""

    address: str
    format: Format
    num_bytes: int
    version: str
    """Changes when the content does: a modification time, or a store's ETag."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of a file: bytes of JSONL, row groups of Parquet, record batches of Arrow; a text file is never cut."""

    address: str
    format: Format
    start: int
    stop: int
    num_bytes: int
    side: Side | None = None
    """Side of a split whose documents are read; all of them when None."""


def find_inputs(source: DataSource) -> list[Input]:
    """The files of a source, in a fixed order.

    Raises:
        UsageError: there are none, or they are not text.
        EnvironmentProblem: a store or the hub does not answer.
        MissingExtraError: a library is not installed.
    """
    if source.scheme == "hf":
        return [_local_input(file) for file in _hub_files(source)]
    if source.scheme is not None:
        return [_stored_input(source, path, info) for path, info in Store(source.source).files()]
    folder = Path(anchored_source(source.source))
    if any((folder / name).is_file() for name in _OF_DATASETS):
        return [_local_input(file) for file in _saved_files(folder, source.split)]
    return [_local_input(file) for file in source_files(source)]


def part_bytes_for(inputs: Sequence[Input]) -> int:
    """Text per shard: a 64th of the source, at least 1 MB and at most 64 MB."""
    total = sum(file.num_bytes for file in inputs)
    return min(max(total // _PARTS, _SMALLEST_PART_BYTES), _LARGEST_PART_BYTES)


def parts_of(inputs: Sequence[Input], part_bytes: int, side: Side | None = None) -> list[list[Piece]]:
    """Pieces of about `part_bytes` together, in order, to read one side of a split or everything."""
    parts: list[list[Piece]] = [[]]
    size = 0
    for piece in (replace(piece, side=side) for file in inputs for piece in _pieces(file, part_bytes)):
        if size and size + piece.num_bytes > part_bytes:
            parts.append([])
            size = 0
        parts[-1].append(piece)
        size += piece.num_bytes
    return parts


def _pieces(file: Input, part_bytes: int) -> Iterator[Piece]:
    if file.format == "jsonl" and not file.address.endswith(".gz"):
        for start in range(0, file.num_bytes, part_bytes):
            stop = min(start + part_bytes, file.num_bytes)
            yield Piece(file.address, file.format, start, stop, stop - start)
    elif file.format in ("parquet", "arrow"):
        yield from _grouped(file, _group_sizes(file), part_bytes)
    else:
        yield Piece(file.address, file.format, 0, file.num_bytes, file.num_bytes)


def _grouped(file: Input, sizes: list[int], part_bytes: int) -> Iterator[Piece]:
    """Neighbouring row groups of about `part_bytes` together."""
    start = size = 0
    for number, group_bytes in enumerate(sizes):
        size += group_bytes
        if size >= part_bytes or number == len(sizes) - 1:
            yield Piece(file.address, file.format, start, number + 1, size)
            start, size = number + 1, 0


def _group_sizes(file: Input) -> list[int]:
    if file.format == "arrow":
        with extra("pyarrow", "data").memory_map(file.address) as mapped:
            return [batch.nbytes for batch in extra("pyarrow.ipc", "data").open_stream(mapped)]
    store = Store(file.address)
    with naming_store(file.address), store.fs.open(store.root, "rb") as opened:
        metadata = extra("pyarrow.parquet", "data").ParquetFile(opened).metadata
        return [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]


def _format(path: str) -> Format:
    suffixes = Path(path.removesuffix(".gz")).suffix.lower()
    if suffixes in _IMAGES:
        raise UsageError(f"`{path}` is an image, not text", hint="set `task: image-classification`, or a glob of texts")
    return _FORMATS.get(suffixes, "text")


def _local_input(file: Path) -> Input:
    stat = file.stat()
    return Input(str(file), _format(str(file)), stat.st_size, str(stat.st_mtime_ns))


def _stored_input(source: DataSource, path: str, info: Mapping[str, Any]) -> Input:
    version = next((str(info[key]) for key in ("ETag", "etag", "LastModified", "mtime", "created") if key in info), "")
    return Input(f"{source.scheme}://{path.removeprefix(f'{source.scheme}://')}", _format(path), info["size"], version)


def _saved_files(folder: Path, split: str | None) -> list[Path]:
    """Arrow files of a dataset, or of a split of several, that `datasets` saved to disk."""
    splits = folder / "dataset_dict.json"
    if splits.is_file():
        known = json.loads(splits.read_bytes())["splits"]
        return _saved_files(folder / _one_of("split", split or "train", known, str(folder)), None)
    if split is not None:
        raise UsageError(f"`{folder}` is one dataset without splits; it has no `{split}`", hint="leave `split` out")
    return [folder / file["filename"] for file in json.loads((folder / "state.json").read_bytes())["_data_files"]]


def _hub_files(source: DataSource) -> list[Path]:
    """Arrow files of a dataset of the hub, downloaded by `datasets` into its own cache."""
    datasets = extra("datasets", "hf")
    name, split = source.source.removeprefix("hf://"), source.split or "train"
    try:
        dataset = datasets.load_dataset(name, source.config, split=split)
    except Exception as error:  # the hub's, the network's and the builder's own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise EnvironmentProblem(
            f"cannot load `{source.source}`, split `{split}`, from the hub: {reason}",
            hint="check the id and the network; a dataset that `datasets` saved to a folder needs none",
        ) from None
    return [Path(file["filename"]) for file in dataset.cache_files]


def _one_of(what: str, wanted: str, known: Sequence[str], where: str) -> str:
    if wanted in known:
        return wanted
    raise UsageError(
        f"`{where}` has no {what} `{wanted}`", hint=suggest(wanted, known, otherwise=f"there are {', '.join(known)}")
    )


@dataclass(frozen=True, slots=True)
class Record:
    """A JSONL line, or a row of Parquet or Arrow."""

    fields: Mapping[str, Any]
    place: Callable[[], str]
    """`file:line` or `file, row n`, found when an error needs it."""


def records(pieces: Sequence[Piece]) -> Iterator[Record]:
    """The records of `pieces`, in order.

    Raises:
        UsageError: a line is not a JSON object, or the files are text.
        EnvironmentProblem: a store does not answer.
    """
    read = {"jsonl": _json_records, "parquet": _parquet_records, "arrow": _arrow_records}
    for piece in pieces:
        if piece.format == "text":
            raise UsageError(f"`{piece.address}` is text, not records", hint="name JSONL (`.jsonl`) or Parquet files")
        for record in read[piece.format](piece):
            if piece.side is None or piece.side.has(json.dumps(record.fields, sort_keys=True, default=str).encode()):
                yield record


_TEXT_COLUMNS = ("text", "content")


def documents(pieces: Sequence[Piece], column: str | None) -> Iterator[str]:
    """The texts of `pieces`, in order; bytes that are not UTF-8 become U+FFFD.

    The text is in the key or column `column`; in `text`, `content` or the only column of text when None.

    Raises:
        UsageError: a line is not JSON, or the column does not exist.
        EnvironmentProblem: a store does not answer.
    """
    read = {"text": _text, "jsonl": _jsonl, "parquet": _parquet, "arrow": _arrow}
    for piece in pieces:
        texts = read[piece.format](piece, column)
        yield from texts if piece.side is None else piece.side.documents(texts)


def _open(piece: Piece) -> IO[bytes]:
    store = Store(piece.address)
    with naming_store(piece.address):
        opened: IO[bytes] = store.fs.open(store.root, "rb")
        return cast(IO[bytes], gzip.open(opened)) if piece.address.endswith(".gz") else opened


def _text(piece: Piece, column: str | None) -> Iterator[str]:
    with _open(piece) as file, naming_store(piece.address):
        content = file.read()
    yield content.decode("utf-8", errors="replace")


def _jsonl(piece: Piece, column: str | None) -> Iterator[str]:
    for record in _json_records(piece):
        key = column or next((name for name in _TEXT_COLUMNS if name in record.fields), None)
        if key is None or key not in record.fields:
            raise _no_column(record.place(), column, list(record.fields))
        text = record.fields[key]
        if not isinstance(text, str):
            raise UsageError(f"{record.place()}: `{key}` is {type(text).__name__}, not text")
        yield text


def _json_records(piece: Piece) -> Iterator[Record]:
    """Lines that begin in the piece's range; a line belongs to the piece that holds its first byte."""
    with _open(piece) as file:
        whole = piece.address.endswith(".gz")
        if piece.start:
            file.seek(piece.start - 1)
            file.readline()
        position = file.tell()
        while whole or position < piece.stop:
            with naming_store(piece.address):
                line = file.readline()
            if not line:
                return
            if line.strip():
                yield _record_of_line(line, functools.partial(_place, piece, position))
            position += len(line)


def _record_of_line(line: bytes, place: Callable[[], str]) -> Record:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place()}: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise UsageError(f'{place()}: a line is an object, like {{"text": ...}}')
    return Record(fields, place)


def _place(piece: Piece, position: int) -> str:
    """`file:line`, counted on demand."""
    with _open(piece) as file:
        number = 1 + file.read(position).count(b"\n")
    return f"`{piece.address}:{number}`"


def _parquet(piece: Piece, column: str | None) -> Iterator[str]:
    with _open(piece) as opened, naming_store(piece.address):
        file = extra("pyarrow.parquet", "data").ParquetFile(opened)
        name = _text_column(file.schema_arrow, column, piece.address)
        for group in range(piece.start, piece.stop):
            yield from _texts(file.read_row_group(group, columns=[name]).column(name), name, piece.address)


def _parquet_records(piece: Piece) -> Iterator[Record]:
    with _open(piece) as opened, naming_store(piece.address):
        file = extra("pyarrow.parquet", "data").ParquetFile(opened)
        first = sum(file.metadata.row_group(group).num_rows for group in range(piece.start))
        for group in range(piece.start, piece.stop):
            rows = file.read_row_group(group).to_pylist()
            yield from _numbered(rows, first, piece.address)
            first += len(rows)


def _arrow_records(piece: Piece) -> Iterator[Record]:
    with extra("pyarrow", "data").memory_map(piece.address) as mapped:
        first = 0
        for number, batch in enumerate(extra("pyarrow.ipc", "data").open_stream(mapped)):
            if piece.start <= number < piece.stop:
                yield from _numbered(batch.to_pylist(), first, piece.address)
            first += batch.num_rows


def _numbered(rows: Sequence[Mapping[str, Any]], first: int, address: str) -> Iterator[Record]:
    """Rows without the columns in which they have nothing."""
    for number, row in enumerate(rows, start=first + 1):
        fields = {name: value for name, value in row.items() if value is not None}
        yield Record(fields, functools.partial("`{}`, row {:,}".format, address, number))


def _arrow(piece: Piece, column: str | None) -> Iterator[str]:
    with extra("pyarrow", "data").memory_map(piece.address) as mapped:
        stream = extra("pyarrow.ipc", "data").open_stream(mapped)
        name = _text_column(stream.schema, column, piece.address)
        for number, batch in enumerate(stream):
            if piece.start <= number < piece.stop:
                yield from _texts(batch.column(name), name, piece.address)


def _texts(values: Any, name: str, address: str) -> Iterator[str]:
    for text in values.to_pylist():
        if text is None:
            raise UsageError(f"`{address}`: column `{name}` has rows without text", hint="drop them first")
        yield text


def _text_column(schema: Any, wanted: str | None, address: str) -> str:
    types = extra("pyarrow", "data").types
    texts = [field.name for field in schema if types.is_string(field.type) or types.is_large_string(field.type)]
    preferred = [name for name in _TEXT_COLUMNS if name in texts] or (texts if len(texts) == 1 else [])
    chosen = wanted or next(iter(preferred), None)
    if chosen not in texts:
        raise _no_column(f"`{address}`", wanted, texts)
    return str(chosen)


def _no_column(place: str, wanted: str | None, known: list[str]) -> UsageError:
    if wanted is None:
        return UsageError(f"{place}: which of {', '.join(known) or 'no column'} is the text?", hint="set `column`")
    hint = suggest(wanted, known, otherwise=f"text is in {', '.join(known) or 'no column'}")
    return UsageError(f"{place} has no text in `{wanted}`", hint=hint)
