"""Parts of a node that go together, and parts that do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.catalog.catalog import names, node, processor
from trainworks.catalog.cluster import parse_cluster
from trainworks.plan.cluster.hardware import HardwareFinding, check_hardware, starvation_note


def finding(text: str, part: str, cpu: str | None = None) -> HardwareFinding | None:
    """What the rule of that part says of one line of text."""
    found = check_hardware(parse_cluster(text), processor=None if cpu is None else processor(cpu))
    return next((item for item in found if item.part == part), None)


def test_a_nic_that_its_slot_cannot_feed_is_wasteful() -> None:
    found = finding("2 nodes of 8x A100-SXM-80GB over 8x NDR", "NIC")
    assert found is not None
    assert (found.verdict, found.meaning) == ("wasteful", "the slot cannot feed 37% of the NIC")


def test_one_hdr100_for_eight_accelerators_is_sixteen_times_too_little() -> None:
    found = finding("2 nodes of 8x A100-SXM-80GB over 1x HDR100", "NICs per accelerator")
    assert found is not None
    assert found.verdict == "too little"
    assert found.meaning.startswith("16 times less")


def test_a_plan_over_one_hdr100_names_the_shortfall_and_what_the_node_usually_has() -> None:
    told = starvation_note(parse_cluster("2 nodes of 8x A100-SXM-80GB over 1x HDR100"))
    assert told is not None
    assert "1 NIC for 8: 1.56 GB/s per accelerator, and 25.0 GB/s in DGX A100 80GB" in told


@pytest.mark.parametrize(
    "text", ["8x A100-SXM-80GB", "2 nodes of DGX A100", "1 node of 8x A100-SXM-80GB over 1x HDR100"]
)
def test_a_good_network_and_one_that_is_not_used_starve_nothing(text: str) -> None:
    assert starvation_note(parse_cluster(text)) is None


def test_a_processor_of_the_next_generation_does_not_belong_to_an_a100_board() -> None:
    found = finding("8x A100-SXM-80GB", "processor", "EPYC 9654")
    assert found is not None
    assert found.verdict == "mismatch"


def test_a_processor_of_the_generation_before_slows_every_slot() -> None:
    found = finding("8x H100", "processor", "EPYC 7713")
    assert found is not None
    assert "half as fast" in found.meaning


def test_eight_accelerators_with_eight_nics_need_pcie_switches() -> None:
    found = finding("2x DGX H100", "PCIe lanes", "Xeon Platinum 8480+")
    assert found is not None
    assert (found.value, found.limit) == ("8 accelerators and 8 NICs want 256", "2 x Xeon Platinum 8480+ has 160")


def test_cards_without_a_link_are_for_data_parallelism() -> None:
    found = finding("8x RTX-4090", "scale-up link")
    assert found is not None
    assert found.verdict == "note"


@pytest.mark.parametrize("name", [name for name in names("nodes") if node(name).processor])
def test_every_node_of_the_catalogue_goes_with_its_own_processor(name: str) -> None:
    found = finding(f"2x {name}", "processor", node(name).processor)
    assert found is not None
    assert found.verdict in ("fits", "note")


@given(st.integers(1, 16))
def test_more_nics_are_never_called_too_little_where_fewer_are_not(nics: int) -> None:
    few = finding(f"2 nodes of 8x H100 over {nics}x NDR", "NICs per accelerator")
    more = finding(f"2 nodes of 8x H100 over {nics + 1}x NDR", "NICs per accelerator")
    assert few is not None
    assert more is not None
    assert not (few.verdict == "fits" and more.verdict == "too little")


def test_two_processors_spend_lanes_on_the_link_between_them() -> None:
    found = finding("2x DGX A100", "PCIe lanes", "EPYC 7742")
    assert found is not None
    assert found.limit == "2 x EPYC 7742 has 160"
