"""Kinds of node that are tried, and those that are not."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.facts import Offer
from trainworks.plan.sizing.candidates import Candidate, candidates, node_counts

CATALOG = load_catalog()


def found(*offers: Offer, precision: str = "bf16", only: frozenset[str] = frozenset()) -> dict[str, Candidate]:
    """Candidates by node."""
    return {item.node: item for item in candidates(CATALOG, offers, precision=precision, only=only)[0]}


def offer(**facts) -> Offer:
    """An offer of eight H100."""
    told = {"name": "x", "provider": "X", "accelerator": "H100-SXM-80GB", "accelerators": 8, "usd_per_hour": 30.0}
    return Offer.model_validate(told | facts)


def test_machines_with_a_known_power_can_be_bought() -> None:
    assert found()["DGX H100"].for_sale


def test_an_offer_of_an_instance_can_be_rented_by_any_number() -> None:
    item = found(offer(node="p5.48xlarge"))["p5.48xlarge"]
    assert item.largest is None
    assert len(item.offers_of(64)) == 1


def test_a_price_that_names_no_instance_is_one_of_single_nodes() -> None:
    item = found(offer(accelerators=1))["DGX H100"]
    assert len(item.offers_of(1)) == 1
    assert item.offers_of(2) == []


def test_chips_of_a_slice_are_joined_whoever_sells_them() -> None:
    chip = offer(accelerator="TPU-v6e", accelerators=1)
    item = found(chip, only=frozenset({"TPU-v6e"}))["TPU v6e host"]
    assert len(item.offers_of(8)) == 1


def test_accelerators_without_the_precision_are_skipped_with_the_reason() -> None:
    _, skipped = candidates(CATALOG, [offer(accelerator="V100-SXM-16GB", node="p3.16xlarge")], precision="bf16")
    assert {item.node: item.reason for item in skipped}["p3.16xlarge"] == "no bf16 matrix units"


def test_other_stacks_are_tried_when_they_are_named_only() -> None:
    chip = offer(accelerator="TPU-v6e", accelerators=1)
    assert "TPU v6e host" not in found(chip)


@given(st.integers(1, 10_000))
def test_counts_ascend_from_one_node_to_the_largest_by_at_most_a_doubling(largest: int) -> None:
    counts = node_counts(largest)
    assert counts[0] == 1
    assert all(low < high <= 2 * low for low, high in itertools.pairwise(counts))
    assert counts[-1] <= largest < 2 * counts[-1]
