"""The vocabulary of a model given by dimensions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from trainworks.api.plan import plan
from trainworks.catalog.models import known_model, preset_names
from trainworks.config.load import parse_run_file
from trainworks.config.model import Architecture
from trainworks.config.run_file import Workload
from trainworks.measure.model_config import model_shape
from trainworks.plan.shapes.presets import Vocabulary, default_vocabulary
from trainworks.plan.shapes.transformer import shape_of_hf_config

DENSE_32B = "layers: 64, hidden: 5120, heads: 40, kv_heads: 8, feed_forward: 27648, tie_embeddings: false"
RUN = """
name: sized
workload:
  task: causal-lm
  model: {{{model}}}
  data: {{sequence_length: 4096{data}}}
  global_batch: 64
  train_for: 1000 steps
cluster: 64x H100
"""


def workload(model: str, data: str = "") -> Workload:
    text = RUN.format(model=model, data=data)
    found = parse_run_file(text.replace("causal-lm", "masked-lm") if "bert" in model else text, name="sized.yaml")[
        0
    ].workload
    assert found is not None
    return found


def taken(found: Workload) -> Vocabulary:
    vocabulary = default_vocabulary(found)
    assert vocabulary is not None
    assert model_shape(found).vocabulary == vocabulary.entries
    return vocabulary


def test_a_model_that_is_only_planned_takes_the_vocabulary_of_its_family_and_says_so() -> None:
    found = taken(workload(DENSE_32B))
    assert found.entries == 128_256
    assert found.note.startswith("vocabulary 128,256 of llama3.1-8b, the reference of its architecture (https://")
    assert found.note.endswith("`data.vocabulary: N` replaces it")


def test_a_model_with_published_dimensions_takes_the_vocabulary_published_with_them() -> None:
    old = taken(workload("layers: 32, hidden: 4096, heads: 32"))
    assert old.entries == 32_000
    assert "which has these dimensions" in old.note
    assert taken(workload(f"architecture: qwen2, {DENSE_32B}")).entries == 152_064


@pytest.mark.parametrize("architecture", get_args(Architecture))
def test_every_architecture_has_a_reference_in_the_catalogue(architecture: str) -> None:
    found = taken(workload(f"architecture: {architecture}, layers: 3, hidden: 192, heads: 3"))
    published = [known_model(name).config for name in preset_names()]
    kin = [shape_of_hf_config(config) for config in published if config.get("model_type") == architecture]
    assert found.entries in {shape.vocabulary for shape in kin}


def test_a_run_with_text_has_the_entries_of_the_tokenizer_that_it_trains_and_says_so() -> None:
    found = workload(DENSE_32B, ", source: texts")
    assert model_shape(found).vocabulary == 4096
    assert taken(found).note.startswith("vocabulary 4,096 of the tokenizer that the run trains on its text")


def test_a_vocabulary_that_is_written_needs_no_words() -> None:
    found = workload(DENSE_32B, ", vocabulary: 200000")
    assert (model_shape(found).vocabulary, default_vocabulary(found)) == (200_000, None)


def test_a_plan_of_a_cluster_notes_the_vocabulary_and_counts_its_parameters() -> None:
    run = parse_run_file(RUN.format(model=DENSE_32B, data=""), name="sized.yaml")[0]
    planned = plan(run, on="64x H100")
    assert taken(workload(DENSE_32B)).note in planned.notes
    assert planned.job.shape.num_parameters > 32e9


def test_a_plan_of_a_model_with_two_towers_says_that_it_has_one(tmp_path: Path) -> None:
    text = {key: value for key, value in known_model("qwen2.5-7b").config.items() if key != "model_type"}
    config = {
        "model_type": "qwen2_5_vl",
        "vision_config": {"depth": 32},
        "text_config": text | {"model_type": "qwen2_5_vl_text"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    planned = plan(parse_run_file(RUN.format(model=f"hf: {tmp_path}", data=""), name="seen.yaml")[0], on="64x H100")
    assert any(note.startswith("only the text tower is planned: the vision tower") for note in planned.notes)
    assert planned.job.shape.num_parameters == shape_of_hf_config(known_model("qwen2.5-7b").config).num_parameters
