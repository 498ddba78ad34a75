"""Questions of an architect: the table is whole, and the page shows all of it."""

from __future__ import annotations

import re

import pytest

from benchmarks.architect_questions import _ANSWERS, PAGE, Answer, answer, as_a_user, questions

ROWS = questions()


def test_there_are_thirty_questions_and_each_has_a_source() -> None:
    assert len({row["id"] for row in ROWS}) == len(ROWS) == 30
    assert all(row["source"] and row["confidence"] and row["in_fit"] for row in ROWS)
    assert {row["quantity"] for row in ROWS} <= set(_ANSWERS)


def test_the_page_has_every_question_and_counts_the_right_answers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("## Sources")[0]
    assert [row["question"] for row in ROWS if row["question"] not in table] == []
    counts = [int(count) for count in re.findall(r"\*\*(\d+) of 30", table)]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ") and line.count(" | ") == 8]
    answers = [row for row in rows if row[0].strip("| ").isdigit()]
    assert len(answers) == 30
    assert counts == [sum(row[column].strip("| ") == "yes" for row in answers) for column in (5, 8)]


def test_a_user_names_no_program_no_compiler_and_the_layout_only_in_the_question() -> None:
    asked = [as_a_user(row) for row in ROWS]
    assert not any(row["software"] or row["compile"] for row in asked)
    assert [row["question"] for row in asked if row["layout"] and "ZeRO 3" not in row["question"]] == []


def test_a_count_has_to_be_exact() -> None:
    row = next(row for row in ROWS if row["quantity"] == "switches")
    assert answer(row).inside
    assert not Answer(row, value=float(row["published"]) + 1).inside


def test_a_refusal_is_no_right_answer() -> None:
    found = answer(ROWS[0] | {"cluster": "8x H1000"})
    assert found.refused and not found.inside


@pytest.mark.parametrize(("low", "high", "inside"), [(0.9, 1.1, True), (1.1, 1.2, False)])
def test_an_answer_with_an_interval_is_right_inside_of_it(low: float, high: float, inside: bool) -> None:
    published = float(ROWS[0]["published"])
    assert Answer(ROWS[0], published, low * published, high * published).inside == inside
