"""Time of collectives over a network: the planner's where nothing blocks, never less where something does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.network.networks import cluster, network, networks
from trainworks.catalog.cluster import parse_cluster
from trainworks.catalog.cluster_words import AS_USUAL
from trainworks.plan.collectives import collective_s
from trainworks.plan.network.design import NetworkDesign, design_network
from trainworks.plan.network.traffic import (
    Message,
    all_to_all_share,
    apply_design,
    effective_cluster,
    message_time,
    placement_share,
    usual_messages,
)
from trainworks.plan.rates import link_rates

SIZES = st.floats(1e3, 1e10)
GIGABYTE = Message("all-reduce", "all_reduce", 1e9, 128)
SPREAD = Message("all-to-all", "all_to_all", 1e9, 128)


def everybody(design: NetworkDesign, size: float, kind: str = "all_reduce") -> Message:
    return Message("all", kind, size, design.cluster.num_accelerators)  # type: ignore[arg-type]


@given(networks(), SIZES)
def test_a_network_is_never_faster_than_the_planner_without_one(design: NetworkDesign, size: float) -> None:
    for kind in ("all_reduce", "all_to_all"):
        message, one = everybody(design, size, kind), np.ones(1)
        rates = link_rates(design.cluster.with_switching(AS_USUAL))
        ideal = collective_s(kind, one * size, one * message.ranks, one, rates)  # type: ignore[arg-type]
        assert message_time(design, message).value >= ideal[0] * (1 - 1e-9)


@given(networks(), SIZES)
def test_scattered_ranks_are_never_faster_than_ranks_in_order(design: NetworkDesign, size: float) -> None:
    message = everybody(design, size)
    assert message_time(design, message, "scattered").value >= message_time(design, message).value


@given(networks(), SIZES, st.floats(1.0, 10.0))
def test_a_larger_message_never_takes_less_time(design: NetworkDesign, size: float, factor: float) -> None:
    smaller, larger = everybody(design, size, "all_to_all"), everybody(design, size * factor, "all_to_all")
    assert message_time(design, larger).value >= message_time(design, smaller).value


@given(networks())
def test_shares_of_a_nic_lie_between_none_and_all(design: NetworkDesign) -> None:
    assert 0 < all_to_all_share(design) <= 1
    assert 0 < placement_share(design, "scattered") <= placement_share(design, "in order") == 1


@given(st.integers(2, 200), st.sampled_from(("spine-leaf", "rail-optimised", "rail-only", "multi-plane")))
def test_faster_nics_never_make_a_collective_slower(nodes: int, topology: str) -> None:
    slow, fast = (
        design_network(parse_cluster(f"{nodes} nodes of 8x B300 over 8x {nic}"), topology=topology)
        for nic in ("NDR", "XDR")
    )
    for message in usual_messages(slow.cluster):
        assert message_time(fast, message).value <= message_time(slow, message).value


@given(st.integers(30, 200), st.floats(1.0, 4.0))
def test_more_links_up_never_make_a_collective_slower(nodes: int, taper: float) -> None:
    full, tapered = (
        design_network(cluster(nodes), topology="spine-leaf", oversubscription=asked) for asked in (1.0, taper)
    )
    for message in usual_messages(full.cluster):
        assert message_time(full, message).value <= message_time(tapered, message).value


@pytest.mark.parametrize("topology", ["star", "spine-leaf", "rail-optimised", "rail-only", "multi-plane"])
def test_a_network_that_blocks_nothing_adds_only_the_latency_of_its_switches(topology: str) -> None:
    design, one = network(topology), np.ones(1)
    ideal = collective_s("all_reduce", one * 1e9, one * 128, one, link_rates(design.cluster))[0]
    assert message_time(design, GIGABYTE).value - ideal == pytest.approx((design.hops_worst - 1) * 130e-9 * 4, abs=1e-9)


def test_two_to_one_halves_the_bandwidth_of_scattered_ranks() -> None:
    on = "126 nodes of 8x H100 over 1x NDR"
    full, half = (network("spine-leaf", on, oversubscription=taper) for taper in (1.0, 2.0))
    assert (
        effective_cluster(half.cluster, half).node_bytes_per_s
        == effective_cluster(full.cluster, full).node_bytes_per_s / 2
    )
    assert link_rates(effective_cluster(half.cluster, half, "in order")) == link_rates(full.cluster)


@pytest.mark.parametrize("hardware", ["DGX H100", "8x H100 over 1x NDR", "p5.48xlarge"])
@pytest.mark.parametrize("nodes", [16, 64, 500])
def test_a_described_oversubscription_leaves_collectives_the_share_of_the_designed_network(
    nodes: int, hardware: str
) -> None:
    described, full = (parse_cluster(f"{nodes} nodes of {hardware}{ratio}") for ratio in (" at 4:1", ""))
    planned = apply_design(described)
    assert 0.25 <= link_rates(planned).node_bytes_per_s / link_rates(full).node_bytes_per_s <= 0.28
    if hardware != "p5.48xlarge":  # no switch of the catalogue
        seen = effective_cluster(described, design_network(described))
        assert link_rates(planned).node_bytes_per_s == pytest.approx(link_rates(seen).node_bytes_per_s)


def test_a_single_node_is_planned_as_it_is_described() -> None:
    described = parse_cluster("8x H100 at 4:1")
    assert apply_design(described) == described


def test_traffic_within_a_set_of_leaves_needs_no_spine() -> None:
    on = "84 nodes of DGX H100"
    spread = all_to_all_share(network("rail-optimised", on, oversubscription=2.0))
    assert spread == pytest.approx(0.5 / (1 - 1 / 2))
    assert all_to_all_share(network("spine-leaf", on, oversubscription=2.0)) == pytest.approx(0.5 / (1 - 1 / 16))


def test_a_ring_has_four_nths_of_its_nics_for_an_all_to_all() -> None:
    assert all_to_all_share(network("ring")) == pytest.approx(4 / 16)


def test_rails_that_meet_in_the_nodes_move_other_rails_bytes_over_the_scale_up_link() -> None:
    slow = parse_cluster("16 nodes of 8x L40S over 8x RoCE 400").model_copy(update={"node_bytes_per_s": 8 * 31e9})
    one, several = (design_network(slow, topology=name) for name in ("spine-leaf", "rail-only"))
    assert message_time(several, SPREAD).value >= message_time(one, SPREAD).value


def test_a_collective_within_nodes_needs_no_network() -> None:
    inside = Message("tensor parallel", "all_reduce", 1e8, 8)
    assert message_time(network("ring"), inside, "scattered").value == message_time(network("star"), inside).value


def test_a_torus_counts_the_nics_that_have_a_neighbour() -> None:
    torus = network("torus")
    assert effective_cluster(torus.cluster, torus, "in order").node_bytes_per_s == 6 * 25e9
