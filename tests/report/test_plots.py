"""Plots: round ticks, everything inside the frame, and well-formed at any numbers."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.report.rendering.axes import build_axis, labelled_axis, tick_labels
from trainworks.report.rendering.plots import (
    Bar,
    Bars,
    Chart,
    Curve,
    Dot,
    Mark,
    Range,
    Ranges,
    Rule,
    Segment,
    step_path,
)

NUMBERS = st.floats(min_value=-1e30, max_value=1e30, allow_subnormal=False)
POINTS = st.lists(st.tuples(st.integers(0, 10**7), NUMBERS), min_size=1, max_size=20, unique_by=lambda p: p[0])


def chart(*curves: Curve, **more: object) -> Element:
    """The picture of a chart whose axes hold its curves."""
    points = [point for curve in curves for point in curve.points] or [(0, 0.0)]
    steps, values = zip(*points, strict=True)
    plot = Chart(
        "loss", build_axis(0, max(steps), whole=True), build_axis(min(values), max(values)), curves=curves, **more
    )
    drawn = plot.picture()
    assert drawn is not None
    return drawn


def line(*points: tuple[float, float], css: str = "line") -> Curve:
    """A curve through points."""
    return Curve(css, points)


def stacked(*segments: Segment, whole: float | None = None) -> Element:
    """The picture of one bar."""
    drawn = Bars([Bar("time", "1 s", segments)], whole=whole).picture()
    assert drawn is not None
    return drawn


@given(low=NUMBERS, width=st.floats(min_value=0.0, max_value=1e30, allow_subnormal=False))
def test_an_axis_holds_its_values_between_few_round_ticks(low: float, width: float) -> None:
    axis = build_axis(low, low + width)
    slack = 1e-6 * (axis.ticks[-1] - axis.ticks[0])
    assert axis.ticks[0] <= low + slack
    assert axis.ticks[-1] >= low + width - slack
    assert 2 <= len(axis.ticks) <= 8


@given(low=st.integers(0, 10**6), width=st.integers(1, 10**6))
def test_tick_labels_of_an_axis_differ(low: int, width: int) -> None:
    labels = tick_labels(build_axis(low / 100, (low + width) / 100))
    assert len(set(labels)) == len(labels)


@given(last=st.integers(1, 10**7))
def test_ticks_of_steps_are_whole(last: int) -> None:
    assert all(tick == int(tick) for tick in build_axis(0, last, whole=True).ticks)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (2.1, 8.3, ["2", "4", "6", "8", "10"]),
        (0, 1, ["0", "0.25", "0.5", "0.75", "1"]),
        (0, 81_900, ["0", "25k", "50k", "75k", "100k"]),
        (5, 5, ["4.5", "4.75", "5", "5.25", "5.5"]),
        (-1, 1, ["-1", "-0.5", "0", "0.5", "1"]),
    ],
)
def test_labels_are_short(low: float, high: float, labels: list[str]) -> None:
    assert tick_labels(build_axis(low, high)) == labels


def test_a_scaled_axis_places_values_by_its_scale_and_leaves_out_ticks_beyond_its_end() -> None:
    axis = labelled_axis({"0": 0.0, "1": 1.0, "9": 9.0}, 4.0, lambda value: value**0.5)
    assert axis.labelled_ticks() == [(0.0, "0"), (50.0, "1")]
    assert axis.percent(4.0) == 100.0


@given(points=POINTS, marks=st.lists(st.integers(0, 10**7), max_size=5))
def test_a_chart_is_inside_its_frame(points: list[tuple[int, float]], marks: list[int]) -> None:
    drawn = chart(line(*sorted(points)), marks=[Mark(step, "checkpoint", "a & b") for step in marks])
    for path in drawn.iter("path"):
        assert all(-1 <= float(number) <= 1001 for number in re.split("[ L]", path.attrib["d"][1:]))
    assert all(0 <= float(mark.attrib["x1"][:-1]) <= 100 for mark in drawn.iter("line") if mark.get("class") != "grid")


def test_later_curves_are_drawn_over_earlier_ones() -> None:
    drawn = chart(line((1, 3.0), (2, 2.0), css="lost-line"), line((1, 3.0), (2, 2.1)))
    assert [path.attrib["class"] for path in drawn.iter("path")] == ["lost-line", "line"]


def test_a_single_point_of_a_curve_is_a_dot() -> None:
    (path,) = chart(line((7, 3.0))).iter("path")
    assert re.fullmatch(r"M(\S+ \S+)L\1", path.attrib["d"])


def test_marks_of_one_kind_are_thinned_and_the_last_one_stays() -> None:
    marks = [Mark(step, "checkpoint", str(step)) for step in range(1, 1001)]
    titles = [title.text for title in chart(line((1, 1.0), (1000, 2.0)), marks=marks).iter("title")]
    assert len(titles) <= 60
    assert "1000" in titles


def test_every_dot_is_drawn_once_in_order_with_its_title() -> None:
    drawn = chart(dots=[Dot(0, 0, "one <node>"), Dot(0, 0, "two", "dot chosen", 6)])
    assert [dot.findtext("title") for dot in drawn.iter("circle")] == ["one <node>", "two"]
    assert [dot.attrib["r"] for dot in drawn.iter("circle")] == ["4", "6"]


def test_a_rule_is_labelled_on_the_side_that_has_room() -> None:
    drawn = chart(line((0, 0), (10, 1)), rules=[Rule("x", 1, "early"), Rule("x", 9, "late")])
    anchors = {text.text: text.attrib["text-anchor"] for text in drawn.iter("text")}
    assert (anchors["early"], anchors["late"]) == ("start", "end")


def test_a_staircase_goes_down_at_each_point_and_on_to_the_end() -> None:
    assert step_path([(1, 5), (2, 3)], 9, 4) == [(1, 9), (1, 5), (2, 5), (2, 3), (4, 3)]


@given(values=st.lists(st.floats(0, 1e12), min_size=1, max_size=9).filter(lambda values: sum(values) > 0))
def test_a_stacked_bar_fills_its_whole(values: list[float]) -> None:
    drawn = stacked(*(Segment("compute", value, "x") for value in values))
    assert sum(float(rect.attrib["width"][:-1]) for rect in drawn.iter("rect")) == pytest.approx(100.0, abs=0.01)


def test_bars_share_a_scale() -> None:
    drawn = Bars([Bar("a", "", [Segment("compute", 1.0, "")]), Bar("b", "", [Segment("compute", 2.0, "")])]).picture()
    assert drawn is not None
    assert [rect.attrib["width"] for rect in drawn.iter("rect")] == ["50.0000%", "100.0000%"]


def test_a_segment_of_zero_is_neither_drawn_nor_in_the_key() -> None:
    bars = Bars([Bar("a", "", [Segment("tp", 0.0, ""), Segment("forward", 1.0, "")])])
    assert bars.key() == [("swatch fill-forward", "forward")]
    assert "<rect" not in str(stacked(Segment("compute", 0.0, "0 s"), whole=0.0))


def test_ranges_share_a_scale_and_start_at_the_base() -> None:
    drawn = Ranges(
        5.0, [Range("a", "", 1.0, 9.0), Range("b", "", 4.0, 5.0)], {1.0: "", 9.0: "", 4.0: "", 5.0: ""}
    ).picture()
    assert drawn is not None
    rows = list(drawn.iter("svg"))
    widths = [sum(float(rect.attrib["width"][:-1]) for rect in row.iter("rect")) for row in rows]
    assert widths[0] == pytest.approx(8 * widths[1], rel=1e-3)
    assert len({row.find("line").attrib["x1"] for row in rows}) == 1  # type: ignore[union-attr]
