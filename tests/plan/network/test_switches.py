"""Which switch fits a NIC, and how its ports are split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.catalog.catalog import names, switch
from trainworks.catalog.cluster import parse_cluster
from trainworks.errors import UsageError
from trainworks.plan.network.switches import find_switch, nic_bytes_per_s, ports_for


@pytest.mark.parametrize(
    ("over", "name", "links"),
    [
        ("8x HDR", "Quantum QM8700", 40),
        ("8x HDR100", "Quantum QM8700", 80),
        ("8x NDR", "Quantum-2 QM9700", 64),
        ("8x RoCE 400", "Spectrum-4 SN5400", 64),
        ("8x RoCE 800", "Spectrum-4 SN5600", 64),
        ("1x 100GbE", "Spectrum-4 SN5400", 256),
    ],
)
def test_the_switch_is_the_one_with_the_closest_ports(over: str, name: str, links: int) -> None:
    ports = ports_for(parse_cluster(f"4 nodes of 8x B300 over {over}"))
    assert (ports.switch.name, ports.count) == (name, links)


@given(st.sampled_from(names("switches")), st.sampled_from(("HDR100", "HDR", "NDR", "XDR")))
def test_a_split_port_is_no_slower_than_the_nic(name: str, nic: str) -> None:
    cluster = parse_cluster(f"4 nodes of 8x B300 over 8x {nic}")
    try:
        ports = ports_for(cluster, switch(name))
    except UsageError:
        assert switch(name).port_bytes_per_s < nic_bytes_per_s(cluster)
    else:
        assert ports.switch.port_bytes_per_s / ports.split >= 0.999 * nic_bytes_per_s(cluster)


def test_a_nic_that_its_slot_slows_down_takes_a_whole_port() -> None:
    assert ports_for(parse_cluster("4 nodes of 8x A100-SXM-80GB over 8x NDR")).count == 64


def test_two_planes_double_the_links() -> None:
    cluster = parse_cluster("64 nodes of DGX B300 over 8x RoCE 800")
    assert ports_for(cluster, switch("SN5600"), planes=2).count == 128


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4 nodes of DGX A100", "ports of 32x 100 Gb/s bring 100 Gb/s, and a NIC takes 200 Gb/s"),
        ("1 node of DGX A100", "is a single node: a network joins several"),
    ],
)
def test_a_switch_that_does_not_fit_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ports_for(parse_cluster(text.replace("1 node of", "1x")), find_switch("32x 100 Gb/s"))


def test_a_network_without_a_switch_in_the_catalogue_asks_for_one() -> None:
    with pytest.raises(UsageError, match="no switch for EFA NICs of 100 Gb/s"):
        ports_for(parse_cluster("4x p4d.24xlarge"))


@pytest.mark.parametrize("text", ["64x fast", "1x 100 Gb/s", "99999x 100 Gb/s", "64x 0 Gb/s"])
def test_ports_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="invalid switch"):
        find_switch(text)


def test_an_unknown_switch_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="no switch `QM9800`"):
        find_switch("QM9800")
