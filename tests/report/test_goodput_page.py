"""The page of a forecast: whole, self-contained, and deaf to what a run file writes into it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.report.test_html import HOSTILE, parsed
from trainworks.plan.reliability.scenario import CAUSES
from trainworks.report.goodput_page import render_goodput_page, write_goodput_page

DAY_S = 86400.0
SHARES = {"work": 0.8} | dict.fromkeys(CAUSES, 0.0) | {"lost work": 0.15, "checkpoint": 0.05}
PAGE = {
    "title": "demo",
    "about": "64x H100",
    "finishes_s": [10 * DAY_S + index for index in range(1000)],
    "shares": {"0 spares": SHARES, "1 spare": SHARES},
    "deadline_s": 11 * DAY_S,
}


@pytest.mark.parametrize("deadline_s", [None, DAY_S, 10 * DAY_S, 1000 * DAY_S])
@pytest.mark.parametrize("finishes_s", [[DAY_S], [DAY_S] * 10, [1.0, 1e9]], ids=["one", "equal", "wide"])
def test_the_page_is_whole(finishes_s: list[float], deadline_s: float | None) -> None:
    page = render_goodput_page(**(PAGE | {"finishes_s": finishes_s, "deadline_s": deadline_s}))
    assert parsed(page).open == []
    assert "nan" not in page


def test_the_page_loads_nothing() -> None:
    reader = parsed(render_goodput_page(**PAGE))
    assert not reader.seen & {"script", "link", "img", "iframe", "object"}
    assert not reader.attributes & {"src", "href", "onload", "onclick"}


def test_what_a_run_file_says_stays_text() -> None:
    text = render_goodput_page(**(PAGE | {"title": HOSTILE, "about": HOSTILE, "shares": {HOSTILE: SHARES}}))
    assert "<script" not in text
    assert "<img" not in text


def test_every_cause_has_a_colour() -> None:
    every = {"work": 0.2} | dict.fromkeys(CAUSES, 0.1)
    page = render_goodput_page(**(PAGE | {"shares": {"all": every}}))
    assert all(f"</i>{cause}</span>" in page for cause in every)


def test_a_cause_that_takes_no_time_is_not_in_the_key() -> None:
    page = render_goodput_page(**PAGE)
    assert "</i>lost work</span>" in page
    assert "</i>straggling</span>" not in page


def test_the_curve_rises_from_none_to_all() -> None:
    path = re.search(r'class="line" d="M([^"]+)"', render_goodput_page(**PAGE))
    assert path is not None
    corners = [tuple(map(float, corner.split())) for corner in path[1].split("L")]
    assert corners == sorted(corners, key=lambda corner: (corner[0], -corner[1]))
    assert (corners[0][1], corners[-1][1]) == (1000.0, 0.0)
    assert len(corners) < 250


def test_the_page_is_written_whole(tmp_path: Path) -> None:
    write_goodput_page(tmp_path / "goodput.html", **PAGE)
    assert (tmp_path / "goodput.html").read_text(encoding="utf-8") == render_goodput_page(**PAGE)
    assert [path.name for path in tmp_path.iterdir()] == ["goodput.html"]
