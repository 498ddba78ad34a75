"""Power, electricity and carbon."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.catalog.cluster import parse_cluster
from trainworks.errors import UsageError
from trainworks.plan.cost.energy import carbon, energy, node_power
from trainworks.plan.trace import Traced, fact

NODE = parse_cluster("DGX H100")


def hours(value: float) -> Traced:
    return fact("hours", value, "h", source="the test")


@pytest.mark.parametrize(
    ("cluster", "power_w"),
    [("DGX H100", 10_200), ("4x p5.48xlarge", 10_200), ("64x H100", 10_200), ("DGX A100", 6_500)],
)
def test_a_node_takes_what_its_vendor_says(cluster: str, power_w: float) -> None:
    assert node_power(parse_cluster(cluster)).value == power_w


@pytest.mark.parametrize(("cluster", "part_w"), [("4x H100", 4 * 700), ("8x L4", 8 * 72)])
def test_an_unpublished_node_takes_what_its_accelerators_take_and_more(cluster: str, part_w: float) -> None:
    assert node_power(parse_cluster(cluster)).value == pytest.approx(1.8 * part_w)


def test_a_power_that_nobody_publishes_has_to_be_said() -> None:
    with pytest.raises(UsageError, match="no published figure for TPU-v5p"):
        node_power(parse_cluster("8x TPU-v5p"))
    assert node_power(parse_cluster("8x TPU-v5p"), {"node power": 2500.0}).value == 2500


def test_energy_is_power_share_and_pue_times_hours() -> None:
    found = energy(NODE, hours(100), {"power while training": 0.8, "PUE": 1.4})
    assert found.value == pytest.approx(10_200 * 0.8 * 1.4 * 100)


@given(st.integers(1, 500), st.floats(0.1, 8760))
def test_energy_grows_with_nodes_and_hours_alike(nodes: int, used: float) -> None:
    many = energy(parse_cluster(f"{nodes}x DGX H100"), hours(used))
    assert many.value == pytest.approx(nodes * used * energy(NODE, hours(1)).value)


def test_carbon_is_that_of_the_grid() -> None:
    assert carbon(fact("energy", 1e6, "Wh", source="the test"), "Sweden").value == pytest.approx(41)


def test_without_a_grid_carbon_ranges_from_the_cleanest_to_the_dirtiest() -> None:
    intensity = carbon(energy(NODE, hours(1))).inputs["intensity"]
    assert (intensity.low, intensity.value, intensity.high) == (0.01136, 0.481, 0.716)


def test_an_unknown_grid_is_refused() -> None:
    with pytest.raises(UsageError, match="no grid `Atlantis`"):
        carbon(energy(NODE, hours(1)), "Atlantis")
