"""Collectives: laws of size, ranks and distance, bounds of the links, and published nccl-tests."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.jobs import A100S, H100S
from trainworks.catalog.cluster import parse_cluster
from trainworks.plan.collectives import Collective, collective_s, point_to_point_s
from trainworks.plan.rates import link_rates

V100S = "16x V100-SXM-32GB over 1x EDR"
TEXTS = (A100S, H100S, V100S, "4x p4de.24xlarge", "64x GB200", "2 nodes of 8x L40S over HDR")
CLUSTERS = {text: parse_cluster(text) for text in TEXTS}
FABRICS = {text: link_rates(cluster) for text, cluster in CLUSTERS.items()}
KINDS = st.sampled_from(get_args(Collective))
FABRIC = st.sampled_from(TEXTS)
SIZES = st.integers(0, 40).map(lambda power: 2.0**power)
POWERS = st.integers(0, 5).map(lambda power: 2**power)


def seconds(kind: Collective, size: float, ranks: float, stride: float, text: str) -> float:
    """Of one collective on one cluster."""
    arrays = [np.array([float(value)]) for value in (size, ranks, stride)]
    return float(collective_s(kind, *arrays, FABRICS[text])[0])


@given(KINDS, SIZES, POWERS, FABRIC)
def test_one_rank_costs_nothing(kind: Collective, size: float, stride: int, text: str) -> None:
    assert seconds(kind, size, 1, stride, text) == 0


@given(KINDS, SIZES, POWERS, POWERS, FABRIC)
def test_a_larger_buffer_takes_longer(kind: Collective, size: float, ranks: int, stride: int, text: str) -> None:
    if ranks > 1:
        assert seconds(kind, 2 * size, ranks, stride, text) > seconds(kind, size, ranks, stride, text)


@given(KINDS, SIZES, POWERS, POWERS, FABRIC)
def test_two_buffers_at_once_take_at_most_one_after_the_other(
    kind: Collective, size: float, ranks: int, stride: int, text: str
) -> None:
    assert seconds(kind, 2 * size, ranks, stride, text) <= 2 * seconds(kind, size, ranks, stride, text) * (1 + 1e-12)


@given(SIZES, POWERS, POWERS, FABRIC)
def test_an_all_reduce_takes_no_less_than_an_all_gather_of_the_buffer(
    size: float, ranks: int, stride: int, text: str
) -> None:
    if size >= 2**28 or not CLUSTERS[text].scale_up_reduction:
        reduced, gathered = (seconds(kind, size, ranks, stride, text) for kind in ("all_reduce", "all_gather"))
        assert reduced >= gathered * (1 - 1e-12)


def test_a_small_all_reduce_in_the_switches_takes_no_less_than_an_all_gather() -> None:
    """Whoever can add can gather: everybody adds zeros to the others' parts."""
    assert seconds("all_reduce", 8, 8, 1, H100S) >= seconds("all_gather", 8, 8, 1, H100S)


@given(SIZES, POWERS, POWERS, FABRIC)
def test_an_all_gather_is_a_reduce_scatter_backwards(size: float, ranks: int, stride: int, text: str) -> None:
    assert seconds("all_gather", size, ranks, stride, text) == seconds("reduce_scatter", size, ranks, stride, text)


@given(KINDS, POWERS, POWERS, FABRIC)
def test_a_large_buffer_takes_no_less_between_nodes_than_within_one(
    kind: Collective, ranks: int, stride: int, text: str
) -> None:
    if text != TEXTS[-1]:  # two accelerators on PCIe are no nearer to each other than to the network
        assert seconds(kind, 2**33, ranks, 2 * stride, text) >= seconds(kind, 2**33, ranks, stride, text)


@pytest.mark.parametrize("text", [A100S, H100S])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_small_buffer_takes_no_less_over_two_nodes_than_within_one(text: str, ranks: int) -> None:
    assert seconds("all_reduce", 8, ranks, 16 / ranks, text) >= seconds("all_reduce", 8, ranks, 1, text)


@given(SIZES, POWERS, POWERS, FABRIC)
def test_more_ranks_take_no_less(size: float, ranks: int, stride: int, text: str) -> None:
    """Not so in a mesh, where every rank brings its links, nor in switches that add up, which need four ranks."""
    if not FABRICS[text].shares and not CLUSTERS[text].scale_up_reduction:
        assert seconds("all_reduce", size, 2 * ranks, stride, text) >= seconds("all_reduce", size, ranks, stride, text)


@pytest.mark.parametrize("ranks", range(2, 9))
def test_rings_of_a_dgx_1_are_whole(ranks: int) -> None:
    """Bus bandwidths of 1 GiB that vTrain measured on a V100, in GB/s."""
    measured = {2: 22.6, 3: 45.4, 4: 90.0, 5: 39.0, 6: 47.0, 7: 92.0, 8: 143.0}[ranks]
    bus = 2 * (ranks - 1) / ranks * 2**30 / seconds("all_reduce", 2**30, ranks, 1, V100S) / 1e9
    assert bus == pytest.approx(measured, rel=0.17)


