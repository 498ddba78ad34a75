"""The lint: the shipped catalogue is clean, and the mistakes that people make are caught."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainworks.catalog import lint as lint_module
from trainworks.catalog.catalog import Catalog, load_catalog
from trainworks.catalog.hardware_rules import FLOPS_PER_CLOCK
from trainworks.catalog.lint import RULES, LintFinding, lint
from trainworks.catalog.rows import Kind

SHIPPED = load_catalog()
DATA = Path(lint_module.__file__).parent / "data"


def with_changed(kind: Kind, name: str, **fields: Any) -> Catalog:
    """The shipped catalogue with other figures in one row."""
    rows = getattr(SHIPPED, kind)
    return replace(SHIPPED, **{kind: {**rows, name: rows[name].model_copy(update=fields)}})


def new_findings(catalog: Catalog) -> dict[str, LintFinding]:
    """By rule, what the shipped catalogue does not have and nothing explains."""
    return {finding.rule: finding for finding in lint(catalog) if finding.explained is None}


def scaled_peaks(name: str, factor: float, *precisions: str) -> dict[str, float]:
    """The peaks of an accelerator with some of them multiplied."""
    peaks = SHIPPED.accelerators[name].peak_flops_per_s
    return {key: rate * factor if key in precisions or not precisions else rate for key, rate in peaks.items()}


def test_the_shipped_catalogue_has_no_finding_that_nothing_explains() -> None:
    assert new_findings(SHIPPED) == {}


def test_every_explanation_names_a_rule() -> None:
    assert {rule for rules in SHIPPED.explained.values() for rule in rules} <= set(RULES)


def test_every_rule_of_clocks_has_a_part_that_it_checks() -> None:
    assert set(FLOPS_PER_CLOCK) <= {part.architecture for part in SHIPPED.accelerators.values()}


def test_an_explanation_that_explains_nothing_is_a_finding() -> None:
    catalog = replace(SHIPPED, explained={**SHIPPED.explained, "H100-SXM-80GB": {"power": "it is hot"}})
    assert set(new_findings(catalog)) == {"stale-explanation"}


@pytest.mark.parametrize("name", ["A100-SXM-80GB", "H100-SXM-80GB", "B200-180GB", "MI300X-192GB", "L40S-48GB"])
def test_sparse_rates_taken_for_dense_are_caught(name: str) -> None:
    found = new_findings(with_changed("accelerators", name, peak_flops_per_s=scaled_peaks(name, 2.0)))
    assert found["implied-clock"].meaning == "the peak may be a sparse rate"


@pytest.mark.parametrize("name", ["H100-SXM-80GB", "B200-180GB", "MI355X-288GB", "Gaudi2-96GB"])
def test_one_sparse_rate_among_dense_ones_is_caught(name: str) -> None:
    assert "fp8-is-twice-bf16" in new_findings(
        with_changed("accelerators", name, peak_flops_per_s=scaled_peaks(name, 2.0, "fp8"))
    )


@pytest.mark.parametrize("name", ["A100-SXM-80GB", "B200-180GB", "MI300X-192GB"])
def test_half_a_package_is_caught(name: str) -> None:
    part = SHIPPED.accelerators[name]
    half = {
        "memory_bytes": part.memory_bytes // 2,
        "memory_bytes_per_s": part.memory_bytes_per_s / 2,
        "peak_flops_per_s": scaled_peaks(name, 0.5),
    }
    found = new_findings(with_changed("accelerators", name, **half))
    assert {"implied-clock", "memory-as-named", "memory-bandwidth"} <= set(found)


@pytest.mark.parametrize("name", ["V100-SXM-32GB", "A100-SXM-80GB", "H100-SXM-80GB", "B200-180GB", "GB200-186GB"])
def test_a_bandwidth_of_both_directions_is_caught(name: str) -> None:
    both = 2 * SHIPPED.accelerators[name].scale_up_bytes_per_s
    found = new_findings(with_changed("accelerators", name, scale_up_bytes_per_s=both))
    assert found["scale-up-is-its-link"].meaning == "both directions were counted"


@pytest.mark.parametrize("name", ["NVLink3", "NVLink5", "PCIe 4.0 x16", "InfiniBand NDR"])
def test_a_link_with_both_directions_is_caught(name: str) -> None:
    found = new_findings(with_changed("links", name, bytes_per_s=2 * SHIPPED.links[name].bytes_per_s))
    assert found["sum-of-lanes"].meaning == "both directions were counted"


@pytest.mark.parametrize("name", ["DGX A100 80GB", "DGX H100", "p4d.24xlarge", "p5.48xlarge", "Jean Zay A100"])
def test_gigabytes_for_gigabits_of_a_nic_are_caught(name: str) -> None:
    wrong = 8 * SHIPPED.nodes[name].nic_bytes_per_s
    found = new_findings(with_changed("nodes", name, nic_bytes_per_s=wrong))
    assert found["nic-fits-its-slot"].meaning == "Gb/s were written as GB/s"


def test_gigabits_for_gigabytes_of_a_nic_are_caught() -> None:
    assert "nic-speed" in new_findings(with_changed("nodes", "DGX H100", nic_bytes_per_s=50e9 / 8))


def test_gigabits_for_gigabytes_of_a_switch_port_are_caught() -> None:
    assert "port-speed" in new_findings(with_changed("switches", "Quantum-2 QM9700", port_bytes_per_s=400e9))


def test_gigabits_for_gigabytes_of_memory_are_caught() -> None:
    found = new_findings(with_changed("accelerators", "H100-SXM-80GB", memory_bytes_per_s=3350e9 / 8))
    assert {"memory-bandwidth", "bytes-per-flop"} <= set(found)


def test_a_nic_faster_than_its_slot_is_caught() -> None:
    assert "nic-fits-its-slot" in new_findings(with_changed("nodes", "DGX A100 80GB", nic_bytes_per_s=50e9))


def test_the_wrong_type_of_memory_is_caught() -> None:
    assert "memory-bandwidth" in new_findings(with_changed("accelerators", "A100-SXM-80GB", memory_type="HBM3"))


def test_a_measured_product_above_the_peak_is_caught() -> None:
    assert "matmul-below-peak" in new_findings(with_changed("accelerators", "A100-SXM-80GB", matmul_flops_per_s=320e12))


def test_usable_memory_above_the_memory_is_caught() -> None:
    assert "usable-memory" in new_findings(with_changed("accelerators", "H200-SXM-141GB", memory_bytes=141 * 10**9))


def test_an_sxm_domain_for_pcie_cards_is_caught() -> None:
    assert "domain-fits" in new_findings(with_changed("nodes", "n3-A100x8-NVLink", scale_up_domain=8))


def test_an_accelerator_that_nobody_knows_is_caught() -> None:
    assert "accelerator-is-known" in new_findings(with_changed("nodes", "DGX H100", accelerator="H100"))


def test_a_finding_has_value_and_limit() -> None:
    found = new_findings(with_changed("accelerators", "A100-SXM-80GB", scale_up_bytes_per_s=600e9))
    finding = found["scale-up-is-its-link"]
    assert (finding.row, finding.value, finding.limit) == (
        "A100-SXM-80GB",
        "600 GB/s",
        "300 GB/s of NVLink3, one direction",
    )


@pytest.mark.parametrize(
    "fields", [{"client_bytes_per_s": 200e9}, {"server_read_bytes_per_s": 1e9, "server_write_bytes_per_s": 2e9}]
)
def test_rates_of_storage_that_cannot_be_are_caught(fields: dict[str, float]) -> None:
    assert set(new_findings(with_changed("storage", "Lustre", **fields))) == {"storage-rates"}


def test_kilograms_for_grams_of_a_grid_are_caught() -> None:
    assert "grid-intensity" in new_findings(with_changed("grids", "Germany", kg_co2e_per_kwh=381.0))


@pytest.mark.parametrize(
    "fields",
    [{"nodes": 16_384}, {"failures": 466}, {"accelerator": "H100"}],
    ids=["accelerators for nodes", "causes that do not add up", "an alias"],
)
def test_a_fleet_s_rate_that_does_not_follow_from_its_counts_is_caught(fields: dict[str, Any]) -> None:
    assert "fleet-rate" in new_findings(with_changed("fleets", "Llama 3 pre-training", **fields))


@pytest.mark.parametrize("architectures", [("Hopper",), ("Hooper",)])
def test_two_fleets_for_one_architecture_or_one_for_none_are_caught(architectures: tuple[str, ...]) -> None:
    assert "fleet-stands-alone" in new_findings(with_changed("fleets", "Meta RSC-2", stands_for=architectures))


def test_a_system_of_an_unknown_node_is_caught() -> None:
    assert "node-is-known" in new_findings(with_changed("systems", "GB200 NVL72", node="GB200 tray 72"))


def test_a_rack_that_does_not_fill_its_domain_is_caught() -> None:
    found = new_findings(with_changed("systems", "GB200 NVL72", nodes=1))
    assert found["rack-fills-its-domain"].value == "4 accelerators"


def test_a_proposal_that_cannot_be_planned_is_caught() -> None:
    found = new_findings(with_changed("terms", "GPT-4", models=("gpt4-1800b",)))
    assert found["proposals-can-be-planned"].value == "`gpt4-1800b`"


def test_a_proposal_without_its_words_is_caught() -> None:
    found = new_findings(with_changed("terms", "GPT-4", instead="take another model"))
    assert "proposals-can-be-planned" in found


def test_a_term_that_hides_behind_a_name_of_the_catalogue_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint_module, "has", lambda kind, name: (kind, name) == ("links", "ChatGPT"))
    assert new_findings(SHIPPED)["term-hides-nothing"].value == "`ChatGPT`"


def test_a_kernel_above_the_peak_of_its_accelerator_is_caught() -> None:
    found = new_findings(
        with_changed("kernels", "flash-3, heads of 128, H100", forward_flops_per_s={512: 1e12, 16384: 1.3e15})
    )
    assert found["kernel-below-peak"].value == "forward 1300 TFLOP/s at 16384 tokens"


def test_a_kernel_that_loses_with_length_is_caught() -> None:
    swapped = {512: 5e14, 16384: 1e14}
    assert "kernel-gains-with-length" in new_findings(
        with_changed("kernels", "flash-3, heads of 128, H100", forward_flops_per_s=swapped)
    )


@pytest.mark.parametrize("file", sorted(DATA.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_row_is_written_once(file: Path) -> None:
    keys = re.findall(r"^([^\s#][^:]*):", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert [key for key, times in Counter(keys).items() if times > 1] == []
