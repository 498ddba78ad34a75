"""Sentences of texts, the quantities in them, and the patterns of what they state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainworks.numerals import ascii_width
from trainworks.review import rules
from trainworks.review.readers.hardware import parts_in, subjects_of
from trainworks.review.readers.quantities import Kind, quantities_in
from trainworks.review.readers.statements import Statement, read_pattern, statements_in, vocabulary


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("HDR carries 200 Gb/s", "bytes/s", [25e9]),
        ("HDR 为 200Gbps，实测 24 GB/s", "bytes/s", [25e9, 24e9]),
        ("100GbE and 400G 网卡", "bytes/s", [12.5e9, 50e9]),
        ("约 3.35 TB/s", "bytes/s", [3.35e12]),
        ("312 TFLOPS, 2.5 PFLOPS", "flops/s", [312e12, 2.5e15]),
        ("80 GiB, 80GB", "bytes", [80 * 2.0**30, 80e9]),
        ("功耗 10.2 kW", "watts", [10200.0]),
        ("下降四成, 40%", "share", [0.4, 0.4]),
        ("快 2-3 倍, two to three times", "factor", [3.0, 3.0]),
        ("5,000 小时", "hours", [5000.0]),
        ("1,350 亿美元, $135 billion", "money", [135e9, 135e9]),
        ("128 张 A100，8x H100，八卡", "ranks", [128.0, 8.0, 8.0]),
        ("16 台服务器，four nodes，单机", "nodes", [16.0, 4.0, 1.0]),
        ("version 12.2, mlx5_0, A100", "ranks", []),
    ],
)
def test_a_quantity_is_read_in_base_units(text: str, kind: Kind, values: list[float]) -> None:
    assert [one.value for one in quantities_in(text, kind)] == pytest.approx(values)


@pytest.mark.parametrize("text", ["200+ Gb/s", "200Gbps 以上", "200 Gb/s or more"])
def test_a_lower_bound_is_open_ended(text: str) -> None:
    (rate,) = quantities_in(text, "bytes/s")
    assert rate.open_ended


def test_full_width_letters_are_those_of_ascii() -> None:
    assert ascii_width("８×Ａ１００（ＨＢＭ）") == "8×A100（HBM）"


def _only(text: str) -> Statement:
    (statement,) = statements_in(text)
    return statement


def test_a_sentence_over_two_lines_keeps_its_places() -> None:
    text = "Intro.\n\nThe nodes of this cluster are joined by switches of a kind,\nand RAID 10 protects.\n"
    statement = list(statements_in(text))[-1]
    assert statement.place(statement.text.index("RAID")) == (4, 5)


def test_code_blocks_and_addresses_are_no_sentences() -> None:
    text = "See https://host/vllm-isolate here.\n\n```sh\necho A100\n```\n"
    (statement,) = statements_in(text)
    assert "isolate" not in statement.text
    assert statement.place(statement.text.index("here")) == (1, 31)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a fast network such as NCCL", True),
        ("NCCL is a fast network", True),
        ("NCCL uses a fast network", False),
        ("a network of switches. It is large, and NCCL runs on it", False),
    ],
)
def test_the_parts_of_a_chain_follow_each_other(text: str, found: bool) -> None:
    patterns = [read_pattern("network itself >> such as >> NCCL"), read_pattern("NCCL >> is >> network itself")]
    assert any(pattern.find(each) for pattern in patterns for each in statements_in(text)) == found


@pytest.mark.parametrize(("text", "found"), [("cloud: 98 % utilisation", True), ("cloud: 60 % utilisation", False)])
def test_a_pattern_has_ranges_of_quantities(text: str, found: bool) -> None:
    assert (read_pattern("cloud & utilisation & [share 0.95..1]").find(_only(text)) is not None) == found


def test_the_concepts_of_a_pattern_are_near_each_other() -> None:
    far = "RAID " + "and other words about disks " * 6 + "in an outage"
    assert read_pattern("RAID & power loss @ 60").find(_only(far)) is None


def test_an_unknown_concept_is_refused() -> None:
    with pytest.raises(KeyError, match="no such concept"):
        read_pattern("RAID & no such concept")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("8xA100 80GB SXM4", [{"A100-SXM-80GB"}]),
        ("A100-PCIe-40GB", [{"A100-PCIE-40GB"}]),
        ("RTX 4090, MI300X", [{"RTX-4090-24GB"}, {"MI300X-192GB"}]),
        ("H100 NVLink", [{"H100-PCIE-80GB", "H100-SXM-80GB", "H100-NVL-94GB"}]),
        ("RA1000 and H1000", []),
    ],
)
def test_an_accelerator_is_read_with_its_variant(text: str, rows: list[set[str]]) -> None:
    assert [{row.name for row in part.rows} for part in parts_in(_only(text))] == rows


@pytest.mark.parametrize(
    ("text", "families"),
    [
        ("A100/H100 (80 GB, HBM3)", ["A100", "H100"]),
        ("unlike the V100, the A100 has HBM3", ["A100"]),
        ("| rate | A100 | HBM3 |", []),
        ("| A100 | 80 GB | HBM3 |", ["A100"]),
        ("HBM3 of the H100", ["H100"]),
    ],
)
def test_a_figure_is_about_the_accelerators_before_it(text: str, families: list[str]) -> None:
    statement = _only(text)
    assert [part.family for part in subjects_of(statement, statement.text.index("HBM3"))] == families


def test_every_concept_of_the_vocabulary_is_read_by_a_rule() -> None:
    folder = Path(rules.__path__[0]).parent
    files = [*folder.rglob("*.py"), *folder.rglob("statements.yaml")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    separators = r"[\[\]\"(),>&|\n]|@ \d+|(?:says|unless): |^ *- "
    words = {word.strip() for word in re.split(separators, text, flags=re.MULTILINE)}
    assert [concept for concept in vocabulary() if concept not in words] == []
