"""Power, racks and cooling."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainworks.catalog.cluster import parse_cluster
from trainworks.plan.sizing.facility import facility_of, nodes_per_rack


def test_a_dgx_h100_takes_half_of_an_air_cooled_rack() -> None:
    found = facility_of(parse_cluster("4x DGX H100"), {"PUE": 1.5, "air-cooled rack": 21.0})
    assert found.it_power.value == 40_800.0
    assert found.power.value == 61_200.0
    assert found.racks.value == 2
    assert found.cooling.endswith("2 nodes a rack; air is enough")


def test_a_rack_scale_system_needs_liquid() -> None:
    assert facility_of(parse_cluster("18x GB200 NVL72 tray"), {}).cooling.endswith("it needs liquid cooling")


def test_four_nvl72_take_four_racks_of_eighteen_trays() -> None:
    cluster = parse_cluster("4x GB200 NVL72")
    found = facility_of(cluster, {})
    assert (found.racks.value, nodes_per_rack(cluster)) == (4, 18)
    assert found.cooling.startswith("a rack holds 18 of these nodes, 120 kW")


def test_a_tpu_pod_is_not_one_rack() -> None:
    assert nodes_per_rack(parse_cluster("TPU v5p pod")) < 100


def test_a_node_above_what_air_takes_needs_liquid() -> None:
    assert facility_of(parse_cluster("2x DGX B300"), {"air-cooled rack": 10.0}).cooling.endswith("needs liquid cooling")


@given(st.integers(1, 2000), st.floats(1.0, 2.0))
def test_power_grows_with_nodes_and_with_losses(nodes: int, pue: float) -> None:
    found = facility_of(parse_cluster(f"{nodes}x DGX H100"), {"PUE": pue})
    more = facility_of(parse_cluster(f"{nodes + 1}x DGX H100"), {"PUE": pue + 0.1})
    assert more.power.value > found.power.value >= found.it_power.value
    assert more.racks.value >= found.racks.value
