"""Tables as written by hand: commas, semicolons or tabs, cells that are empty or marked as empty.

The table is read leniently, its cells strictly: a required cell contains a number, or the row is refused with the
cell's name and text.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from trainworks.config.limits import check_limit
from trainworks.errors import UsageError

Row = Mapping[str, str]
"""Cells by name of the column."""

_DELIMITERS = ",;\t|"
_ABSENT = {"", "-", "--", "?", "n/a", "na", "nan", "nil", "null", "<na>", "unknown", "not printed", "not stated"}
_TRUE, _FALSE = {"true", "yes", "on", "1", "y", "t"}, {"false", "no", "off", "0", "n", "f", "none"}


class _FileRow(dict[str, str]):
    """A row with its line number, and the reason if that line could not be read."""

    def __init__(self, cells: Iterable[tuple[str, str]], line: int, problem: str | None) -> None:
        super().__init__((name, cell.strip()) for name, cell in cells)
        self["id"] = self.get("id") or f"line {line}"
        self.line = line
        self.problem = problem


def read_table(path: Path, columns: Sequence[str]) -> list[Row]:
    """All rows of a table; a row without an id is called by its line.

    The first line of the text table names its columns, in any order and any case. Other `columns` than these are kept,
    and one of these has to be there.

    Raises:
        UsageError: no such file, no text table, or none of the columns.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        hint = "give the path of a CSV file" if not path.exists() else None
        raise UsageError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}", hint=hint) from None
    if b"\0" in content[:4096]:
        raise UsageError(f"`{path}` is not a text table: it contains zero bytes", hint="save it as CSV in UTF-8")
    lines = content.decode("utf-8-sig", errors="replace").splitlines(keepends=True)
    if not lines or not lines[0].strip():
        raise UsageError(f"`{path}` has no columns: its first line is empty", hint=_expected(columns))
    delimiter = max(_DELIMITERS, key=lambda mark: len(set(columns) & set(_header(lines[0], mark))))
    header = _header(lines[0], delimiter)
    if not set(columns) & set(header):
        found = ", ".join(f"`{name}`" for name in header[:6])
        raise UsageError(f"`{path}` has no known column: {found}", place=f"{path}:1", hint=_expected(columns))
    return _rows(lines, header, delimiter)


def line_of(row: Row) -> int | None:
    """Line of the table that a row ends on; None for a row without a file."""
    return row.line if isinstance(row, _FileRow) else None


def check_readable(row: Row) -> None:
    """Refuse a row whose line is not comma-separated text.

    Raises:
        UsageError: the line could not be read.
    """
    if isinstance(row, _FileRow) and row.problem is not None:
        raise UsageError(f"the line cannot be read: {row.problem}")


def _rows(lines: list[str], header: list[str], delimiter: str) -> list[Row]:
    reader = csv.reader(lines[1:], delimiter=delimiter)
    rows: list[Row] = []
    while True:
        problem = None
        try:
            cells = next(reader, None)
        except csv.Error as error:
            cells, problem = [""], str(error)
        if cells is None:
            return rows
        if cells:
            rows.append(_FileRow(zip(header, cells, strict=False), reader.line_num + 1, problem))


def _header(line: str, delimiter: str) -> list[str]:
    names = next(csv.reader(io.StringIO(line), delimiter=delimiter), [])
    return [re.sub(r"[\s-]+", "_", name.strip().lower()) for name in names]


def _expected(columns: Sequence[str]) -> str:
    return f"the first line names columns such as {', '.join(f'`{name}`' for name in columns[:8])}"


def text_of(row: Row, name: str) -> str:
    """Text of a cell; empty if the column is missing or the cell is marked as empty.

    >>> text_of({"model": " n/a "}, "model"), text_of({}, "model")
    ('', '')
    """
    text = (row.get(name) or "").strip()
    return "" if text.lower() in _ABSENT else text


def number_of(row: Row, name: str) -> float | None:
    """Number in a cell; None without one.

    The middle of a range; commas and blanks separate thousands, and the unit of the column's name may follow.

    Raises:
        UsageError: the text is not a finite number, it is negative, or it is above the limit of the column.

    >>> number_of({"batch": "1,536"}, "batch"), number_of({"tflops": "149-150"}, "tflops")
    (1536.0, 149.5)
    >>> number_of({"iteration_time_s": "3.5 s"}, "iteration_time_s")
    3.5
    """
    text = text_of(row, name)
    if not text or text.lower() == "none":
        return None
    plain = re.sub(r"(?<=\d)[, _'](?=\d{3}(?:\D|$))", "", text.lstrip("~\u2248= ").rstrip("%").strip())
    unit = re.search(r"\s*[A-Za-z]+$", plain)
    if unit and unit[0].strip().lower() in name.split("_"):
        plain = plain[: unit.start()]
    parts = re.fullmatch(r"([0-9.]+)\s*(?:-|\u2013|to|\.\.)\s*([0-9.]+)", plain)
    try:
        value = (float(parts[1]) + float(parts[2])) / 2 if parts else float(plain)
    except ValueError:
        raise UsageError(f"{name} `{text}` is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{name} `{text}` is not a number above zero")
    check_limit(name, int(value))
    return value


def whole_of(row: Row, name: str) -> int | None:
    """Integer in a cell; None without one, and for 0, which often means "not used".

    Raises:
        UsageError: the text is not an integer.
    """
    value = number_of(row, name)
    if value is not None and value != round(value):
        raise UsageError(f"{name} `{text_of(row, name)}` is not a whole number")
    return round(value) if value else None


def needed_number(row: Row, name: str) -> float:
    """A number that the row has to have.

    Raises:
        UsageError: there is none.
    """
    value = number_of(row, name)
    if not value:
        raise UsageError(f"{name} is empty")
    return value


def needed_whole(row: Row, name: str) -> int:
    """A whole number that the row has to have.

    Raises:
        UsageError: there is none.
    """
    value = whole_of(row, name)
    if value is None:
        raise UsageError(f"{name} is empty")
    return value


def flag_of(row: Row, name: str) -> bool | None:
    """True or False for a cell with yes or no; None for other text.

    >>> flag_of({"seqpar": "TRUE"}, "seqpar"), flag_of({"seqpar": ""}, "seqpar")
    (True, None)
    """
    text = text_of(row, name).lower()
    return True if text in _TRUE else False if text in _FALSE else None
