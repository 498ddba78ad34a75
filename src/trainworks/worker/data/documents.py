"""The documents of a part, one text after the other."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from typing import IO, Any, cast

from trainworks.errors import UsageError, suggest
from trainworks.worker.data.extras import extra
from trainworks.worker.data.inputs import Piece
from trainworks.worker.data.store import Store, naming_store

_TEXT_COLUMNS = ("text", "content")


def documents(pieces: Sequence[Piece], column: str | None) -> Iterator[str]:
    """The texts of `pieces`, in order; bytes that are not UTF-8 become U+FFFD.

    Args:
        pieces: of any format.
        column: key or column of the text; `text`, `content` or the only column of text when None.

    Raises:
        UsageError: a line is not JSON, or there is no such column.
        EnvironmentProblem: a store does not answer.
    """
    read = {"text": _text, "jsonl": _jsonl, "parquet": _parquet, "arrow": _arrow}
    for piece in pieces:
        yield from read[piece.format](piece, column)


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
                yield _text_of_line(line, column, piece, position)
            position += len(line)


def _text_of_line(line: bytes, column: str | None, piece: Piece, position: int) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{_place(piece, position)}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise UsageError(f'{_place(piece, position)}: a line is an object, like {{"text": ...}}')
    key = column or next((name for name in _TEXT_COLUMNS if name in record), None)
    if key is None or key not in record:
        raise _no_column(_place(piece, position), column, list(record))
    if not isinstance(record[key], str):
        raise UsageError(f"{_place(piece, position)}: `{key}` is {type(record[key]).__name__}, not text")
    return record[key]


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
