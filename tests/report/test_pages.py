"""The pages of results: whole, self-contained, with every figure, and nothing of their inputs is markup."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.report.test_html import HOSTILE, parsed
from trainworks.api.capacity import capacity
from trainworks.api.cost import cost
from trainworks.api.goodput import goodput
from trainworks.api.network import network
from trainworks.api.plan import compare_layout, plan
from trainworks.api.size import size
from trainworks.api.storage import storage
from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.cluster import parse_cluster
from trainworks.catalog.facts import Offer
from trainworks.plan.cost.comparison import compare
from trainworks.plan.cost.report import CostReport
from trainworks.plan.reliability.scenario import CAUSES
from trainworks.plan.trace import fact
from trainworks.report.goodput import badput_bars, finish_chart
from trainworks.report.rendering.plots import Bars, Chart
from trainworks.results import Result

ROOT = Path(__file__).parents[2]
RUN = ROOT / "examples/plan-llama-2-7b.yaml"
TRACE = next((ROOT / "examples/capacity").glob("*.yaml"))
CLUSTER = "8x A100-SXM-80GB"
DAY_S = 86400.0
RESULTS = {
    "capacity": lambda: capacity(TRACE, accelerators_per_node=8, price=3.5),
    "cost of a year": lambda: cost(on="DGX H100"),
    "cost of a run": lambda: cost(RUN, on=CLUSTER),
    "goodput": lambda: goodput(on="64x H100", work="30d", deadline="40d", trials=50),
    "layout": lambda: compare_layout(RUN, "tp=8", on=CLUSTER),
    "network": lambda: network(on="16 nodes of DGX A100"),
    "plan": lambda: plan(RUN, on=CLUSTER),
    "size": lambda: size(RUN, deadline="60d", only=["H100-SXM-80GB"], largest=64),
    "storage": lambda: storage(RUN, on=CLUSTER),
}


@cache
def result(name: str) -> Result:
    return RESULTS[name]()  # type: ignore[no-any-return]


@pytest.fixture(params=RESULTS)
def any_result(request: pytest.FixtureRequest) -> Result:
    return result(request.param)


def test_a_page_is_whole_and_loads_nothing(any_result: Result) -> None:
    page = any_result.to_html()
    reader = parsed(page)
    assert reader.open == []
    assert not reader.seen & {"script", "link", "img", "iframe", "object"}
    assert not reader.attributes & {"src", "href", "onload", "onclick"}
    assert "nan%" not in page


def test_a_page_says_what_the_text_says(any_result: Result) -> None:
    page = re.sub(r"<[^>]*>", " ", any_result.to_html())
    words = set(re.findall(r"[\w.]+", page))
    text = set(re.findall(r"[\w.]+", str(any_result)))
    assert len(text - words) <= 0.05 * len(text), sorted(text - words)


def test_what_a_price_table_says_stays_text() -> None:
    hostile = Offer(
        name=HOSTILE, provider=HOSTILE, accelerator="H100-SXM-80GB", accelerators=8, usd_per_hour=20.0, source=HOSTILE
    )
    offers = [hostile, *load_catalog().offers.values()]
    comparison = compare(parse_cluster("DGX H100"), offers, hours=fact("hours per year", 5000, "h", source="the test"))
    page = CostReport(HOSTILE, comparison, HOSTILE, notes=(HOSTILE,)).to_html()
    assert not parsed(page).seen & {"script", "img"}
    assert "&lt;script&gt;" in page


def test_every_offer_and_every_swing_is_on_the_page_of_a_cost() -> None:
    report = result("cost of a year")
    assert isinstance(report, CostReport)
    page = report.to_html()
    assert all(line.offer.name in page for line in report.comparison.lines)
    assert all(swing.of.name in page for swing in report.comparison.swings)


def test_the_target_of_a_capacity_is_a_line_only_if_there_is_one() -> None:
    plan_of_waits = result("capacity")
    assert "target 4h 0m" in plan_of_waits.to_html()
    without = replace(plan_of_waits, target=replace(plan_of_waits.target, wait_s=None, deadlines=0.9))  # type: ignore[type-var, attr-defined]
    assert 'class="reference"' not in without.to_html()


def test_a_dearer_policy_is_further_right_and_a_longer_wait_further_up() -> None:
    page = result("capacity").to_html()
    dots = re.findall(r'<circle class="dot[^"]*" cx="([\d.]+)%" cy="([\d.]+)%"[^>]*><title>[^<]*: ([\d,]+) USD', page)
    assert len(dots) > 10
    by_cost = sorted(dots, key=lambda dot: int(dot[2].replace(",", "")))
    assert [float(x) for x, _, _ in by_cost] == sorted(float(x) for x, _, _ in by_cost)
    assert all(0 <= float(y) <= 100 for _, y, _ in dots)


def test_a_figure_of_a_size_is_explained_on_its_page() -> None:
    page = result("size").to_html()
    assert "<summary>cost = " in page
    assert "proposed" in page


@pytest.mark.parametrize("deadline_s", [None, DAY_S, 10 * DAY_S, 1000 * DAY_S])
@pytest.mark.parametrize("finishes_s", [[DAY_S], [DAY_S] * 10, [1.0, 1e9]], ids=["one", "equal", "wide"])
def test_a_finish_can_be_drawn_at_the_edges(finishes_s: list[float], deadline_s: float | None) -> None:
    (chart,) = (block for block in finish_chart(finishes_s, deadline_s) if isinstance(block, Chart))
    drawn = chart.picture()
    assert drawn is not None
    assert all("nan" not in value for node in drawn.iter() for value in node.attrib.values())


def test_the_curve_of_a_finish_rises_from_none_to_all() -> None:
    (chart,) = (
        block for block in finish_chart([10 * DAY_S + at for at in range(1000)], None) if isinstance(block, Chart)
    )
    points = chart.curves[0].points
    assert list(points) == sorted(points)
    assert (points[0][1], points[-1][1]) == (0.0, 100.0)
    assert len(points) < 250


def test_every_cause_has_a_colour_and_one_without_time_is_not_in_the_key() -> None:
    shares = {"work": 0.8} | dict.fromkeys(CAUSES, 0.02) | {"lost work": 0.0}
    (bars,) = (block for block in badput_bars({"all": shares}) if isinstance(block, Bars))
    names = [name for _, name in bars.key()]
    assert names == [cause for cause in shares if cause != "lost work"]
