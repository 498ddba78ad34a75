"""The page of complaints against the tests: each that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = re.findall(r"^\| (\d+) \|(.*)\|$", (ROOT / "docs/concepts/complaints.md").read_text(), re.MULTILINE)


def test_each_of_the_25_complaints_has_a_row() -> None:
    assert [int(number) for number, _ in ROWS] == list(range(1, 26))


@pytest.mark.parametrize(("number", "row"), ROWS)
def test_the_tests_that_show_an_answer_exist(number: str, row: str) -> None:
    named = re.findall(r"`(tests/[^`\s]+)::(\w+)`", row)
    assert named
    missing = [
        name for file, name in named if not re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert missing == []
