"""Laws of every design: ports, bisection, taper, limits; which topology is chosen, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.plan.network.networks import NICS, NODES, PORTS, SWITCHED, TAPERS, a_switch, cluster, network, networks
from trainworks.api.network import network as plan_network
from trainworks.catalog.cluster import parse_cluster
from trainworks.errors import UsageError
from trainworks.plan.network.cables import cable_plan, nodes_by_leaf
from trainworks.plan.network.design import NetworkDesign, design_network, serves, topologies_compared
from trainworks.plan.network.switches import find_switch, fitting_switches
from trainworks.plan.network.topologies import TOPOLOGIES
from trainworks.report.network import document


@given(networks())
def test_there_are_switch_ports_for_all_links(design: NetworkDesign) -> None:
    assume(design.ports is not None)
    assert design.ports is not None
    between = sum(count for name, count in design.cables.items() if not name.startswith("node"))
    assert design.endpoints + 2 * between <= design.num_switches * design.ports.count


@given(networks())
def test_the_bisection_is_never_more_than_half_of_the_nics(design: NetworkDesign) -> None:
    assert 0 < design.bisection_links <= design.endpoints / 2
    assert design.oversubscription >= 1


@given(NODES, NICS, PORTS, st.sampled_from(SWITCHED[:6]))
def test_a_fat_tree_without_a_taper_has_the_bisection_of_half_of_its_nics(
    nodes: int, nics: int, ports: int, topology: str
) -> None:
    design = built(nodes, nics, ports, topology)
    assert design.bisection_links == design.endpoints / 2


@pytest.mark.parametrize("taper", [1.0, 3.0, 7.0])
def test_a_taper_divides_the_bisection_of_full_leaves_exactly(taper: float) -> None:
    leaves = round(64 * taper / (1 + taper))
    design = design_network(cluster(4 * leaves, 1), topology="spine-leaf", oversubscription=taper, switch=a_switch(64))
    assert design.oversubscription == taper


@given(NODES, NICS, PORTS, TAPERS)
def test_a_taper_is_never_exceeded(nodes: int, nics: int, ports: int, taper: float) -> None:
    design = built(nodes, nics, ports, "spine-leaf", taper)
    assert design.oversubscription <= taper * (1 + 1e-9)


@given(NODES, NICS, PORTS, st.sampled_from(SWITCHED))
def test_a_topology_holds_its_largest_cluster_and_refuses_one_more(
    nodes: int, nics: int, ports: int, topology: str
) -> None:
    most = built(nodes, nics, ports, topology).max_nodes
    assert most is not None
    assume(most * nics < 20000)
    assert built(most, nics, ports, topology).max_endpoints == most * nics
    with pytest.raises(UsageError, match="are too many"):
        design_network(cluster(most + 1, nics), topology=topology, switch=a_switch(ports))


@given(NODES, NICS, PORTS, st.sampled_from(("star", "3-tier", "dragonfly")))
def test_a_larger_cluster_never_needs_fewer_switches(nodes: int, nics: int, ports: int, topology: str) -> None:
    smaller, larger = built(nodes, nics, ports, topology), built(nodes + 1, nics, ports, topology)
    assert larger.num_switches >= smaller.num_switches


@given(NODES, NICS, PORTS)
def test_links_down_of_all_leaves_are_enough_for_all_nics(nodes: int, nics: int, ports: int) -> None:
    design = built(nodes, nics, ports, "rail-optimised")
    assert design.switches["leaf"] % design.rails == 0
    assert design.fabric.down * design.switches["leaf"] >= design.endpoints  # type: ignore[union-attr]


def built(nodes: int, nics: int, ports: int, topology: str, taper: float = 1.0) -> NetworkDesign:
    try:
        return design_network(cluster(nodes, nics), topology=topology, oversubscription=taper, switch=a_switch(ports))
    except UsageError:
        assume(False)
        raise


@pytest.mark.parametrize(
    ("on", "topology", "switches"),
    [
        ("4 nodes of DGX A100", "star", {"switch": 1}),
        ("16 nodes of DGX A100", "star", {"switch": 4}),
        ("64 nodes of DGX A100", "spine-leaf", {"leaf": 26, "spine": 20}),
        ("128 nodes of DGX B200", "rail-optimised", {"leaf": 32, "spine": 16}),
        ("1024 nodes of 8x L40S over 8x NDR", "multi-plane", {"leaf": 256, "spine": 128}),
        ("32 nodes of DGX H100", "rail-optimised", {"leaf": 8, "spine": 4}),
        ("8 nodes of DGX H100", "star", {"switch": 1}),
        ("1024 nodes of DGX B200", "rail-optimised", {"leaf": 256, "spine": 256, "core": 128}),
        ("60 nodes of DGX B300 over 8x RoCE 800", "multi-plane", {"leaf": 16, "spine": 8}),
        ("2x GB200 NVL72", "rail-optimised", {"leaf": 32, "spine": 9}),
        ("1x GB200 NVL72", "star", {"switch": 2}),
        ("4x GB300 NVL72", "star", {"switch": 2}),
        ("2048 nodes of DGX B200", "rail-optimised", {"leaf": 512, "spine": 512, "core": 256}),
        ("100 nodes of 8x L4 over 1x RoCE 400", "spine-leaf", {"leaf": 4, "spine": 2}),
        ("32 nodes of 8x L4 over 2x RoCE 400", "star", {"switch": 1}),
    ],
)
def test_the_topology_that_is_chosen(on: str, topology: str, switches: dict[str, int]) -> None:
    design = network(on=on)
    assert (design.topology, dict(design.switches)) == (topology, switches)


def test_sixteen_nodes_take_a_third_of_the_switches_in_a_star_that_a_spine_leaf_network_takes() -> None:
    star, tree = network("star"), network("spine-leaf")
    assert (star.num_switches, tree.num_switches) == (4, 11)
    assert (star.num_cables, tree.num_cables) == (128, 268)
    assert star.bisection_bytes_per_s == tree.bisection_bytes_per_s


def test_rails_that_no_scale_up_link_joins_meet_in_a_switch() -> None:
    design = network(on="32 nodes of 8x L40S over 8x RoCE 400")
    assert {"leaf", "spine"} <= set(design.switches)


@pytest.mark.parametrize("nodes", [3, 16, 65, 128, 257, 512, 1000, 2048])
@pytest.mark.parametrize(
    "node", ["DGX A100", "DGX H100 over 8x HDR", "8x L40S over 8x RoCE 400", "8x H100 over 1x HDR100"]
)
@pytest.mark.parametrize("oversubscription", [1.0, 2.0])
def test_no_topology_that_serves_needs_fewer_switches_where_no_design_is_sold(
    nodes: int, node: str, oversubscription: float
) -> None:
    of = parse_cluster(f"{nodes} nodes of {node}")
    chosen = design_network(of, oversubscription=oversubscription)
    every = topologies_compared(of, oversubscription=oversubscription, switch=chosen.switch)
    assert chosen.num_switches == min(each.num_switches for each in every if serves(each))


@pytest.mark.parametrize("nodes", [625, 2500, 12_500, 50_000, 100_000])
@pytest.mark.parametrize("over", ["400GbE", "RoCE 400", "NDR", "HDR"])
def test_a_network_of_any_size_takes_the_closest_switches_that_hold_it(nodes: int, over: str) -> None:
    of = parse_cluster(f"{nodes} nodes of DGX H100 over 8x {over}")
    design = design_network(of)
    assert serves(design) and design.nodes == nodes
    for smaller in design.too_small:
        assert not any(serves(each) for each in topologies_compared(of, switch=smaller))


def test_a_named_topology_takes_a_larger_switch_where_the_closest_does_not_hold_it() -> None:
    design = network("spine-leaf", "300 nodes of DGX H100")
    assert design.switch == find_switch("Q3400")
    assert design.too_small == (find_switch("QM9700"),)


def test_a_thousand_nodes_take_two_planes_of_two_tiers_instead_of_three_tiers() -> None:
    of = "1024 nodes of 8x L40S over 8x NDR"
    chosen, three = network(on=of), network("rail-optimised", of)
    assert (chosen.topology, chosen.num_switches, three.num_switches) == ("multi-plane", 384, 640)


def test_nodes_that_are_sold_in_units_get_the_switches_of_whole_units() -> None:
    some, all_of_it = network(on="33 nodes of DGX H100"), network(on="64 nodes of DGX H100")
    assert some.switches == all_of_it.switches == {"leaf": 16, "spine": 8}
    assert some.cables == {"node-leaf": 33 * 8, "leaf-spine": 512}
    assert [len(nodes) for nodes in nodes_by_leaf(some)] == [32, 1]


@pytest.mark.parametrize("on", ["32 nodes of DGX H100 over 8x NDR", "256x H100-SXM-80GB"])
def test_the_same_nodes_in_other_words_get_the_design_that_is_sold(on: str) -> None:
    assert network(on=on).switches == {"leaf": 8, "spine": 4}


@pytest.mark.parametrize("on", ["32 nodes of DGX H100 over 4x NDR", "32 nodes of DGX H100 over 8x RoCE 400"])
def test_other_adapters_are_not_in_the_design_that_is_sold(on: str) -> None:
    assert network(on=on).unit == 1


@pytest.mark.parametrize("on", ["16x GB200 NVL72", "3x GB300 NVL72", "30 nodes of GB200 NVL72 tray"])
def test_a_rack_of_one_scale_up_domain_stays_on_one_set_of_leaves(on: str) -> None:
    design = network("rail-optimised", on)
    together = nodes_by_leaf(design)
    assert all(nodes[0] % 18 == 0 and nodes == list(range(nodes[0], nodes[-1] + 1)) for nodes in together)


def test_a_rail_of_a_unit_of_racks_reaches_its_racks_without_a_core() -> None:
    design = network(on="16x GB200 NVL72")
    cables = list(cable_plan(design))
    leaves = {each.from_device: each.to_device for each in cables if each.from_port == "nic2"}
    spines: dict[str, set[str]] = {}
    for each in cables:
        if each.tier == "leaf-spine":
            spines.setdefault(each.from_device, set()).add(each.to_device)
    above = [spines[leaves[f"node{number}"]] for number in (1, 19, 144)]
    assert above[0] == above[1] == above[2]
    assert not above[0] & spines[leaves["node145"]]


def test_the_number_of_a_leaf_gives_its_set_and_rail() -> None:
    design = network(on="16x GB200 NVL72")
    found = [design.set_and_rail(leaf) for leaf in range(design.switches["leaf"])]
    assert [design.leaf_of(*each) for each in found] == list(range(design.switches["leaf"]))


def test_rails_of_several_switches_that_never_meet_do_not_serve() -> None:
    assert not serves(network("rail-only", "1024 nodes of DGX H100"))
    assert serves(network("rail-only", "64 nodes of DGX H100"))


def test_one_leaf_of_each_rail_makes_a_taper_harmless_between_nodes() -> None:
    assert network("rail-optimised", oversubscription=2).oversubscription == 1


def test_a_fabric_manager_takes_the_place_of_a_node() -> None:
    design = network("rail-optimised", "31 nodes of DGX H100", spare_slots=1)
    assert design.cables == {"node-leaf": 252, "leaf-spine": 256}
    with pytest.raises(UsageError, match="256 nodes are too many"):
        network("spine-leaf", "256 nodes of DGX H100", spare_slots=1, switch=find_switch("QM9700"))


def test_the_comparison_has_every_topology_that_holds_the_cluster() -> None:
    found = {design.topology for design in topologies_compared(parse_cluster("1024 nodes of DGX B200"))}
    assert found == set(TOPOLOGIES) - {"star", "spine-leaf"}


@pytest.mark.parametrize(
    ("topology", "on", "options", "message", "hint"),
    [
        (
            "spine-leaf",
            "300 nodes of DGX H100",
            {"switch": find_switch("QM9700")},
            "300 nodes are too many for `spine-leaf`: with 64 links on Quantum-2 QM9700 it holds 256 nodes of 8 NICs",
            "`3-tier` holds 8,192",
        ),
        ("moebius", "4 nodes of DGX A100", {}, "no topology `moebius`", f"there are auto, {', '.join(TOPOLOGIES)}"),
        ("ring", "4 nodes of 8x L4 over 1x RoCE 400", {}, "a ring needs 2 NICs in each node, but these have 1", None),
        (
            "dragonfly+",
            "4 nodes of DGX A100",
            {},
            "4 nodes are too few for a dragonfly+: fewer switches hold them",
            None,
        ),
        (
            "auto",
            "4 nodes of DGX A100",
            {"oversubscription": 0.5},
            "oversubscription must be at least 1, got 0.5",
            None,
        ),
        ("auto", "4 nodes of DGX A100", {"oversubscription": float("nan")}, "at least 1, got nan", None),
        (
            "spine-leaf",
            "4 nodes of DGX A100",
            {"oversubscription": 999},
            "oversubscription 999 leaves no link up",
            None,
        ),
        ("auto", "4 nodes of DGX A100", {"spare_slots": -1}, "spare slots must be at least 0, got -1", None),
        (
            "multi-plane",
            "4 nodes of DGX H100",
            {"switch": find_switch("64x 200 Gb/s")},
            "2 planes need ports that make 2 links",
            None,
        ),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_limit(
    topology: str, on: str, options: dict[str, float], message: str, hint: str | None
) -> None:
    with pytest.raises(UsageError, match=message.replace("+", r"\+")) as refused:
        network(topology, on, **options)
    assert hint is None or refused.value.hint == hint


@pytest.mark.parametrize("name", ["fat-tree", "Fat Tree", "Clos", "leaf-spine"])
def test_a_fat_tree_is_a_spine_leaf_network_where_two_tiers_hold_it(name: str) -> None:
    assert network(name, "16 nodes of DGX A100").topology == "spine-leaf"
    assert network(name, "1024 nodes of DGX B200").topology == "3-tier"


def test_a_topology_may_be_spelt_as_in_america() -> None:
    assert network("Rail-Optimized", "32 nodes of DGX A100").topology == "rail-optimised"


def test_a_topology_that_is_not_sold_is_explained() -> None:
    with pytest.raises(UsageError, match="is not a topology that is sold for clusters") as raised:
        network("full mesh")
    assert raised.value.hint == "take `rail-optimised` or `dragonfly`"


def test_switches_that_are_only_announced_are_tried_last_and_named_as_such() -> None:
    on = "4 nodes of DGX B300 over 8x RoCE 800"
    announced = [each.announced for each in fitting_switches(parse_cluster(on))]
    assert announced == sorted(announced) and any(announced)
    for name, is_announced in (("SN5600", False), ("SN6800", True)):
        notes = document(plan_network(on=on, switch=name)).notes
        assert any("is announced and cannot be bought yet" in note for note in notes) == is_announced
