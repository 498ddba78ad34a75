"""Presets that train: published dimensions in place of a name."""

from __future__ import annotations

import pytest

from trainworks.api.planned_model import model_shape
from trainworks.catalog.models import preset
from trainworks.config.run_file import Workload
from trainworks.errors import UsageError
from trainworks.plan.shapes.presets import with_dimensions
from trainworks.plan.shapes.transformer import shape_of_hf_config


def named(name: str, task: str = "causal-lm", **data: object) -> Workload:
    keys = {"task": task, "model": {"preset": name}, "global_batch": 8, "train_for": "10 steps"}
    return Workload.model_validate(keys | {"data": {"source": "python-stdlib", "sequence_length": 512} | data})


@pytest.mark.parametrize(
    ("name", "task", "length"),
    [
        ("llama2-7b", "causal-lm", 512),
        ("llama2-70b", "causal-lm", 512),
        ("tinyllama-1.1b", "causal-lm", 512),
        ("mixtral-8x7b", "causal-lm", 512),
        ("llama3-8b", "causal-lm", 512),
        ("qwen2.5-7b", "causal-lm", 512),
        ("gpt2", "causal-lm", 1024),
        ("bert-base", "masked-lm", 512),
    ],
)
def test_a_preset_trains_with_its_published_parameters(name: str, task: str, length: int) -> None:
    trained = with_dimensions(named(name, task, sequence_length=length), None)
    shape = model_shape(trained)
    assert (trained.model.preset, trained.data.vocabulary) == (None, shape.vocabulary)
    assert shape.num_parameters == shape_of_hf_config(preset(name)).num_parameters


@pytest.mark.parametrize("name", ["qwen3-0.6b", "deepseek-v3", "gpt-oss-20b", "gemma-2b", "resnet-50"])
def test_a_preset_whose_dimensions_do_not_describe_it_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="can be planned, not trained") as found:
        with_dimensions(named(name), None)
    assert "`hf`" in (found.value.hint or "")


def test_a_preset_keeps_its_vocabulary() -> None:
    with pytest.raises(UsageError, match="`llama2-7b` has 32,000 entries, not 4,096"):
        with_dimensions(named("llama2-7b", vocabulary=4096), None)


def test_a_preset_of_an_encoder_does_not_predict_the_next_token() -> None:
    with pytest.raises(UsageError, match="would leak the target"):
        with_dimensions(named("bert-base"), None)
