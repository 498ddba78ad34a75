"""The page of a plan: whole, self-contained, on one scale, and deaf to what a run file writes into it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.test_html import HOSTILE, parsed
from trainworks.report.plan_page import PlannedLayout, render_plan_page, write_plan_page

FAST = PlannedLayout(
    name="dp_shard 8 (zero 3), micro-batch 2",
    step_time_s=3.0,
    low_s=2.5,
    high_s=3.6,
    terms_s={"forward": 1.0, "backward": 2.0, "tp": 0.0},
    memory_bytes={"weights": 10 * 2**30, "activations": 30 * 2**30},
)
SLOW = replace(FAST, name="tp 8, micro-batch 1", step_time_s=6.0, terms_s={"forward": 2.0, "backward": 3.0, "tp": 1.0})


def page(*layouts: PlannedLayout, title: str = "demo", about: str = "8x H100") -> str:
    """The page of some layouts."""
    return render_plan_page(title=title, about=about, layouts=layouts)


@pytest.mark.parametrize("layouts", [[], [FAST], [FAST, SLOW]], ids=len)
def test_the_page_is_whole(layouts: list[PlannedLayout]) -> None:
    assert parsed(page(*layouts)).open == []


def test_the_page_loads_nothing() -> None:
    reader = parsed(page(FAST, SLOW))
    assert not reader.seen & {"script", "link", "img", "iframe", "object"}
    assert not reader.attributes & {"src", "href", "onload", "onclick"}


def test_what_a_run_file_says_stays_text() -> None:
    text = page(replace(FAST, name=HOSTILE), title=HOSTILE, about=HOSTILE)
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;" in text


def test_every_layout_has_its_time_with_the_interval_and_its_memory() -> None:
    text = page(FAST, SLOW)
    assert "3.00 s (2.50 s to 3.60 s)" in text
    assert text.count(FAST.name) >= 2
    assert "40.0 GiB" in text
    assert not re.search(r"\d [kMGT]?B\b", text)


def test_bars_of_one_section_share_a_scale() -> None:
    widths = [
        sum(float(width) for width in re.findall(r'<rect[^>]* width="([\d.]+)', bar))
        for bar in re.findall(r"<svg.*?</svg>", page(FAST, SLOW), flags=re.DOTALL)[:2]
    ]
    assert widths[0] == pytest.approx(widths[1] / 2, rel=0.02)


def test_a_part_that_no_layout_has_is_not_in_the_key() -> None:
    assert 'fill-tp"></i>' not in page(FAST)
    assert 'fill-tp"></i>' in page(FAST, SLOW)


def test_the_page_is_written_whole(tmp_path: Path) -> None:
    write_plan_page(tmp_path / "plan.html", title="demo", about="8x H100", layouts=[FAST])
    assert (tmp_path / "plan.html").read_text(encoding="utf-8") == page(FAST)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.html"]
