"""The metrics of a run as columns that grow with the file: every look reads only what was added since the last one."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trainworks.record.metrics import MetricsRow

COLUMNS = (
    *("step", "attempt", "t", "loss", "grad_norm", "lr", "tokens", "step_s"),
    *("data_s", "compute_s", "communication_s", "optimizer_s", "checkpoint_s", "other_s", "memory_peak_bytes"),
)
"""Names of all columns; NaN where a row lacks the value."""
_EXACT = frozenset(("step", "t", "memory_peak_bytes"))
"""Columns of 8 bytes a value; the others have 4, which is precise enough to draw."""
_CHUNK_BYTES = 1 << 20
"""What one look reads at most, so that a large file does not keep its readers waiting."""

Floats = NDArray[np.float64]


class MetricColumns:
    """Columns of a metrics file.

    Args:
        file: `metrics.jsonl`, which need not exist yet.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.offset = 0
        """First byte that was not read yet."""
        self._columns = {name: array("d" if name in _EXACT else "f") for name in COLUMNS}

    def __len__(self) -> int:
        return len(self._columns["step"])

    def look(self, most_bytes: int = _CHUNK_BYTES) -> bool:
        """Read the lines that were added, of at most `most_bytes`; False if there are more.

        A line without its newline is left for the next look; a file that became shorter is read from its beginning.
        """
        try:
            with self._file.open("rb") as file:
                size = file.seek(0, 2)
                if size < self.offset:
                    self._clear()
                file.seek(self.offset)
                data = file.read(most_bytes)
        except FileNotFoundError:
            return True
        complete = data[: data.rfind(b"\n") + 1]
        self.offset += len(complete)
        rows = _rows(complete)
        for name, column in self._columns.items():
            column.extend([row.get(name, np.nan) for row in rows])
        return not complete or self.offset >= size

    def _clear(self) -> None:
        self.offset = 0
        for column in self._columns.values():
            del column[:]

    def column(self, name: str) -> Floats:
        """A copy of a column, in the order of the file."""
        return np.array(self._columns[name], dtype=np.float64)

    def last(self) -> MetricsRow | None:
        """The last row; None before the first one."""
        if not len(self):
            return None
        row: dict[str, Any] = {name: column[-1] for name, column in self._columns.items()}
        return cast(MetricsRow, row | {name: int(row[name]) for name in ("step", "attempt", "tokens")})

    def lost(self, returns: Iterable[tuple[float, int]]) -> NDArray[np.bool_]:
        """True for every row whose step was done again later, or undone.

        Args:
            returns: time of every restart or rollback, and the step from which training continued.
        """
        step, written_at = self.column("step"), self.column("t")
        limit = np.full(len(step), np.inf)
        if len(step) > 1:
            limit[:-1] = np.minimum.accumulate(step[:0:-1])[::-1]
        back = sorted(returns)
        if back:
            first_again = np.array([[at, to + 1] for at, to in back] + [[np.inf, np.inf]])
            lowest = np.minimum.accumulate(first_again[::-1, 1])[::-1]
            limit = np.minimum(limit, lowest[np.searchsorted(first_again[:, 0], written_at, side="left")])
        return step >= limit


def _rows(data: bytes) -> list[dict[str, Any]]:
    """The JSON objects of whole lines; a line that is none, because its writer was killed, is left out."""
    lines = data.splitlines()
    try:
        found = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        found = [_object(line) for line in lines]
    return [row for row in found if isinstance(row, dict) and _is_row(row)]


def _object(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _is_row(row: dict[str, Any]) -> bool:
    return all(isinstance(row.get(name, 0.0), int | float) for name in COLUMNS) and {"step", "t"} <= row.keys()


def thinned(values: Sequence[float] | Floats, limit: int) -> NDArray[np.intp]:
    """Indices of at most `limit` values that keep every spike: the lowest and highest of each of limit/2 equal buckets.

    The first and the last value stay; values that are not finite are left out.

    >>> thinned([0.0, 5.0, 1.0, 2.0, 9.0, 3.0, 4.0, 1.0], 6).tolist()
    [0, 1, 4, 7]
    """
    finite = np.flatnonzero(np.isfinite(values))
    if len(finite) <= limit:
        return finite
    kept_values, buckets = np.asarray(values, dtype=np.float64)[finite], max(1, limit // 2 - 1)
    ends = np.arange(buckets + 1) * len(finite) // buckets
    kept = {0, len(finite) - 1}
    for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        bucket = kept_values[begin:end]
        kept |= {begin + int(bucket.argmin()), begin + int(bucket.argmax())}
    return finite[sorted(kept)]
