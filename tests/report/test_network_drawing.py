"""Drawings of networks: everything is in them, in few enough boxes, as well-formed SVG and DOT."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings

import trainworks
from tests.lanes import examples
from tests.plan.network.networks import network, networks
from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.support import support_networks
from trainworks.report.network_drawing import Graph, network_dot, network_graph, network_svg

few = settings(max_examples=examples(25))


def graph(design: NetworkDesign) -> Graph:
    return network_graph(design, support_networks(design))


def svg(design: NetworkDesign) -> ET.Element:
    return ET.fromstring(network_svg(design, support_networks(design)))  # our own text


def words(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


@few
@given(networks())
def test_boxes_hold_every_node_and_no_switch_twice(design: NetworkDesign) -> None:
    rows = {row: sum(box.devices for box in boxes) for row, boxes in graph(design).rows.items()}
    assert rows["node"] == design.nodes
    for tier, count in design.switches.items():
        assert rows[tier] <= count


@few
@given(networks())
def test_lines_stand_for_all_links_of_nodes_and_switches(design: NetworkDesign) -> None:
    found = graph(design)
    storage = sum(bundle.links for bundle in found.bundles if bundle.end.row.startswith("storage"))
    links = sum(bundle.links for bundle in found.bundles) + sum(found.inside.values()) - storage
    assert links >= design.num_cables - design.spare_cables


@few
@given(networks())
def test_no_row_has_more_boxes_than_can_be_read(design: NetworkDesign) -> None:
    assert all(len(boxes) <= 32 for boxes in graph(design).rows.values())


@few
@given(networks())
def test_a_drawing_is_well_formed_and_has_a_box_for_each_of_the_graph(design: NetworkDesign) -> None:
    boxes = sum(len(row) for row in graph(design).rows.values())
    assert len(list(svg(design).iter("{http://www.w3.org/2000/svg}rect"))) == boxes + 1


def test_sixteen_nodes_are_drawn_one_by_one() -> None:
    found = graph(network("rail-optimised"))
    assert [len(found.rows[row]) for row in ("spine", "leaf", "node")] == [4, 8, 16]
    assert found.rows["leaf"][7].label == "8, rail 8"


def test_a_thousand_nodes_are_drawn_in_eight_boxes_with_the_links_on_their_lines() -> None:
    design = network("3-tier", on="1024 nodes of DGX B200")
    assert [len(graph(design).rows[row]) for row in ("core", "spine", "leaf", "node")] == [8, 8, 8, 8]
    assert words(svg(design)).count("128 nodes") == 8
    assert words(svg(design)).count("1,024") == 16


def test_lines_of_a_rail_have_one_colour() -> None:
    bundles = [bundle for bundle in graph(network("rail-optimised")).bundles if bundle.end.row == "leaf"]
    assert {(bundle.end.index, bundle.rail) for bundle in bundles if bundle.start.row == "node"} == {
        (rail, rail) for rail in range(8)
    }


@pytest.mark.parametrize("topology", ["ring", "torus"])
def test_neighbours_in_a_row_are_joined_by_arcs(topology: str) -> None:
    paths = [path.get("d", "") for path in svg(network(topology)).iter("{http://www.w3.org/2000/svg}path")]
    assert sum("C" in path for path in paths) > 0


def test_a_name_with_special_characters_is_written_safely() -> None:
    design = network(on="16 nodes of 8x A100-SXM-80GB over 8x HDR with SHARP")
    named = design.cluster.model_copy(update={"name": 'a "b" <c>'})
    odd = network("star").__class__(
        **{name: getattr(design, name) for name in design.__dataclass_fields__} | {"cluster": named}
    )
    assert 'a "b" <c>' in words(svg(odd))
    assert network_dot(odd, support_networks(odd)).startswith('graph "a \\"b\\" <c>" {')


@few
@given(networks())
def test_a_dot_graph_names_only_boxes_that_it_has(design: NetworkDesign) -> None:
    text = network_dot(design, support_networks(design))
    boxes = set(re.findall(r'"([^"]+)" \[label', text))
    joined = {
        name for line in text.splitlines() if " -- " in line for name in re.findall(r'"([^"]+)"', line.split("[")[0])
    }
    assert joined <= boxes
    assert text.count("{") == text.count("}")


def test_a_drawing_has_the_addresses_of_all_networks() -> None:
    plan = trainworks.network(on="16 nodes of 8x H100 over 8x RoCE 400")
    text = " ".join(words(ET.fromstring(network_svg(plan.design, plan.support))))
    assert "management 10.10.0.0/16: nodes 10.10.1.1 to 10.10.1.16, compute switches 10.10.128.1" in text
    assert "storage 10.20.0.0/16: nodes 10.20.1.1 to 10.20.1.16" in text
    assert "compute 172.16.0.0/23: adapters 172.16.0.1 to 172.16.0.255, switches 172.16.1.254 to 172.16.1.253" in text
    assert "10.20.1.1 to 10.20.1.16" in network_dot(plan.design, plan.support)
