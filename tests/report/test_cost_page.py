"""The page of a cost: whole, self-contained, on one scale, and deaf to what a price table writes into it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.report.test_html import HOSTILE, parsed
from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.cluster import parse_cluster
from trainworks.catalog.facts import Offer
from trainworks.plan.cost.comparison import CostComparison, compare
from trainworks.plan.trace import fact
from trainworks.report.cost_page import render_cost_page, tornado_bars, write_cost_page

HOSTILE_OFFER = Offer(
    name=HOSTILE, provider=HOSTILE, accelerator="H100-SXM-80GB", accelerators=8, usd_per_hour=20.0, source=HOSTILE
)


def found(cluster: str = "DGX H100", *more: Offer) -> CostComparison:
    offers = [*more, *load_catalog().offers.values()]
    hours = fact("hours per year", 5000, "h", source="the test")
    return compare(parse_cluster(cluster), offers, hours=hours)


def page(comparison: CostComparison, title: str = "a year") -> str:
    return render_cost_page(title=title, found=comparison, grid="World", notes=["a note"])


@pytest.mark.parametrize("cluster", ["DGX H100", "16x MI355X", "8x TPU-v5p"])
def test_the_page_is_whole(cluster: str) -> None:
    assert parsed(page(found(cluster))).open == []


def test_the_page_loads_nothing() -> None:
    reader = parsed(page(found()))
    assert not reader.seen & {"script", "link", "img", "iframe", "object"}
    assert not reader.attributes & {"src", "href", "onload", "onclick"}


def test_what_a_price_table_says_stays_text() -> None:
    text = page(found("DGX H100", HOSTILE_OFFER), title=HOSTILE)
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;" in text


def test_every_offer_and_every_swing_is_on_the_page() -> None:
    comparison = found()
    text = page(comparison)
    assert all(line.offer.name in text for line in comparison.lines)
    assert all(swing.of.name in text for swing in comparison.swings)


def test_bars_share_a_scale_and_start_at_the_answer() -> None:
    comparison = found()
    assert comparison.answer is not None
    rows = re.findall(r"<svg.*?</svg>", tornado_bars(comparison.answer, comparison.swings), flags=re.DOTALL)
    widths = [sum(float(width) for width in re.findall(r'<rect[^>]* width="([\d.]+)', row)) for row in rows]
    expected = [swing.width for swing in comparison.swings]
    assert [width / widths[0] for width in widths] == pytest.approx([it / expected[0] for it in expected], abs=1e-3)
    assert len(set(re.findall(r'class="base" x1="([\d.]+%)', "".join(rows)))) == 1


def test_the_page_is_written_whole(tmp_path: Path) -> None:
    write_cost_page(tmp_path / "cost.html", title="a year", found=found(), grid="World", notes=["a note"])
    assert (tmp_path / "cost.html").read_text(encoding="utf-8") == page(found())
    assert [path.name for path in tmp_path.iterdir()] == ["cost.html"]
