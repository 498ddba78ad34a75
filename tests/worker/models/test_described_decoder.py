"""A model given by dimensions is the same decoder whether or not `transformers` is asked for its config."""

from __future__ import annotations

import pytest

from trainworks.config.model import Model
from trainworks.plan.shapes.transformer import shape_of_model
from trainworks.worker.models.families import decoder_config, described_decoder
from trainworks.worker.models.transformer import model_config

DIMENSIONS = {"layers": 3, "hidden": 48, "heads": 4}


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": False}, {"feed_forward": 100}], ids=str)
@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "mixtral", "gpt2"])
def test_the_described_decoder_is_that_of_the_config(architecture, changes):
    assert_same(architecture=architecture, **changes)


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "mixtral"])
def test_grouped_queries_are_described_as_the_config_has_them(architecture):
    assert_same(architecture=architecture, kv_heads=2)


def test_dropout_of_gpt2_and_experts_of_mixtral_are_described():
    assert_same(architecture="gpt2", dropout=0.1)
    assert_same(architecture="mixtral", experts=4, experts_per_token=1, balance_loss=0.5)


def assert_same(**fields):
    model = Model.model_validate(DIMENSIONS | fields)
    shape = shape_of_model(model, vocabulary=100, sequence_length=32)
    assert described_decoder(model, shape) == decoder_config(model_config(model, shape))
