"""Presets that train: published dimensions in place of a name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainworks.api.anchor import anchor
from trainworks.api.plan import plan
from trainworks.catalog.models import preset
from trainworks.config.load import parse_run_file
from trainworks.config.model import Model
from trainworks.config.run_file import RunFile, Workload
from trainworks.errors import UsageError
from trainworks.measure.model_config import model_shape
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
        ("yi1.5-6b", "causal-lm", 512),
        ("smollm2-135m", "causal-lm", 512),
        ("tiiuae/Falcon3-7B-Base", "causal-lm", 512),
        ("gpt2", "causal-lm", 1024),
        ("bert-base", "masked-lm", 512),
    ],
)
def test_a_preset_trains_with_its_published_parameters(name: str, task: str, length: int) -> None:
    trained = with_dimensions(named(name, task, sequence_length=length), None)
    shape = model_shape(trained)
    assert (trained.model.preset, trained.data.vocabulary) == (None, shape.vocabulary)
    assert shape.num_parameters == shape_of_hf_config(preset(name)).num_parameters


@pytest.mark.parametrize("name", ["qwen3-0.6b", "deepseek-v3", "llama4-scout", "gpt-oss-20b", "gemma-2b", "resnet-50"])
def test_a_preset_whose_dimensions_do_not_describe_it_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="can be planned, not trained") as found:
        with_dimensions(named(name), None)
    assert "`hf`" in (found.value.hint or "")


@pytest.mark.parametrize("name", ["gemma3-12b", "llama4-scout", "glm4.5-air", "glm4-9b", "smollm3-3b", "arctic-480b"])
def test_a_folder_with_a_config_alone_is_planned_as_the_preset_is(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(preset(name)), encoding="utf-8")
    workload = named(name).model_copy(update={"model": Model(hf=str(tmp_path))})
    assert model_shape(workload) == shape_of_hf_config(preset(name))


@pytest.mark.parametrize("name", ["gemma3-12b", "google/gemma-3-12b-pt", "meta-llama/Llama-4-Maverick-17B-128E"])
def test_a_preset_of_2025_is_planned_for_a_described_cluster(name: str) -> None:
    keys = {"task": "causal-lm", "model": {"preset": name}, "data": {"sequence_length": 4096}}
    workload = keys | {"global_batch": 512, "train_for": "100B tokens"}
    planned = plan(RunFile.model_validate({"name": "t", "workload": workload}), on="64 nodes of DGX H100")
    assert planned.best


def test_a_preset_keeps_its_vocabulary() -> None:
    with pytest.raises(UsageError, match="`llama2-7b` has 32,000 entries, not 4,096"):
        with_dimensions(named("llama2-7b", vocabulary=4096), None)


def test_a_preset_of_an_encoder_does_not_predict_the_next_token() -> None:
    with pytest.raises(UsageError, match="would leak the target"):
        with_dimensions(named("bert-base"), None)


FINE_TUNING = """\
name: tuned
workload:
  task: causal-lm
  model: {model}
  data: {{source: python-stdlib, sequence_length: 512{data}}}
  precision: bf16
  global_batch: 16
  train_for: 100 steps
  {tuning}
cluster: 8x H100
"""
DIMENSIONS = "{layers: 16, hidden: 2048, heads: 32, kv_heads: 8}"


@pytest.mark.parametrize("model", [DIMENSIONS, "{preset: llama3-8b}"])
@pytest.mark.parametrize(
    ("tuning", "data"),
    [("adapter: {rank: 16}", ""), ("preference: {beta: 0.1}", ", chat: {pairs: true}")],
    ids=["adapter", "preference"],
)
def test_a_fine_tuning_without_weights_is_planned_and_not_run(model: str, tuning: str, data: str) -> None:
    run_file, source = parse_run_file(FINE_TUNING.format(model=model, tuning=tuning, data=data), name="run.yaml")
    planned = plan(run_file)
    assert planned.best[0].step_time_s > 0 and planned.best[0].memory.total_bytes > 0
    assert any("names none; to run it, set `model: {hf: FOLDER" in note for note in planned.notes)
    here = run_file.model_copy(update={"cluster": type(run_file.cluster)()})
    with pytest.raises(UsageError, match="starts from the weights of a checkpoint, and `model` names none") as refused:
        anchor(here, source, on_nodes=False)
    assert refused.value.place == "run.yaml:4  workload.model"


def test_the_plan_of_an_adapter_has_less_memory_and_time_than_that_of_all_weights() -> None:
    texts = [FINE_TUNING.format(model=DIMENSIONS, tuning=tuning, data="") for tuning in ("adapter: {}", "")]
    texts = [text + "layout: {dp_replicate: 8}\n" for text in texts]
    texts[1] += "software: Trainworks\n"
    tuned, whole = (plan(parse_run_file(text, name="run.yaml")[0]).best[0] for text in texts)
    assert tuned.step_time_s < whole.step_time_s
    assert tuned.memory.total_bytes < whole.memory.total_bytes


def test_a_checkpoint_folder_that_does_not_exist_is_refused_with_its_line() -> None:
    model = "{hf: ./no-such-folder, weights: pretrained}"
    text = FINE_TUNING.format(model=model, tuning="adapter: {}", data="").replace("8x H100", "local")
    run_file, source = parse_run_file(text, name="run.yaml")
    with pytest.raises(UsageError, match=r"`\./no-such-folder` is not a folder") as refused:
        anchor(run_file, source, on_nodes=False)
    assert refused.value.place == "run.yaml:4  workload.model.hf"
