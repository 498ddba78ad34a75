"""Plots: round ticks, everything inside the frame, and well-formed whatever the numbers."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.report.axes import build_axis, tick_labels
from trainworks.report.curves import Line
from trainworks.report.line_plots import Mark, Segment, line_plot, stacked_bar

NUMBERS = st.floats(min_value=-1e30, max_value=1e30, allow_subnormal=False)
POINTS = st.lists(st.tuples(st.integers(0, 10**7), NUMBERS), min_size=1, max_size=20, unique_by=lambda p: p[0])


def line(*points: tuple[int, float], lost: bool = False) -> Line:
    """A line through points."""
    return Line(lost=lost, attempt=None, points=points)


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


@given(points=POINTS, marks=st.lists(st.integers(0, 10**7), max_size=5))
def test_a_plot_is_well_formed_and_inside_its_frame(points: list[tuple[int, float]], marks: list[int]) -> None:
    plot = line_plot(
        [line(*sorted(points))], title="<loss>", marks=[Mark(step, "checkpoint", "a & b") for step in marks]
    )
    ElementTree.fromstring(plot)
    for path in re.findall(r' d="M([^"]*)"', plot):
        assert all(-1 <= float(number) <= 1001 for number in re.split("[ L]", path))


def test_a_plot_without_points_is_left_out() -> None:
    assert line_plot([line()], title="loss") == ""


def test_lost_work_is_drawn_apart_from_effective_steps() -> None:
    plot = line_plot([line((1, 3.0), (2, 2.0), lost=True), line((1, 3.0), (2, 2.1))], title="loss")
    assert plot.index('class="lost-line"') < plot.index('class="line"')


def test_a_single_step_is_a_dot() -> None:
    assert re.search(r'd="M(\S+ \S+)L\1"', line_plot([line((7, 3.0))], title="loss"))


def test_marks_of_one_kind_are_thinned_and_the_last_one_stays() -> None:
    marks = [Mark(step, "checkpoint", str(step)) for step in range(1, 1001)]
    plot = line_plot([line((1, 1.0), (1000, 2.0))], title="loss", marks=marks)
    assert plot.count('class="checkpoint"') <= 60
    assert "<title>1000</title>" in plot


@given(values=st.lists(st.floats(0, 1e12), min_size=1, max_size=9).filter(lambda values: sum(values) > 0))
def test_a_stacked_bar_fills_its_whole(values: list[float]) -> None:
    bar = stacked_bar([Segment("compute", value, "x") for value in values], whole=sum(values), title="time")
    widths = [float(width) for width in re.findall(r'width="([\d.]+)%"', bar)]
    assert sum(widths) == pytest.approx(100.0, abs=0.01)


def test_names_and_labels_of_a_bar_are_escaped() -> None:
    bar = stacked_bar([Segment("<b>", 1.0, "<i>")], whole=1.0, title="<u>")
    assert not re.search("<[biu]>", bar)


def test_a_bar_of_nothing_is_empty() -> None:
    assert "<rect" not in stacked_bar([Segment("compute", 0.0, "0 s")], whole=0.0, title="time")
