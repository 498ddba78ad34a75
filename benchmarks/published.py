"""The published tables of `data/`, predicted and scored as `trainworks score` does."""

from __future__ import annotations

from pathlib import Path

from trainworks.measure.scoring import TABLES, RowPrediction
from trainworks.measure.tables import Row, read_table

__all__ = ["COLLECTIVES", "LABELS", "LEFT_OUT", "MEMORY", "STEP_TIMES", "predict", "rows_of"]

DATA = Path(__file__).parent / "data"
STEP_TIMES = ("runs", DATA / "step_times.csv")
MEMORY = ("memory", DATA / "memory.csv")
COLLECTIVES = ("collectives", DATA / "collectives.csv")
LABELS = ("framework", "attention", "compiled", "fp8_recipe")
"""Columns that say what program trained; most were filled by hand for rows whose source names it elsewhere."""
LEFT_OUT = DATA / "left_out.csv"
"""Errors on each source after a fit without it; `fit_planner.py --leave-out --write` writes it."""


def rows_of(table: tuple[str, Path], *, labels: bool = True) -> list[Row]:
    """All rows of a table, as they are or without the labels of their software, which tables of users lack."""
    kind, path = table
    rows = read_table(path, TABLES[kind].columns)
    return rows if labels else [{**row, **dict.fromkeys(LABELS, "")} for row in rows]


def predict(table: tuple[str, Path], *, labels: bool = True) -> list[RowPrediction]:
    """A prediction or a refusal of every row."""
    kind, _ = table
    return [TABLES[kind].predict(row) for row in rows_of(table, labels=labels)]
