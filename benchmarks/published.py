"""The published tables of `data/`, predicted and scored as `trainworks score` does."""

from __future__ import annotations

from pathlib import Path

from trainworks.measure.scoring import TABLES, RowPrediction
from trainworks.measure.tables import Row, read_table

__all__ = ["COLLECTIVES", "LEFT_OUT", "MEMORY", "STEP_TIMES", "predict", "rows_of"]

DATA = Path(__file__).parent / "data"
STEP_TIMES = ("runs", DATA / "step_times.csv")
MEMORY = ("memory", DATA / "memory.csv")
COLLECTIVES = ("collectives", DATA / "collectives.csv")
LEFT_OUT = DATA / "left_out.csv"
"""Errors on each source after a fit without it; `fit_planner.py --leave-one-source-out --write` writes it."""


def rows_of(table: tuple[str, Path]) -> list[Row]:
    """All rows of a table."""
    kind, path = table
    return read_table(path, TABLES[kind].columns)


def predict(table: tuple[str, Path]) -> list[RowPrediction]:
    """A prediction or a refusal of every row."""
    kind, _ = table
    return [TABLES[kind].predict(row) for row in rows_of(table)]
