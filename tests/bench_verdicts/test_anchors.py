"""Every published result and threshold of the catalogue against bounds and expected values."""

from __future__ import annotations

import pytest

from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.cluster import parse_cluster
from trainworks.catalog.facts import BenchAnchor
from trainworks.measure.bench.expected import Yardstick
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.verdict import BenchVerdict, Judged, judge

ANCHORS = load_catalog().anchors


def judged(anchor: BenchAnchor) -> Judged:
    quantity = Quantity(anchor.quantity)
    measurement = Measurement(quantity, anchor.value, anchor.cluster, "published", anchor.conditions)
    return judge(measurement, Yardstick(parse_cluster(anchor.cluster)))


@pytest.mark.parametrize("name", [name for name, anchor in ANCHORS.items() if anchor.kind == "measured"])
def test_what_was_measured_on_healthy_hardware_passes_or_is_weak(name: str) -> None:
    assert judged(ANCHORS[name]).verdict in (BenchVerdict.PASS, BenchVerdict.WEAK)


@pytest.mark.parametrize("name", [name for name, anchor in ANCHORS.items() if anchor.kind == "threshold"])
def test_what_operators_demand_is_below_the_bound_and_no_failure(name: str) -> None:
    answer = judged(ANCHORS[name])
    assert answer.bound is not None
    assert ANCHORS[name].value < answer.bound.value
    assert answer.verdict in (BenchVerdict.PASS, BenchVerdict.WEAK)


@pytest.mark.parametrize("name", [name for name, anchor in ANCHORS.items() if anchor.kind == "impossible"])
def test_what_the_hardware_cannot_do_is_impossible_with_the_slip(name: str) -> None:
    answer = judged(ANCHORS[name])
    assert answer.verdict is BenchVerdict.IMPOSSIBLE
    assert answer.bound is not None
    assert answer.bound.value < ANCHORS[name].value
    assert answer.slip


def test_the_article_s_adapter_wrote_gigabytes_for_gigabits() -> None:
    answer = judged(ANCHORS["article, ib_send_bw of HDR100"])
    assert answer.slip is not None
    assert "factor of 8: it would be 11.2 GB/s" in answer.slip


@pytest.mark.parametrize("name", ["article, 32 A100 by default", "article, 32 A100 tuned"])
def test_the_article_s_four_nodes_were_one(name: str) -> None:
    answer = judged(ANCHORS[name])
    assert answer.slip is not None
    assert "-g N" in answer.slip
