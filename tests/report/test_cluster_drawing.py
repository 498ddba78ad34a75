"""The drawing of nodes below their switches."""

from __future__ import annotations

from collections import Counter
from xml.etree.ElementTree import Element

from hypothesis import given
from hypothesis import strategies as st

from trainworks.backends.backend import NodeStatus
from trainworks.recover.node_history import NodeHistory
from trainworks.report.overview import cluster_picture

nodes = st.builds(
    NodeStatus,
    name=st.text(min_size=1, max_size=30),
    state=st.sampled_from(["free", "mixed", "taken", "draining", "drained", "down", "unknown"]),
    cores=st.just(64.0),
    accelerators=st.just(8),
    accelerators_taken=st.integers(0, 8),
    switch=st.sampled_from([None, "leaf1", "leaf2"]),
)


def marks(picture: Element) -> Counter[str]:
    """How many elements have each class."""
    return Counter(css for each in picture.iter() for css in each.get("class", "").split())


@given(st.lists(nodes, min_size=1, max_size=40))
def test_every_node_switch_and_accelerator_is_drawn_once(found: list[NodeStatus]) -> None:
    picture = cluster_picture(found)
    assert picture is not None
    drawn = marks(picture)
    assert drawn["node"] == len(found)
    assert drawn["switch"] == len({node.switch for node in found} - {None})
    assert drawn["held"] == sum(node.accelerators_taken for node in found)
    assert drawn["held"] + drawn["rest"] == 8 * len(found)
    assert drawn["is-ill"] == sum(node.state in ("draining", "drained", "down", "unknown") for node in found)


@given(st.lists(nodes, min_size=1, max_size=40))
def test_boxes_lie_in_the_picture_and_not_over_each_other(found: list[NodeStatus]) -> None:
    picture = cluster_picture(found)
    assert picture is not None
    _, _, width, height = map(float, picture.get("viewBox", "").split())
    boxes = [each for each in picture.iter("rect") if set(each.get("class", "").split()) & {"node", "switch"}]
    places = [tuple(float(each.get(name, "0")) for name in ("x", "y", "width", "height")) for each in boxes]
    assert all(x >= 0 and y >= 0 and x + w <= width and y + h <= height for x, y, w, h in places)
    assert len({(x, y) for x, y, _, _ in places}) == len(places)


def test_a_node_without_accelerators_shows_its_cores_and_words_say_what_the_picture_shows() -> None:
    node = NodeStatus(name="login", state="drained", reason="<b>fan</b>", cores=8, cores_taken=4)
    picture = cluster_picture([node])
    assert picture is not None
    held, rest = (float(next(each for each in picture.iter("rect") if each.get("class") == css).get("width", "0"))
                  for css in ("held", "rest"))  # fmt: skip
    assert held == rest / 2
    assert "login drained, 4 of 8 cores held, <b>fan</b>" in picture.get("aria-label", "")


def test_a_box_says_the_state_and_the_failures_of_its_node() -> None:
    history = NodeHistory(score=3.0, failures=2, held_s=3600.0)
    worn = NodeStatus(name="n1", state="drained", accelerators=8, history=history)
    picture = cluster_picture([worn, NodeStatus(name="n2", state="free", accelerators=8)])
    assert picture is not None
    texts = [each.text for each in picture.iter("text")]
    assert texts == ["n1", "drained, failed 2x", "n2", "free"]
    assert marks(picture)["is-drained"] == 1


def test_without_nodes_there_is_no_picture() -> None:
    assert cluster_picture([]) is None