def test_boards_of_four_join_pairs_and_those_of_eight_all() -> None:
    four, eight = (parse_cluster(f"2 nodes of {count}x H100-SXM over 4x NDR") for count in (4, 8))
    assert link_rates(four).shares == pytest.approx((1 / 3, 1 / 3, 2 / 3, 1))
    assert link_rates(eight).shares == ()


@given(SIZES, st.integers(2, 64), FABRIC)
def test_nobody_beats_the_links_of_the_scale_up_domain(size: float, ranks: int, text: str) -> None:
    """Every rank sends (n-1)/n of the buffer at least; twice that, where no switch adds up."""
    cluster = CLUSTERS[text]
    if cluster.scale_up_bytes_per_s and ranks <= cluster.scale_up_domain:
        sent = (1 if cluster.scale_up_reduction else 2) * (ranks - 1) / ranks * size
        assert seconds("all_reduce", size, ranks, 1, text) >= sent / cluster.scale_up_bytes_per_s


@given(SIZES, st.integers(2, 16), FABRIC)
def test_nobody_beats_the_interfaces_of_a_node(size: float, nodes: int, text: str) -> None:
    cluster = CLUSTERS[text]
    if cluster.scale_up_domain <= cluster.accelerators_per_node:
        ranks = nodes * cluster.accelerators_per_node
        bound = 2 * (nodes - 1) / nodes * size / cluster.node_bytes_per_s
        assert seconds("all_reduce", size, ranks, 1, text) >= bound


@given(SIZES, st.integers(2, 16), FABRIC)
def test_a_rank_alone_on_its_node_has_its_share_of_the_interfaces(size: float, ranks: int, text: str) -> None:
    """The other groups of the node are busy at the same time."""
    cluster = CLUSTERS[text]
    share = cluster.node_bytes_per_s / cluster.accelerators_per_node
    bound = 2 * (ranks - 1) / ranks * size / share
    assert seconds("all_reduce", size, ranks, FABRICS[text].domain, text) >= bound


def test_ranks_that_fill_no_whole_number_of_nodes_reduce_no_faster_than_they_gather() -> None:
    reduced, gathered = (seconds(kind, 2**33, 12, 1, "4x p4de.24xlarge") for kind in ("all_reduce", "all_gather"))
    assert reduced >= gathered


def test_switches_that_add_up_help_a_whole_domain() -> None:
    ring = FABRICS[H100S].in_switch_gain
    assert ring > 1
    assert FABRICS[A100S].in_switch_gain == 1


def test_an_nvl72_is_one_domain() -> None:
    assert FABRICS["64x GB200"].domain == 64
    assert seconds("all_reduce", 2**30, 64, 1, "64x GB200") < seconds("all_reduce", 2**30, 64, 1, H100S)


def test_accelerators_without_a_link_talk_over_the_host_s_bus() -> None:
    cluster = CLUSTERS[TEXTS[-1]]
    assert cluster.scale_up_bytes_per_s == 0
    assert 0 < FABRICS[TEXTS[-1]].scale_up_bytes_per_s <= cluster.accelerator.host_bytes_per_s / 2


def sent(size: float, stride: float, stages: int, text: str) -> float:
    """Seconds to the next stage."""
    arrays = (np.array([float(value)]) for value in (size, stride, stages))
    return float(point_to_point_s(*arrays, FABRICS[text])[0])


@given(SIZES, POWERS, FABRIC)
def test_a_pipeline_across_nodes_sends_no_faster_than_one_inside_a_node(size: float, stride: int, text: str) -> None:
    if CLUSTERS[text].scale_up_bytes_per_s and size > 2**20:
        assert sent(size, stride * FABRICS[text].domain, 2, text) > sent(size, 1, 2, text)


def test_a_pipeline_whose_stages_share_nodes_still_crosses_them() -> None:
    """Eight stages of four ranks on nodes of eight: every second boundary lies between nodes."""
    slow = "4 nodes of 8x A100-SXM-80GB over 1x 25 Gb/s"
    fabric = link_rates(parse_cluster(slow))
    arrays = (np.array([float(value)]) for value in (2**28, 4, 8))
    assert float(point_to_point_s(*arrays, fabric)[0]) > 2**28 / 3.2e9


@pytest.mark.parametrize(
    ("text", "size", "microseconds"),
    [
        pytest.param("8x A100-SXM-80GB", 2**28, 2162, id="vTrain, trace AR_GPU8"),
        pytest.param("8x H100-SXM", 2**30, 4253, id="AWS, one p5"),
        pytest.param(
            "2x p5.48xlarge", 2**30, 4608, id="AWS, two p5",
        ),
        pytest.param("2x p4de.24xlarge", 2**30, 26217, id="AWS, two p4de"),
    ],
)  # fmt: skip
def test_a_published_all_reduce_is_predicted_within_a_quarter(text: str, size: int, microseconds: float) -> None:
    cluster = parse_cluster(text)
    arrays = [np.array([float(value)]) for value in (size, cluster.num_accelerators, 1)]
    predicted = float(collective_s("all_reduce", *arrays, link_rates(cluster))[0])
    assert predicted == pytest.approx(microseconds * 1e-6, rel=0.25)
