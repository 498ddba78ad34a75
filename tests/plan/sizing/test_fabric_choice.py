"""Which network is enough."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.catalog.cluster import fabric_of, parse_cluster
from trainworks.plan.sizing.fabric_choice import FabricOption, PlannedFabric, choose_fabric, fabric_options
from trainworks.record.step_time import StepTimeTerms


def planned(step_time_s: float, **terms_s: float) -> PlannedFabric:
    """An option whose best layout takes so long."""
    terms = StepTimeTerms(**dict.fromkeys(StepTimeTerms.model_fields, 0.0) | terms_s)
    best: Any = SimpleNamespace(step_time_s=step_time_s, step_time=terms)
    return PlannedFabric(FabricOption(fabric_of(1, "RoCE 100")), best)


@given(st.lists(st.floats(1, 2), min_size=1, max_size=8), st.floats(0, 0.5))
def test_the_chosen_one_is_within_the_tolerance_and_no_leaner_one_is(times: list[float], tolerance: float) -> None:
    items = [planned(time) for time in times]
    chosen = choose_fabric(items, tolerance=tolerance)
    limit = min(times) * (1 + tolerance)
    assert chosen.best.step_time_s <= limit
    assert all(item.best.step_time_s > limit for item in items[: items.index(chosen)])


def test_exposed_communication_leaves_out_what_is_no_communication() -> None:
    assert planned(10.0, forward_s=4.0, tp_s=1.0, dp_s=2.0, bubble_s=3.0).exposed_s == 3.0


@pytest.mark.parametrize(
    ("text", "fastest"), [("2x DGX A100", "8x HDR"), ("2x DGX H100", "8x NDR"), ("2x DGX B200", "8x XDR")]
)
def test_ports_are_as_fast_as_the_slot_of_the_accelerator_feeds(text: str, fastest: str) -> None:
    assert fabric_options(parse_cluster(text))[-1].over == fastest


@pytest.mark.parametrize("text", ["2x DGX H100", "8x RTX-4090", "4x GB200 NVL72 tray", "2 nodes of 1x A100 over HDR"])
def test_every_option_can_be_said_after_over(text: str) -> None:
    cluster = parse_cluster(text)
    each = cluster.accelerators_per_node
    for option in fabric_options(cluster):
        parse_cluster(f"2 nodes of {each}x {cluster.accelerator.name} over {option.over}")
