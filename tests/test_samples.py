"""What the pages show of commands is what these print today."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate_samples import CUT, PAGES, ROOT, Page, SampleError, adapted, answers, shows

PRINTED = [
    "Rent 4 nodes.",
    "",
    "nodes  cost",
    "    1  10.0 USD",
    "    2  22.5 USD",
    "    4  46.0 USD",
    "note: spot",
]
SAMPLED = [page for page in PAGES if Page(page).has_samples]


@pytest.mark.lane("test")
@pytest.mark.parametrize("page", SAMPLED, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_shows_what_its_commands_print(page: Path) -> None:
    sampled = Page(page)
    sampled.generated()
    assert sampled.differing == [], "python docs/generate_samples.py writes them"


@pytest.mark.parametrize(
    "lines",
    [
        PRINTED,
        ["Rent 4 nodes.", CUT, "    4  46.0 USD", "note: spot"],
        ["Rent 4 nodes.", "", "nodes ...", CUT],
        [CUT, "    2  22.5 USD", CUT, "note: spot"],
    ],
)
def test_a_block_may_leave_lines_and_ends_of_lines_out_where_it_says_so(lines: list[str]) -> None:
    assert shows(lines, PRINTED, is_part=False)


@pytest.mark.parametrize(
    "lines",
    [
        PRINTED[:-1],
        PRINTED[1:],
        ["Rent 4 nodes.", "    4  46.0 USD", CUT],
        ["Rent 4 nodes.", CUT, "    4  46.0 USD", "    2  22.5 USD", CUT],
        ["Rent 4 nodes. ...", CUT],
        ["Rent 5 nodes.", CUT],
        [*PRINTED, CUT],
    ],
)
def test_a_block_that_shows_anything_else_differs(lines: list[str]) -> None:
    assert not shows(lines, PRINTED, is_part=False)


def test_a_part_begins_and_ends_anywhere() -> None:
    assert shows(["nodes  cost", "    1  10.0 USD"], PRINTED, is_part=True)
    assert not shows(["nodes  cost", "    2  22.5 USD"], PRINTED, is_part=True)


@pytest.mark.parametrize(
    ("old", "new", "is_part"),
    [
        (["Rent 8 nodes.", CUT, "    4  99.0 USD", "note: buy"], ["Rent 4 nodes.", CUT, *PRINTED[-2:]], False),
        (["Rent 8 ...", CUT], ["Rent 4 ...", CUT], False),
        (["nodes  cost", "    1  17.0 USD", "    4  51.0 USD"], PRINTED[2:6], True),
        ([CUT, "nodes  price", "    1  17.0 USD", CUT], [CUT, *PRINTED[2:4], CUT], False),
        (["Buy 4 nodes.", "", "nodes  cost", "    1  9.50 USD", "note: spot"], PRINTED, False),
    ],
)
def test_a_block_that_is_written_leaves_out_what_it_left_out_before(
    old: list[str], new: list[str], is_part: bool
) -> None:
    assert adapted(old, PRINTED, "page.md:1", is_part=is_part) == new
    assert shows(new, PRINTED, is_part=is_part)


def test_a_block_without_a_printed_line_is_an_error_with_its_place() -> None:
    with pytest.raises(SampleError, match=r"page.md:7: nothing like this is printed, leave it out: energy of the run"):
        adapted([CUT, "energy of the run", CUT], PRINTED, "page.md:7", is_part=False)


@pytest.mark.parametrize(
    ("about", "body"),
    [
        ("", "no command\n"),
        (": plan run.yaml", "Train it.\n"),
        (": trainworks plan run.yaml", "$ trainworks plan run.yaml\nTrain it.\n"),
        (", wide", "$ trainworks plan run.yaml\nTrain it.\n"),
    ],
)
def test_a_mark_that_cannot_be_read_is_an_error_with_its_place(about: str, body: str) -> None:
    with pytest.raises(SampleError, match=r"page.md:7: cannot read this mark"):
        answers(about, body, "page.md:7")


def test_a_mark_names_the_command_the_record_and_the_width() -> None:
    (answer,) = answers(": part of trainworks run a.yaml --layout tp=2,pp=2, recorded as a-1, 80 columns", "x\n", "p")
    assert (answer.command, answer.run, answer.columns, answer.is_part) == (
        "trainworks run a.yaml --layout tp=2,pp=2",
        "a-1",
        80,
        True,
    )
