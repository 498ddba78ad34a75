"""The page of policies: cost against wait."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from trainworks.report.capacity_page import PolicyPoint, render_capacity_page

POINTS = [
    PolicyPoint("fixed", "4 fixed", 1000.0, 86400.0, on_front=True),
    PolicyPoint("on-demand", "2 fixed, up to 9 on-demand <at once>", 2000.0, 300.0, on_front=True),
    PolicyPoint("spot", "up to 9 spot", 3000.0, 600.0, on_front=False),
    PolicyPoint("both", "up to 9 spot and on-demand", 4000.0, 0.0, on_front=True),
]


def page(points: list[PolicyPoint] = POINTS, target_s: float | None = 3600.0) -> str:
    return render_capacity_page(title="Capacity for a & b", about="2 teams", points=points, target_s=target_s)


def plot(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text[text.index("<svg") : text.rindex("</svg>") + 6])


def dots(text: str) -> list[tuple[float, float, str]]:
    """Place from the left and from the top in percent, and class."""
    found = plot(text).findall("circle")
    return [(float(dot.attrib["cx"][:-1]), float(dot.attrib["cy"][:-1]), dot.attrib["class"]) for dot in found]


def test_every_policy_is_a_dot_and_the_front_is_drawn_last() -> None:
    assert [name for _, _, name in dots(page())] == ["of-spot", "of-fixed best", "of-on-demand best", "of-both best"]


def test_a_dearer_policy_is_further_right_and_a_longer_wait_further_up() -> None:
    spot, fixed, on_demand, both = dots(page())
    assert fixed[0] < on_demand[0] < spot[0] < both[0]
    assert fixed[1] < spot[1] < on_demand[1] < both[1] == 100.0


def test_the_target_is_a_line_only_if_there_is_one() -> None:
    assert "target 1h 0m" in page()
    assert "reference" not in page(target_s=None).split("</style>")[1]


def test_texts_are_escaped() -> None:
    assert "<at once>" not in page()
    assert "<h1>Capacity for a &amp; b</h1>" in page()


def test_the_table_has_the_front_alone_cheapest_first() -> None:
    body = page().split("<tbody>")[1]
    assert re.findall(r"<tr><td>(.*?)</td>", body) == [
        POINTS[0].text,
        "2 fixed, up to 9 on-demand &lt;at once&gt;",
        POINTS[3].text,
    ]


def test_one_policy_without_any_wait_can_be_drawn() -> None:
    assert dots(page([PolicyPoint("fixed", "1 fixed", 0.0, 0.0, on_front=True)], target_s=0.0))[0][1] == 100.0
