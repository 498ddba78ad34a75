"""A cluster in one line of text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.catalog.catalog import accelerator, load_catalog, node, reference_node
from trainworks.catalog.cluster import (
    ClusterDescription,
    cluster_of_accelerators,
    cluster_of_nodes,
    fabric_of,
    parse_cluster,
)
from trainworks.errors import UsageError

PARTS = [name for name, part in load_catalog().accelerators.items() if part.reference_node]
NODES = [name for name, found in load_catalog().nodes.items() if found.nics and name != "PCIe node"]


def described(text: str) -> tuple[int, int, str, float, str]:
    """Nodes, accelerators of a node, accelerator, network of a node in GB/s and its kind."""
    found = parse_cluster(text)
    giga = found.node_bytes_per_s / 1e9
    return found.num_nodes, found.accelerators_per_node, found.accelerator.name, giga, found.network


@given(st.sampled_from(PARTS), st.integers(1, 64))
def test_whole_reference_nodes_hold_as_many_accelerators_as_were_asked_for(name: str, nodes: int) -> None:
    per_node = reference_node(name).accelerators
    found = parse_cluster(f"{nodes * per_node}x {name}")
    assert (found.num_nodes, found.num_accelerators) == (nodes, nodes * per_node)


@given(st.sampled_from(NODES), st.integers(1, 512))
def test_both_ways_to_count_nodes_mean_the_same(name: str, nodes: int) -> None:
    short, long = parse_cluster(f"{nodes}x {name}"), parse_cluster(f"{nodes} nodes of {name}")
    assert short.model_copy(update={"name": ""}) == long.model_copy(update={"name": ""})


@given(st.sampled_from(PARTS), st.integers(1, 16), st.integers(1, 16), st.integers(1, 8))
def test_everything_that_was_said_is_found_again(name: str, nodes: int, each: int, nics: int) -> None:
    found = parse_cluster(f"{nodes} nodes of {each}x {name} over {nics}x 100 Gb/s")
    assert (found.num_nodes, found.accelerators_per_node) == (nodes, each)
    assert found.node_bytes_per_s == pytest.approx(nics * min(12.5e9, accelerator(name).host_bytes_per_s))


@given(st.sampled_from(PARTS), st.integers(1, 512))
def test_a_scale_up_domain_is_never_larger_than_the_cluster(name: str, nodes: int) -> None:
    found = parse_cluster(f"{nodes} nodes of {name}")
    assert 1 <= found.scale_up_domain <= found.num_accelerators


@given(st.sampled_from(NODES), st.integers(1, 64), st.integers(1, 64))
def test_changing_the_number_of_nodes_gives_the_cluster_described_with_that_number(
    name: str, nodes: int, more: int
) -> None:
    derived = parse_cluster(f"{nodes} nodes of {name}").with_nodes(more)
    assert derived.same_hardware() == parse_cluster(f"{more} nodes of {name}").same_hardware()
    assert derived == cluster_of_nodes(node(name), more)


@given(st.sampled_from(NODES), st.integers(1, 64), st.integers(1, 8), st.sampled_from(["HDR", "RoCE 400", "TCP 25"]))
def test_changing_the_fabric_gives_the_cluster_described_over_it(name: str, nodes: int, nics: int, port: str) -> None:
    derived = parse_cluster(f"{nodes} nodes of {name}").with_fabric(fabric_of(nics, port))
    written = parse_cluster(f"{nodes} nodes of {name} over {nics}x {port}")
    assert (derived.same_hardware(), derived.node, derived.notes) == (
        written.same_hardware(),
        written.node,
        written.notes,
    )


@given(st.sampled_from(NODES), st.integers(1, 64), st.booleans(), st.sampled_from(("", " 4:1", " at 1.5:1")))
def test_the_name_of_a_derived_cluster_describes_the_same_cluster(
    name: str, nodes: int, sharp: bool, ratio: str
) -> None:
    first = parse_cluster(f"{name} over 8x NDR{ratio}{' with SHARP' if sharp else ''}")
    derived = first.with_nodes(nodes)
    assert parse_cluster(derived.name) == derived


@given(st.sampled_from(PARTS), st.integers(0, 9))
def test_a_count_of_accelerators_is_the_cluster_that_the_text_describes(name: str, power: int) -> None:
    count = 2**power
    try:
        written = parse_cluster(f"{count}x {name}")
    except UsageError as error:
        with pytest.raises(UsageError) as raised:
            cluster_of_accelerators(accelerator(name), count)
        assert raised.value.message == error.message
    else:
        assert cluster_of_accelerators(accelerator(name), count) == written


def test_a_smaller_part_of_a_rack_has_a_smaller_scale_up_domain() -> None:
    assert parse_cluster("GB200 NVL72").with_nodes(2).scale_up_domain == 8


def test_a_fabric_replaces_the_notes_of_the_fabric_before_it() -> None:
    derived = parse_cluster("4 nodes of 8x A100 over 8x NDR").with_fabric(fabric_of(8, "HDR"))
    assert derived.notes == ()


def test_nodes_without_a_network_cannot_be_made_several() -> None:
    with pytest.raises(UsageError, match="no bandwidth between nodes of gpu_8x_b200_sxm6 is published"):
        parse_cluster("gpu_8x_b200_sxm6").with_nodes(2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4x p4d.24xlarge", (4, 8, "A100-SXM-40GB", 50.0, "EFA")),
        ("4 nodes of 8x A100-SXM-80GB over 8x HDR", (4, 8, "A100-SXM-80GB", 200.0, "InfiniBand")),
        ("16 nodes of DGX H100", (16, 8, "H100-SXM-80GB", 400.0, "InfiniBand")),
        ("64x H100-SXM-80GB", (8, 8, "H100-SXM-80GB", 400.0, "InfiniBand")),
        ("8x A100-SXM-80GB", (1, 8, "A100-SXM-80GB", 200.0, "InfiniBand")),
        ("3 nodes of 8x H100 over 4x 200 Gb/s", (3, 8, "H100-SXM-80GB", 100.0, "unnamed")),
        ("48 nodes of 8x A100 over 4x Omni-Path", (48, 8, "A100-SXM-80GB", 50.0, "Omni-Path")),
        ("4 nodes of 4x A100-40GB over HDR", (4, 4, "A100-SXM-40GB", 200.0, "InfiniBand")),
        ("4 nodes of 4x A100-40GB over 1x HDR", (4, 4, "A100-SXM-40GB", 25.0, "InfiniBand")),
        ("4 nodes of 8x A100 over 100GbE", (4, 8, "A100-SXM-80GB", 12.5, "RoCE")),
        ("4 nodes of 8x A100 over TCP 25", (4, 8, "A100-SXM-80GB", 3.125, "TCP")),
        ("2 servers of 8x A100 GPUs over HDR InfiniBand", (2, 8, "A100-SXM-80GB", 200.0, "InfiniBand")),
        ("2 nodes of 8x A100 80GB SXM4 over 1x 40GbE", (2, 8, "A100-SXM-80GB", 5.0, "TCP")),
        ("16 MI300X", (2, 8, "MI300X-192GB", 400.0, "RoCE")),
        ("4 nodes of 8 A100 over 8 HDR", (4, 8, "A100-SXM-80GB", 200.0, "InfiniBand")),
        ("4 x GB200 NVL72", (72, 4, "GB200-186GB", 200.0, "InfiniBand")),
        ("4 racks of GB200 NVL72", (72, 4, "GB200-186GB", 200.0, "InfiniBand")),
        ("GB300 NVL72 over 4x NDR", (18, 4, "GB300-288GB", 200.0, "InfiniBand")),
        ("4x GB200 NVL72 tray", (4, 4, "GB200-186GB", 200.0, "InfiniBand")),
        ("1 node of 8x H100", (1, 8, "H100-SXM-80GB", 400.0, "InfiniBand")),
        ("DGX B200", (1, 8, "B200-180GB", 400.0, "InfiniBand")),
        ("4x L40S", (1, 4, "L40S-48GB", 12.5, "RoCE")),
        ("64x H100 over 4x NDR", (8, 8, "H100-SXM-80GB", 200.0, "InfiniBand")),
    ],
)
def test_forms_of_a_cluster(text: str, expected: tuple[int, int, str, float, str]) -> None:
    assert described(text) == expected


def test_half_a_node_is_one_node_with_fewer_accelerators() -> None:
    found = parse_cluster("4x A100")
    assert (found.num_nodes, found.accelerators_per_node, found.scale_up_domain) == (1, 4, 4)


def test_an_nvl72_domain_spans_nodes() -> None:
    found = parse_cluster("144x GB200")
    assert (found.num_nodes, found.accelerators_per_node, found.scale_up_domain) == (36, 4, 72)


def test_a_card_in_a_pcie_slot_has_no_scale_up() -> None:
    assert parse_cluster("8x L40S").scale_up_bytes_per_s == 0.0


def test_a_bridge_joins_two_cards() -> None:
    assert parse_cluster("8x A100-PCIE-80GB").scale_up_domain == 2


def test_a_nic_counts_with_no_more_than_its_slot() -> None:
    found = parse_cluster("4 nodes of 8x A100 over 8x NDR")
    assert found.node_bytes_per_s == pytest.approx(8 * 31.508e9)
    assert found.notes == ("a NIC of 50.0 GB/s counts with the 31.5 GB/s of its PCIe slot",)


def test_what_was_assumed_is_noted() -> None:
    assert parse_cluster("64x H100").notes == ("nodes of 8 accelerators, as in DGX H100",)


def test_switches_add_up_only_where_the_text_says_so() -> None:
    assert not parse_cluster("16 nodes of DGX H100").in_network_reduction
    assert parse_cluster("16 nodes of DGX H100 with SHARP").in_network_reduction


@pytest.mark.parametrize(
    "text",
    [
        "64 nodes of DGX H100 4:1",
        "64 nodes of DGX H100 at 4:1",
        "64 nodes of DGX H100, 4:1 oversubscribed",
        "64 nodes of DGX H100 oversubscribed 8:2",
        "64 nodes of DGX H100 over 8x NDR with 4:1 oversubscription",
        "64 nodes of DGX H100 4:1 over 8x NDR with SHARP",
        "512x H100 at 4:1 with SHARP",
        "64 nodes of DGX H100, oversubscription 4:1 and with SHARP",
        "64 nodes of DGX H100 with an oversubscription of 4:1",
        "64 nodes of DGX H100 tapered 4:1",
    ],
)
def test_the_oversubscription_of_the_leaves_may_stand_behind_nodes_or_network(text: str) -> None:
    found = parse_cluster(text)
    assert (found.oversubscription, found.in_network_reduction) == (4, "SHARP" in text)
    assert found.node_bytes_per_s == parse_cluster("64 nodes of DGX H100").node_bytes_per_s


@pytest.mark.parametrize("ratio", ["1:4", "100:1", "4:0"])
def test_a_ratio_that_no_leaf_has_is_refused(ratio: str) -> None:
    with pytest.raises(UsageError, match="from 1:1 to 64:1, links down to links up of a leaf"):
        parse_cluster(f"64 nodes of DGX H100 {ratio}")


def test_a_description_is_frozen() -> None:
    assert ClusterDescription.model_config["frozen"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("0x H100", "the count must be at least 1"),
        ("4 nodes", "neither an accelerator"),
        ("64 H101", "neither an accelerator"),
        ("4x p4q.24xlarge", "`p4d.24xlarge`"),
        ("slurm:train", "neither an accelerator"),
        ("4 nodes of 8x H100 over 8x SDR", "`SDR` is not a network"),
        ("4 nodes of 8x H100 over 8x NVLink4", "`NVLink4` is not a network"),
        ("4 nodes of 8x H100 over 0x HDR", "the count must be at least 1"),
    ],
)
def test_a_text_that_describes_no_cluster_is_refused_with_the_forms(text: str, why: str) -> None:
    with pytest.raises(UsageError, match="does not describe a cluster") as raised:
        parse_cluster(text)
    assert why in raised.value.message
    assert raised.value.hint is not None
    assert raised.value.hint.startswith("write it like `4x p4d.24xlarge`, `16 nodes of DGX H100`")


def test_accelerators_that_do_not_fill_nodes_are_refused_with_both_neighbours() -> None:
    with pytest.raises(UsageError, match="12 accelerators do not fill whole nodes: DGX H100 has 8") as raised:
        parse_cluster("12x H100")
    assert raised.value.hint is not None
    assert "`8x H100-SXM-80GB` or `16x H100-SXM-80GB`" in raised.value.hint


def test_several_nodes_need_a_network() -> None:
    with pytest.raises(UsageError, match="no bandwidth between nodes of gpu_8x_b200_sxm6 is published"):
        parse_cluster("2x gpu_8x_b200_sxm6")
    assert parse_cluster("gpu_8x_b200_sxm6").node_bytes_per_s == 0.0
    assert parse_cluster("2x gpu_8x_b200_sxm6 over 8x NDR").node_bytes_per_s == 400e9


def test_a_chip_that_cannot_be_planned_with_says_so() -> None:
    with pytest.raises(UsageError, match="cannot be planned with: one package is two devices"):
        parse_cluster("4 nodes of 4x MI250X")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("100000000 nodes of DGX H100", "accelerators is 100,000,000, above the limit of 10,000,000"),
        ("9999999 nodes of DGX H100", "accelerators is 79,999,992, above the limit of 10,000,000"),
        ("4 nodes of 100000x H100", "accelerators per node is 100,000, above the limit of 1,024"),
        ("4 nodes of 8x H100 over 100000x NDR", "NICs per node is 100,000, above the limit of 1,024"),
        ("9" * 5000 + "x H100", "it has 5006 characters, more than 200"),
    ],
)
def test_a_count_above_its_limit_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_cluster(text)


SYSTEMS = list(load_catalog().systems)


@given(st.sampled_from(SYSTEMS), st.integers(1, 64))
def test_a_system_counts_with_all_of_its_nodes(name: str, count: int) -> None:
    found, of = parse_cluster(f"{count}x {name}"), load_catalog().systems[name]
    assert (found.num_nodes, found.node and found.node.name) == (count * of.nodes, of.node)
    assert name in found.notes[0]


def test_four_nvl72_racks_are_288_accelerators_in_domains_of_72() -> None:
    found = parse_cluster("4 x GB200 NVL72")
    assert (found.num_accelerators, found.scale_up_domain, found.num_nodes * found.nics) == (288, 72, 288)
    assert found.notes == ("GB200 NVL72: a rack of 18 nodes of 4 accelerators, 72 in all",)


def test_nodes_of_a_rack_are_ambiguous_and_both_readings_are_offered() -> None:
    with pytest.raises(UsageError, match="one GB200 NVL72 is a rack of 18 nodes") as raised:
        parse_cluster("4 nodes of GB200 NVL72")
    assert raised.value.hint == "write `4x GB200 NVL72` for 4 of them, or `4 nodes of GB200 NVL72 tray`"


def test_a_node_is_not_counted_in_racks() -> None:
    with pytest.raises(UsageError, match="`DGX H100` is not sold as a rack"):
        parse_cluster("8 racks of DGX H100")


def test_a_network_without_a_count_is_that_of_every_nic_and_noted() -> None:
    found = parse_cluster("4 nodes of 8x A100 over HDR100")
    assert (found.nics, found.node_bytes_per_s) == (8, 100e9)
    assert "HDR100 on each of the 8 NICs of a node; `1x HDR100` is one" in found.notes


def test_a_bandwidth_in_bytes_is_noted() -> None:
    notes = parse_cluster("4 nodes of 8x H100 over 8x 50 GB/s").notes
    assert notes == ("`50 GB/s` is 400 Gb/s; write `50 Gb/s` if you mean bits",)


def test_a_remark_in_brackets_is_left_out_and_noted() -> None:
    found = parse_cluster("64x H100-80GB (SXM, air cooled)")
    assert found.accelerator.name == "H100-SXM-80GB"
    assert found.notes[0].startswith("`H100-80GB (SXM, air cooled)` is read as `H100-80GB`")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("4 nodes of 8x H100 over Fibre Channel", "`Fibre Channel` is a storage network"),
        ("4 nodes of 8x H100 over InfiniBand", "has no speed"),
        ("4 nodes of 8x H100 over 8x ConnectX-7", "is a network card"),
        ("2x GN12V.8XLARGE320", "in the style of a Tencent Cloud instance"),
        ("4x ecs.gn8v-tee.4xlarge", "in the style of an Alibaba Cloud instance"),
        ("DGX SuperPOD", "has no fixed number of nodes"),
        ("TPU v4-512", "a slice of a TPU pod"),
        ("8x RTX 4070 Laptop", "is a consumer card"),
        ("4x p5", "is a family of AWS instances"),
    ],
)
def test_a_word_that_means_something_else_is_explained_before_neighbours_are_named(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as raised:
        parse_cluster(text)
    assert raised.value.hint is not None
    assert "nearest" not in raised.value.hint


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("64张H800", "64x H800"), ("64 张 H800 显卡", "64x H800"), ("64卡H100", "64x H100"),
        ("千卡 H800", "1000x H800"),         ("1.6万张H800", "16000x H800"), 
        ("8台 DGX H100", "8 nodes of DGX H100"), ("8台H100", "8 nodes of H100"),
        ("2 台 8 卡 H100", "2 nodes of 8x H100"), ("2台8卡机 H100", "2 nodes of 8x H100"),
        ("三十二台八卡H100", "32 nodes of 8x H100"), ("16个节点的 DGX H100", "16 nodes of DGX H100"),
        ("１６台８卡Ａ１００ over ８张 HDR", "16 nodes of 8x A100 over 8x HDR"),
        ("4柜 GB200 NVL72", "4 racks of GB200 NVL72"),
        ("64块英伟达 H100", "64x H100"), ("2台8卡H100 at 4:1", "2 nodes of 8x H100 at 4:1"),
    ],
)  # fmt: skip
def test_a_cluster_in_chinese_counts_is_the_cluster_in_english(text: str, means: str) -> None:
    assert parse_cluster(text).model_copy(update={"name": ""}) == parse_cluster(means).model_copy(update={"name": ""})


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        ("10卡机 H100", "`10卡机` may be one machine", "both numbers"),
        ("双路 H100", "`双路` counts the CPU sockets", "its accelerators"),
        ("几十张H100", "`几十` is not a certain number", "the number"),
        ("近千卡 H800", "`近千` is not a certain number", "the number"),
        ("8张 DGX H100", "counts accelerators, and DGX H100 is a node", "`8台 DGX H100`"),
        ("4台 GB200 NVL72", "counts nodes, and one GB200 NVL72 is a rack", "4x GB200 NVL72"),
        ("16张昇腾910B", "`Ascend-910B` cannot be planned with", "use"),
        ("1万5张H100", "does not describe a cluster", "write it like"),
    ],
)
def test_a_chinese_count_that_may_mean_two_things_is_an_error(text: str, why: str, hint: str) -> None:
    with pytest.raises(UsageError, match=why) as found:
        parse_cluster(text)
    assert hint in (found.value.hint or "")
