"""Simulated goodput against what was published; misses are recorded here, not tuned away."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.goodput_simulation import BEGIN, END, GOAL, PAGE, Compared, compare, published_rows, table

ROWS = published_rows()
COMPARABLE = [row for row in ROWS if not row["reason"]]
MISSES = {"rsc1-16k-5min": -0.037, "rsc2-100k-2min": 0.041}
"""Beyond the goal of 3 points: restarts were published as 5 to 20 min, and the cost of a checkpoint was not."""


@pytest.fixture(scope="module")
def compared() -> list[Compared]:
    return [compare(row) for row in COMPARABLE]


def test_published_goodput_is_met_within_three_points_or_the_miss_is_known(compared: list[Compared]) -> None:
    errors = {found.row["id"]: found.error for found in compared}
    assert {name: error for name, error in errors.items() if abs(error) > GOAL} == pytest.approx(MISSES, abs=0.003)


def test_a_known_miss_is_a_row_of_the_table() -> None:
    assert set(MISSES) <= {row["id"] for row in COMPARABLE}


def test_formula_and_simulation_agree_where_no_replica_leaves_alone(compared: list[Compared]) -> None:
    for found in compared:
        if not found.row["replicas"]:
            assert found.simulated == pytest.approx(found.formula, abs=0.005)


def test_what_is_not_compared_says_why() -> None:
    assert all(row["reason"] or row["published_inputs"] for row in ROWS)
    assert all(not row["reason"] or not row["num_nodes"] for row in ROWS)


def test_the_page_has_the_table_of_today(compared: list[Compared]) -> None:
    written = Path(PAGE).read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert written.strip() == table(compared, [row for row in ROWS if row["reason"]])
