"""What `--explain` prints, and what it refuses."""

from __future__ import annotations

import pytest

from trainworks.errors import UsageError
from trainworks.plan.assumptions import assumed
from trainworks.plan.trace import Traced, fact
from trainworks.report.explain import find_figure, trace_json, trace_lines


def energy_cost() -> Traced:
    power = fact("power", 10_200.0, "W", source="DGX H100, data sheet")
    energy = (power / 1000 * assumed("PUE")).named("energy per hour", "kWh")
    price = assumed("electricity")
    return (energy * price).named("energy cost", "USD/h", energy=energy, price=price)


def test_an_explanation_shows_formula_inputs_and_sources() -> None:
    guides = (
        "cost-of-ownership guides: v2-pseo, agoradigest, kshirol, tensorsmesh, vultrbonus, 2026-08, confidence medium"
    )
    assert list(trace_lines(energy_cost())) == [
        "energy cost = 1.43 USD/h",
        "    = energy * price   where energy is energy per hour, price is electricity",
        "  energy per hour = 14.3 kWh",
        "      = power / 1000 * PUE",
        "    power = 10.2 kW",
        "        DGX H100, data sheet",
        "    PUE = 1.4 (1.1 to 1.58)",
        f"        {guides}",
        "  electricity = 0.10 USD/kWh (0.06 USD/kWh to 0.15 USD/kWh)",
        f"      {guides}",
    ]


def test_any_figure_on_the_way_can_be_explained() -> None:
    assert find_figure([energy_cost()], "PUE").value == 1.4


def test_an_unknown_figure_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no figure `energy prise`") as raised:
        find_figure([energy_cost()], "energy prise")
    assert raised.value.hint == "it has `energy cost`, `energy per hour`"


def test_what_the_user_gave_is_the_source() -> None:
    assert assumed("PUE", 1.2).source == "given by you"


def test_json_has_the_whole_way() -> None:
    as_json = trace_json(energy_cost())
    assert as_json["inputs"]["energy"]["inputs"]["power"]["source"] == "DGX H100, data sheet"
