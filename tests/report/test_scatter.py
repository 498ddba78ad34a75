"""Points of two amounts, and the front among them."""

from __future__ import annotations

import re

from trainworks.report.scatter import Dot, scatter_plot

DOTS = [
    Dot(1.0, 9.0, "one node", front=True),
    Dot(2.0, 5.0, "two <nodes>", front=True, chosen=True),
    Dot(3.0, 7.0, "three nodes"),
]


def test_every_point_is_drawn_once_with_its_title_escaped() -> None:
    drawn = scatter_plot(DOTS, x_name="days", y_name="USD")
    assert drawn.count("<circle") == 3
    assert "two &lt;nodes&gt;" in drawn


def test_the_chosen_point_is_drawn_last_and_largest() -> None:
    last = re.findall(r"<circle.*?</circle>", scatter_plot(DOTS, x_name="days", y_name="USD"))[-1]
    assert 'class="dot front chosen"' in last
    assert 'r="6"' in last


def test_the_front_is_one_line_from_left_to_right() -> None:
    path = re.search(r'd="M([\d. L]+)"', scatter_plot(DOTS[::-1], x_name="days", y_name="USD"))
    assert path is not None
    assert [float(corner.split()[0]) for corner in path[1].split("L")] == [333.3, 666.7]


def test_no_points_give_no_plot() -> None:
    assert scatter_plot([], x_name="days", y_name="USD") == ""
