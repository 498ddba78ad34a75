"""The data files: every figure has its unit, its source, a date and a confidence."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from trainworks.catalog.catalog import find_row
from trainworks.catalog.rows import KINDS, CatalogRow, Confidence, parse_rows, read_rows, read_sources
from trainworks.errors import QuantityError

ROWS = [row for kind in KINDS for row in read_rows(kind).values()]
DEFAULTS = {"source": "recalled"}


def link_row(**row) -> CatalogRow:
    """One row of links as the data would give it."""
    return parse_rows("links", {"probe": DEFAULTS | {"network": "RoCE", "bandwidth": "100 Gb/s"} | row})["probe"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_figure_has_source_date_and_confidence(row: CatalogRow) -> None:
    assert row.figures
    for figure in row.figures:
        assert figure.source in {source["title"] for source in read_sources().values()}
        assert re.fullmatch(r"20\d\d-[01]\d", figure.date)
        assert figure.confidence in get_args(Confidence)


def test_every_source_is_used() -> None:
    used = {figure.source for row in ROWS for figure in row.figures}
    assert [key for key, source in read_sources().items() if source["title"] not in used] == []


def test_a_figure_has_the_source_of_its_row() -> None:
    row = link_row()
    assert {figure.source for figure in row.figures} == {read_sources()["recalled"]["title"]}


def test_a_figure_may_have_its_own_source_with_that_ones_confidence() -> None:
    row = link_row(confidence="high", latency_us={"value": 2, "source": "assumption"})
    latency = next(figure for figure in row.figures if figure.name == "latency")
    assert (latency.written, latency.confidence) == ("2 us", "low")


def test_the_confidence_of_a_row_overrides_that_of_its_source() -> None:
    assert {figure.confidence for figure in link_row(confidence="low").figures} == {"low"}


def test_a_figure_is_read_into_base_units() -> None:
    assert link_row(latency_us=2).facts() == {
        "name": "probe",
        "network": "RoCE",
        "bytes_per_s": 12.5e9,
        "latency_s": 2e-6,
    }


@pytest.mark.parametrize("row", [{"bandwith": "100 Gb/s"}, {"source": "hearsay"}])
def test_a_key_or_source_that_nobody_knows_is_refused(row: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="`probe`"):
        link_row(**row)


def test_a_bandwidth_without_a_unit_is_refused() -> None:
    with pytest.raises(QuantityError, match="`450` has no unit"):
        link_row(bandwidth="450")


def test_a_row_that_cannot_be_planned_with_says_why_and_what_to_use() -> None:
    for name in ("FPGA", "photonic chips", "Inferentia", "MI250X", "Ascend 910B", "TPU"):
        row = find_row(name, "accelerators")
        assert row.unplannable
        assert row.instead
