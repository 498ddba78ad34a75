"""Facts by name: aliases, errors, and the node that goes with an accelerator."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.catalog.catalog import (
    accelerator,
    family,
    find_row,
    link,
    load_catalog,
    names,
    node,
    reference_node,
    switch,
)
from trainworks.catalog.cluster import parse_cluster
from trainworks.catalog.rows import read_rows
from trainworks.errors import UsageError

PARTS = list(load_catalog().accelerators)
GIB = 2**30


@given(st.sampled_from(PARTS), st.sampled_from([str.lower, str.upper, str.title]), st.sampled_from(["", " ", "_"]))
def test_case_and_separators_of_a_name_do_not_matter(name: str, change, separator: str) -> None:
    assert accelerator(change(name).replace("-", separator)).name == name


def test_every_alias_finds_its_row() -> None:
    for row in read_rows("accelerators").values():
        assert {find_row(alias, "accelerators").name for alias in row.aliases} <= {row.name}


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("A100", "A100-SXM-80GB"),
        ("A100-80GB", "A100-SXM-80GB"),
        ("a100-sxm4-80gb", "A100-SXM-80GB"),
        ("A100-40GB", "A100-SXM-40GB"),
        ("H100", "H100-SXM-80GB"),
        ("H100-80GB", "H100-SXM-80GB"),
        ("H800-80GB", "H800-SXM-80GB"),
        ("V100-16GB", "V100-SXM-16GB"),
        ("V100-32GB", "V100-SXM-32GB"),
        ("B200-180GB", "B200-180GB"),
        ("B300-288GB", "B300-288GB"),
        ("GB200-192GB", "GB200-186GB"),
        ("GB300-288GB", "GB300-288GB"),
        ("TPU v4", "TPU-v4"),
        ("MI300X", "MI300X-192GB"),
    ],
)
def test_published_tables_names_are_known(written: str, name: str) -> None:
    assert accelerator(written).name == name


def test_the_parts_that_a_family_name_leaves_out_are_listed() -> None:
    assert family("A100") == ("A100-PCIE-40GB", "A100-PCIE-80GB", "A100-SXM-40GB")


def test_an_unknown_accelerator_names_the_nearest_three() -> None:
    with pytest.raises(UsageError, match="no accelerator `H30`") as raised:
        accelerator("H30")
    assert raised.value.hint is not None
    assert "`H20-SXM-96GB`, `RTX-3090-24GB`, `H100-SXM-80GB`" in raised.value.hint


def test_a_thing_that_cannot_be_planned_with_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="a class of chips, not a part") as raised:
        accelerator("fpga")
    assert raised.value.hint == "use a GPU, TPU, Trainium or Gaudi"


def test_a_name_is_a_node_or_an_accelerator_and_never_both() -> None:
    taken = [names("accelerators"), names("nodes"), names("links"), names("switches")]
    assert len({name for kind in taken for name in kind}) == sum(map(len, taken))


@pytest.mark.parametrize("name", [name for name in PARTS if load_catalog().accelerators[name].reference_node])
def test_a_reference_node_holds_the_accelerator_it_was_asked_for(name: str) -> None:
    found = reference_node(name)
    assert found.accelerator == name
    assert found.nics >= 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A100-SXM-80GB", ("DGX A100 80GB", 8, 8, 8, 25e9)),
        ("H100-SXM-80GB", ("DGX H100", 8, 8, 8, 50e9)),
        ("B200", ("DGX B200", 8, 8, 8, 50e9)),
        ("GB200", ("GB200 NVL72 tray", 4, 72, 4, 50e9)),
        ("V100-32GB", ("DGX-1V 32GB", 8, 8, 4, 12.5e9)),
        ("L40S", ("PCIe node with L40S-48GB", 8, 1, 1, 12.5e9)),
        ("A100-PCIE-80GB", ("PCIe node with A100-PCIE-80GB", 8, 2, 1, 12.5e9)),
    ],
)
def test_reference_nodes(name: str, expected: tuple[str, int, int, int, float]) -> None:
    found = reference_node(name)
    assert (found.name, found.accelerators, found.scale_up_domain, found.nics, found.nic_bytes_per_s) == expected


def test_an_accelerator_without_a_known_node_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="the catalogue has no node with MI455X-432GB"):
        reference_node("MI455X")


def test_a_part_is_what_the_framework_sees() -> None:
    part = accelerator("A100-80GB")
    assert part.memory_bytes == 80 * GIB
    assert part.usable_bytes == pytest.approx(79.25 * GIB)
    assert part.peak_flops_per_s == {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12}
    assert part.scale_up_bytes_per_s == 300e9


def test_parts_without_bf16_do_not_have_a_rate_for_it() -> None:
    assert not {"bf16", "tf32"} & set(accelerator("V100").peak_flops_per_s)


def test_an_instance_has_the_nics_that_training_can_use() -> None:
    found = node("a3-megagpu-8g")
    assert found.nics * found.nic_bytes_per_s == 200e9


def test_links_and_switches_are_found_by_what_people_call_them() -> None:
    assert link("hdr200").bytes_per_s == 25e9
    assert switch("QM9700").ports == 64


def test_no_fabric_counts_on_switches_that_add_up_unless_its_design_has_them() -> None:
    for found in load_catalog().nodes.values():
        assert not found.in_network_reduction or found.network == "InfiniBand"


def test_a_bridge_joins_two_cards() -> None:
    cluster = parse_cluster("2 nodes of 4x A6000 with NVLink bridges over 1x HDR")
    assert (cluster.scale_up_domain, cluster.scale_up_bytes_per_s) == (2, 56.25e9)
    assert accelerator("RTX 3090 at 280 W with NVLink bridge").power_w == 280
    assert accelerator("A100-PCIE-80GB with NVLink bridge") == accelerator("A100-PCIE-80GB")
    assert parse_cluster("2x RTX 3090").scale_up_bytes_per_s == 0


def test_a_bridge_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="no bridge joins two H100-SXM-80GB"):
        parse_cluster("8x H100-SXM-80GB with NVLink bridge")


@pytest.mark.parametrize("name", ["pipeline parallelism", "GDPR", "MLPerf", "quarterly report"])
def test_a_name_that_resembles_nothing_gets_no_suggestion(name: str) -> None:
    with pytest.raises(UsageError) as found:
        find_row(name)
    assert found.value.hint == "`trainworks catalog list` has all"


@pytest.mark.parametrize(("name", "kind"), [("H10O", "accelerators"), ("DGX H10", "nodes"), ("NDR4", "links")])
def test_suggestions_are_of_one_kind(name: str, kind: str) -> None:
    with pytest.raises(UsageError) as found:
        find_row(name)
    near = re.findall("`([^`]+)`", (found.value.hint or "").partition(";")[0])
    assert near and all(find_row(one).kind == kind for one in near)


@pytest.mark.parametrize("name", ["RDMA", "iWARP"])
def test_what_is_not_roce_is_not_explained_as_roce(name: str) -> None:
    assert "RoCE" not in find_row(name, "terms").name
    for written in read_rows("terms")[name].facts()["networks"]:
        assert parse_cluster(f"2 nodes of DGX H100 over {written}").nics
