"""Storage and management networks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.plan.network.networks import cluster, network
from trainworks.plan.network.design import design_network
from trainworks.plan.network.support import support_networks

NODES = st.integers(2, 2000)


@given(NODES)
def test_every_node_has_two_ports_on_storage_leaves_that_have_them(nodes: int) -> None:
    found = support_networks(design_network(cluster(nodes)))
    assert 2 * nodes <= 36 * found.storage_leaves.value
    assert found.storage_leaves.value % 2 == 0


@given(NODES)
def test_storage_spines_have_a_port_for_each_link_of_the_leaves(nodes: int) -> None:
    found = support_networks(design_network(cluster(nodes)))
    between = found.storage_cables.value - 2 * nodes
    assert between in (0, 28 * found.storage_leaves.value)
    assert between <= 64 * found.storage_spines.value


@given(NODES, st.integers(1, 16))
def test_everything_has_a_port_on_the_management_network(nodes: int, nodes_per_rack: int) -> None:
    design = design_network(cluster(nodes))
    found = support_networks(design, nodes_per_rack=nodes_per_rack)
    managed = nodes + design.num_switches + found.storage_leaves.value + found.storage_spines.value
    managed += 2 * -(-nodes // nodes_per_rack)
    assert managed <= 48 * found.management_switches.value < managed + 48


def test_sixteen_nodes_have_one_pair_of_storage_leaves_and_one_management_switch() -> None:
    found = support_networks(network())
    assert [figure.value for figure in found.figures] == [2, 0, 32, 1, 32]
