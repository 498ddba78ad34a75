"""Outliers: the figure, link or node that differs from its peers."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainworks.errors import UsageError
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.outliers import find_outliers, modified_z_scores, read_cables, with_cables

NODES = ("a", "b", "c", "d", "e")


def link(first: str, second: str, value: float, quantity: Quantity = Quantity.LINK_BANDWIDTH, rail: int = 0):
    return Measurement(quantity, value, f"{first} <-> {second}", "t", {"rail": rail, "transport": "nccl"})


def links(slow: dict[tuple[str, str], float], usual: float = 10e9) -> list[Measurement]:
    pairs = [(a, b) for index, a in enumerate(NODES) for b in NODES[index + 1 :]]
    return [link(a, b, slow.get((a, b), usual * (1 + 0.01 * index))) for index, (a, b) in enumerate(pairs)]


def test_the_score_is_the_published_formula() -> None:
    assert modified_z_scores([1, 2, 3, 4, 10]) == pytest.approx([-1.349, -0.6745, 0, 0.6745, 4.7215])


def test_a_slow_link_is_named_with_its_share_of_the_median() -> None:
    (found,) = find_outliers(links({("b", "d"): 5e9}))
    assert (found.subject, round(found.share, 2)) == ("b <-> d", 0.48)


def test_a_node_whose_links_are_slow_is_named_once() -> None:
    slow = {("a", "c"): 4e9, ("b", "c"): 4e9, ("c", "d"): 5e9, ("c", "e"): 5e9}
    assert [each.subject for each in find_outliers(links(slow))] == ["c"]


def test_a_link_with_a_high_latency_is_slow() -> None:
    fast = [link(a, "x", 2e-6, Quantity.LINK_LATENCY) for a in NODES]
    (found,) = find_outliers([*fast, link("y", "x", 8e-6, Quantity.LINK_LATENCY)])
    assert (found.subject, found.share) == ("y <-> x", 0.25)


@pytest.mark.parametrize(
    "values", [[10, 10, 10, 9.5], [10, 5], [10, 10, 10, 40]], ids=["within a tenth", "two differ", "better"]
)
def test_what_is_not_surely_worse_is_no_outlier(values: list[float]) -> None:
    assert find_outliers([Measurement(Quantity.GEMM, value, f"n{value}", "t") for value in values]) == []


def test_figures_of_other_sizes_formats_and_paths_are_not_compared() -> None:
    fast = [Measurement(Quantity.GEMM, 100.0, f"gpu{index}", "t", {"precision": "bf16"}) for index in range(4)]
    slow = [Measurement(Quantity.GEMM, 50.0, f"gpu{index}", "t", {"precision": "fp32"}) for index in range(4)]
    reads = [Measurement(Quantity.STORAGE_READ, 9.0, f"n{index} /data", "t") for index in range(4)]
    other = Measurement(Quantity.STORAGE_READ, 1.0, "n0 /home", "t")
    assert find_outliers([*fast, *slow, *reads, other]) == []


def test_a_rate_far_below_scattered_peers_is_an_outlier() -> None:
    scattered = [1000.0, 1600.0, 1300.0, 900.0, 1500.0, 1100.0, 1200.0, 100.0]
    (found,) = find_outliers([Measurement(Quantity.STORAGE_WRITE, rate, f"n{rate}", "t") for rate in scattered])
    assert found.measurement.value == 100.0


def test_a_straggler_among_devices_is_named() -> None:
    devices = [Measurement(Quantity.GEMM, 100.0 + index, f"n1 gpu{index}", "t") for index in range(7)]
    (found,) = find_outliers([*devices, Measurement(Quantity.GEMM, 70.0, "n1 gpu7", "t")])
    assert found.subject == "n1 gpu7"


def test_the_cables_of_a_slow_link_are_those_of_its_rail(tmp_path: Path) -> None:
    plan = tmp_path / "cables.csv"
    plan.write_text(
        "tier,cable,from_device,from_port,to_device,to_port,length_m\n"
        "node-switch,1,node1,nic1,switch1,1,10\nnode-switch,2,node1,nic2,switch2,1,10\n"
        "node-switch,3,node2,nic1,switch1,2,10\nnode-switch,4,node2,nic2,switch2,2,10\n"
    )
    slow = find_outliers([*(link("a", f"x{index}", 10.0) for index in range(4)), link("a", "b", 1.0, rail=1)])
    (found,) = (each for each in slow if each.subject == "a <-> b")
    assert with_cables(found, ["a", "b"], read_cables(plan)).cables == (
        "node-switch cable 2: node1 port nic2 to switch2 port 1",
        "node-switch cable 4: node2 port nic2 to switch2 port 2",
    )


def test_a_file_that_is_no_cable_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="cannot read the cable plan"):
        read_cables(tmp_path / "x.csv")
