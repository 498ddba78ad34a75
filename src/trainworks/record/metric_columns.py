"""Read the metrics of a run as columns that grow with the file: every look reads only what was added since the last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from trainworks.record.faults import FAULTS
from trainworks.record.metrics import named_figures
from trainworks.record.step_time import StepTimeGroups

COLUMNS = (
    *("step", "attempt", "t", "loss", "grad_norm", "lr", "tokens", "step_s"),
    *("data_s", "compute_s", "communication_s", "optimizer_s", "checkpoint_s", "other_s", "memory_peak_bytes"),
    "overflow",
)
"""Numbers of a row; NaN where a row lacks the value."""
CURVES = (*COLUMNS, "tokens_per_s", "accuracy", "eval_loss", "eval_accuracy")
"""Numbers of a row that a curve can show: columns, and what follows from them."""
_SKIPPED = (*FAULTS, "loss_scale")
EVALUATION_COLUMNS = ("evaluation_s", "eval_loss", "eval_accuracy", "eval_samples")
"""Numbers of a row whose step was evaluated; NaN in every other row."""
SLOWEST_COLUMNS = ("slowest_rank", "slowest_extra_s", "slowest_extra_data_s")
"""Fields of `slowest`, on the last row of a logging interval."""
CALLBACK_COLUMNS = ("callbacks_longest", "callbacks_longest_s", "callbacks_total_s")
"""Fields of `callbacks`, on the last row of a logging interval."""
_ALL = (
    *(*COLUMNS, "accuracy", *EVALUATION_COLUMNS, "skipped", *SLOWEST_COLUMNS),
    *("callback_s", *CALLBACK_COLUMNS, "num_steps", "alone"),
)
"""With the reason of a skipped step as its index in `_SKIPPED`; `alone` is 1 of an evaluation or figures alone."""
_CHUNK_BYTES = 1 << 20
"""Lines that are decoded at once: their objects take several times the memory of their text."""

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
_Figures = Mapping[str, Mapping[int, Mapping[str, float]]]


class Steps:
    """Rows of metrics by column: `steps["loss"]` holds one loss per row.

    Args:
        columns: of the whole record, see `COLUMNS`.
        rows: indexes of the chosen rows, in order.
        figures: by the index of their row, of evaluations and of programs; see `named_figures`.
    """

    def __init__(self, columns: Mapping[str, Floats], rows: NDArray[np.intp], figures: _Figures) -> None:
        self._columns = columns
        self.rows = rows
        self._figures = figures

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> Floats:
        return self._columns[column][self.rows]

    def where(self, wanted: Mask | NDArray[np.intp] | slice) -> Steps:
        """The rows that a mask, indexes or a slice choose."""
        return Steps(self._columns, self.rows[wanted], self._figures)

    def joined(self, others: Iterable[Steps]) -> Steps:
        """These rows and others of the same record, one after the other."""
        return Steps(self._columns, np.concatenate([self.rows, *(other.rows for other in others)]), self._figures)

    def figures(self, kind: Literal["evaluation", "program"]) -> list[tuple[int, Mapping[str, float]]]:
        """Step and named figures of the evaluations, or what a program says beside its loss, in the order of rows."""
        steps, figures = self["step"].tolist(), self._figures[kind]
        return [
            (int(step), figures[row]) for step, row in zip(steps, self.rows.tolist(), strict=True) if row in figures
        ]

    def evaluated(self) -> Steps:
        """The rows of evaluations; of those of one step the last, which has the values of all."""
        found = self.where(np.isfinite(self["evaluation_s"]))
        return found.where(np.append(found["step"][1:] != found["step"][:-1], [True] * (len(found) > 0)).astype(bool))

    def trained(self) -> Steps:
        """The rows of training steps, without those that are an evaluation or figures alone."""
        return self.where((self.num_steps > 0) & np.isnan(self["alone"]))

    @property
    def num_steps(self) -> Floats:
        """Steps that each row stands for; 0 for an evaluation alone."""
        return np.where(np.isnan(self["num_steps"]), 1.0, self["num_steps"])

    @property
    def training_s(self) -> Floats:
        """Duration of each step without the evaluation and the callbacks after it."""
        return self["step_s"] - np.nan_to_num(self["evaluation_s"]) - np.nan_to_num(self["callback_s"])

    @property
    def tokens_per_s(self) -> Floats:
        """Throughput of each step; NaN where its tokens or its duration are not known."""
        seconds = self.training_s
        rates: Floats = np.divide(self["tokens"], seconds, out=np.full(len(self), np.nan), where=seconds > 0)
        return rates

    def curve(self, name: str) -> Floats:
        """Values of one of `CURVES`."""
        return self.tokens_per_s if name == "tokens_per_s" else self[name]

    @property
    def planned_parts_s(self) -> Floats:
        """Duration of the parts of each step that a plan has: data, compute, communication and optimizer."""
        parts: Floats = np.nansum([self[part] for part in StepTimeGroups.model_fields], axis=0)
        return parts

    def is_skipped(self, *reasons: str) -> Mask:
        """True for steps without an update of the weights, for one of these reasons; for any without reasons."""
        skipped = self["skipped"]
        return np.isin(skipped, [_SKIPPED.index(reason) for reason in reasons]) if reasons else np.isfinite(skipped)

    def is_fault(self) -> Mask:
        """True for steps skipped because of a fault; one that fp16 repeats with a lower loss scale is not a fault."""
        return self.is_skipped(*FAULTS)

    def is_lost(self, returns: Iterable[tuple[float, int]] = ()) -> Mask:
        """True for every row whose step was done again by a later row, or undone.

        Args:
            returns: time of every restart or rollback, and the step from which training continued.
        """
        alone, written_at = np.isfinite(self["alone"]), self["t"]
        step = self["step"] + 0.5 * alone  # an evaluation follows its step
        same = (self["step"][1:] == self["step"][:-1]) & (self["attempt"][1:] == self["attempt"][:-1])
        begins = np.flatnonzero(~(same & (alone[1:] | alone[:-1]))) + 1  # rows of one step do not undo each other
        following = np.append(begins, len(step))[np.searchsorted(begins, np.arange(len(step)), side="right")]
        limit = np.append(np.minimum.accumulate(step[::-1])[::-1], np.inf)[following]
        back = sorted(returns)
        if back:
            first_again = np.array([[at, to + 1] for at, to in back] + [[np.inf, np.inf]])
            lowest = np.minimum.accumulate(first_again[::-1, 1])[::-1]
            limit = np.minimum(limit, lowest[np.searchsorted(first_again[:, 0], written_at, side="left")])
        lost: Mask = step >= limit
        return lost


class MetricColumns:
    """Columns of a metrics file, of 232 bytes a row; empty before the first look.

    Args:
        file: `metrics.jsonl`, which need not exist yet.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._clear()

    def _clear(self) -> None:
        self._offset = self._num_rows = 0
        self._values = np.empty((len(_ALL), 0))
        self._figures: dict[str, dict[int, dict[str, float]]] = {"evaluation": {}, "program": {}}

    def __len__(self) -> int:
        return self._num_rows

    def look(self, chunk_bytes: int = _CHUNK_BYTES) -> None:
        """Read all lines that were added, a chunk of them at a time.

        A line without its newline is left for the next look; a file that became shorter is read from its beginning.
        """
        while not self._read(chunk_bytes):
            pass

    def _read(self, most_bytes: int) -> bool:
        """Read lines of at most `most_bytes`; False if there are more."""
        try:
            with self._file.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._offset:
                    self._clear()
                file.seek(self._offset)
                data = file.read(most_bytes)
        except FileNotFoundError:
            return True
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        # lines without a step and a time are left out
        # a line that is no object, because its writer was killed, is left out
        try:
            found = from_json(b"[" + complete.rstrip(b"\n").replace(b"\n", b",") + b"]", cache_strings="keys")
        except ValueError:
            found = [_value(line) for line in complete.splitlines()]
        rows = [row for row in found if isinstance(row, dict)]
        for row in rows:
            if not row.keys().isdisjoint(("skipped", "slowest", "evaluation", "callbacks", "figures")):
                _flatten(row)
        block = np.array([_column(rows, name) for name in _ALL]).reshape(len(_ALL), len(rows))
        kept = np.flatnonzero(np.isfinite(block[_ALL.index("step")]) & np.isfinite(block[_ALL.index("t")]))
        self._take_figures([rows[index] for index in kept.tolist()])
        self._append(block[:, kept])
        return not complete or self._offset >= size

    def _take_figures(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep the named figures of rows by the places that they get."""
        for place, row in enumerate(rows, self._num_rows):
            if "evaluation" in row or "figures" in row:
                for kind, found in (("evaluation", row.get("evaluation")), ("program", row)):
                    if isinstance(found, dict) and (figures := named_figures(found)):
                        self._figures[kind][place] = figures

    def _append(self, block: Floats) -> None:
        begin, end = self._num_rows, self._num_rows + block.shape[1]
        if end > self._values.shape[1]:
            grown = np.empty((len(_ALL), max(end, 2 * begin)))
            grown[:, :begin] = self._values[:, :begin]
            self._values = grown
        self._values[:, begin:end] = block
        self._num_rows = end

    def steps(self) -> Steps:
        """All rows so far, in the order of the file; later looks do not change them, and may be those of a thread."""
        num_rows = self._num_rows  # before the values, which always have as many rows
        columns = {name: values[:num_rows] for name, values in zip(_ALL, self._values, strict=True)}
        return Steps(columns, np.arange(num_rows), self._figures)


def read_columns(file: Path) -> MetricColumns:
    """All complete rows of a metrics file; none if it does not exist."""
    columns = MetricColumns(file)
    columns.look()
    return columns


def _value(line: bytes) -> Any:
    try:
        return from_json(line)
    except ValueError:
        return None


def _flatten(row: dict[str, Any]) -> None:
    """Numbers in place of a reason, and fields of `slowest`, `evaluation` and `callbacks` as fields of the row."""
    row["alone"] = 1.0 if "loss" not in row and ("evaluation" in row or "figures" in row) else np.nan
    reason = row.get("skipped")
    row["skipped"] = _SKIPPED.index(reason) if reason in _SKIPPED else len(_SKIPPED) if reason else np.nan
    for field, prefix in (("slowest", "slowest"), ("evaluation", "eval"), ("callbacks", "callbacks")):
        if isinstance(found := row.get(field), dict):
            row.update({f"{prefix}_{name}": value for name, value in found.items()})


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> Floats:
    try:
        values = [row[name] for row in rows]
    except KeyError:
        values = [row.get(name, np.nan) for row in rows]
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):  # a value is no number, or too large for one
        return np.array([_number(value) for value in values])


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, float | int) else np.nan
    except OverflowError:
        return np.nan


def trailing_mean(values: Floats, width: int) -> Floats:
    """Mean of each value and the `width - 1` before it, of those that are finite; fewer at the beginning.

    >>> trailing_mean(np.array([1.0, 3.0, np.nan, 5.0]), 2).tolist()
    [1.0, 2.0, 3.0, 5.0]
    """
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    begins = np.maximum(np.arange(1, len(values) + 1) - width, 0)
    number = counts[1:] - counts[begins]
    means: Floats = np.divide(sums[1:] - sums[begins], number, out=np.full(len(values), np.nan), where=number > 0)
    return means


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
