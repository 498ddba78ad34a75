"""What `--explain` says is what the design says."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.plan.network.networks import network, networks
from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.plan import figures_of
from trainworks.plan.trace import leaves, walk

_PODS = "leaf switches in whole pods"


@given(networks())
def test_every_figure_is_that_of_the_design(design: NetworkDesign) -> None:
    values = {figure.name: figure.value for figure in figures_of(design)}
    assert values.get("switches", 0) == design.num_switches
    assert values["cables"] == design.num_cables
    assert values["bisection"] == pytest.approx(design.bisection_bytes_per_s)
    assert values["oversubscription"] == pytest.approx(design.oversubscription)
    inner = {each.name: each.value for figure in figures_of(design) for each in walk(figure)}
    for tier, count in design.switches.items():
        if design.switch is not None:
            assert count in (inner.get(f"{tier} switches"), inner.get("edge switches"), inner.get(_PODS))
    assert values["worst hops"] == design.hops_worst
    assert values.get("largest endpoints") == design.max_endpoints


def test_every_number_that_no_formula_gives_has_a_source() -> None:
    for figure in figures_of(network("rail-optimised")):
        assert all(leaf.source for leaf in leaves(figure))


def test_switches_and_cables_are_there_by_tier() -> None:
    names = {each.name for figure in figures_of(network("rail-optimised")) for each in walk(figure)}
    assert {"leaf switches", "spine switches", "node-leaf cables", "leaf-spine cables"} <= names
