"""The model of a row: experts by columns of their own, and what is refused where they say too little."""

from __future__ import annotations

from typing import Any

import pytest

from tests.measure.rows import run_row
from trainworks.catalog.models import preset
from trainworks.errors import UsageError
from trainworks.measure.measured_runs import read_run
from trainworks.measure.row_settings import read_model
from trainworks.plan.shapes.transformer import shape_of_hf_config

EXPERTS = {
    **dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), ""),
    "model": "Acme-8x7B",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "8",
    "vocab": "32000",
    "experts": "8",
    "experts_per_token": "2",
    "expert_ffn": "14336",
}


def row(**changes: Any) -> dict[str, str]:
    return run_row(**{**EXPERTS, **changes})


@pytest.mark.parametrize("width", [{"expert_ffn": "14336"}, {"expert_ffn": "", "ffn": "14336"}])
def test_experts_by_columns_are_the_published_model_of_those_dimensions(width: dict[str, str]) -> None:
    known = shape_of_hf_config(preset("mixtral-8x7b"))
    found = read_model(row(**width))
    assert (found.num_parameters, found.experts, found.experts_per_token, found.expert_feed_forward) == (
        known.num_parameters,
        known.experts,
        known.experts_per_token,
        known.expert_feed_forward,
    )


def test_shared_experts_are_as_wide_as_routed_ones_and_dense_layers_have_the_width_of_the_model() -> None:
    found = read_model(row(shared_experts="2", dense_layers="3", ffn="16384", expert_ffn="1408"))
    assert (found.shared_feed_forward, found.dense_layers, found.feed_forward) == (2816, 3, 16384)


def test_layers_with_experts_follow_from_the_size() -> None:
    published = shape_of_hf_config(preset("mixtral-8x7b")).num_parameters
    assert read_model(row(layers="", params_b=str(published / 1e9))).layers == 32


def test_a_known_model_with_another_number_of_experts_is_that_of_its_dimensions() -> None:
    assert read_model(row(model="Mixtral-8x7B", experts="16")).experts == 16
    assert read_model(row(model="Mixtral-8x7B", hidden="")).experts == 8


def test_a_run_with_experts_counts_as_such() -> None:
    assert read_run(row(usable_for_step_eval="", ep="1")).kind == "moe"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"experts": ""} | dict.fromkeys(("experts_per_token", "expert_ffn"), ""),
            "fill in experts, experts_per_token",
        ),
        ({"model": "Acme", "experts": ""}, "experts_per_token is filled in, and experts is empty"),
        ({"experts_per_token": ""}, "experts_per_token is empty"),
        ({"experts_per_token": "9"}, "experts_per_token 9 is more than the 8 experts"),
        ({"expert_ffn": ""}, "ffn is empty"),
        ({"expert_ffn": "", "ffn": "14336", "dense_layers": "1"}, "expert_ffn is empty"),
        ({"dense_layers": "32"}, "dense_layers 32 leaves none of the 32 layers for experts"),
    ],
)
def test_experts_that_the_columns_do_not_describe_are_refused_with_the_column(
    changes: dict[str, str], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        read_model(row(**changes))
