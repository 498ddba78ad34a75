"""Training continues from an exported adapter as `peft` continues from it, under any layout; bad files are refused."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.worker.test_adapters import (
    DORA,
    LAYOUTS,
    LORA,
    STEPS,
    assert_close,
    by_hand,
    checkpoint,
    losses,
    peft_model,
    tune,
    weights,
)
from trainworks.config.finetune import Adapter
from trainworks.errors import EnvironmentProblem
from trainworks.host.adapter_folder import continued
from trainworks.worker.export import export
from trainworks.worker.models.adapters import adapt
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.models.families import adaptable_decoder
from trainworks.worker.models.transformer import checkpoint_folder, hub_origin
from trainworks.worker.models.weights import load_adapters

__all__ = ["checkpoint", "tune"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # peft reads it
]
REVISION = "0123456789abcdef0123456789abcdef01234567"


def adapter_of_peft(base: Path, adapter: dict[str, Any], to: Path) -> Path:
    """An adapter that `peft` has written, whose values are not those of a beginning."""
    model = peft_model(base, Adapter.model_validate(adapter))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.05, generator=generator)
            elif "magnitude" in name:
                parameter.mul_(torch.rand(parameter.shape, generator=generator) / 2 + 0.75)
    model.save_pretrained(to)
    return to


def from_folder(folder: Path, **changes: Any) -> dict[str, Any]:
    """The setting of a resolved run."""
    return continued(Adapter(folder=str(folder), **changes)).model_dump(mode="json")


@pytest.mark.parametrize(
    ("adapter", "family", "layout"),
    [(LORA, "llama", "shards"), (DORA, "gemma", "pipeline"), (DORA, "llama", "tensor"), (LORA, "gpt2", "replicas")],
)
def test_training_continues_from_an_adapter_of_peft(tune, checkpoint, tmp_path, adapter, family, layout):
    folder = adapter_of_peft(checkpoint(family), adapter, tmp_path / "first")
    run = tune(family, adapter=from_folder(folder), layout=LAYOUTS[layout])
    assert run.train() == [0, 0]
    base = AutoModelForCausalLM.from_pretrained(checkpoint(family), dtype=torch.float32)
    reference = PeftModel.from_pretrained(base, folder, is_trainable=True).train()
    assert losses(run) == pytest.approx(by_hand(run, reference), abs=1e-5)
    export(run.run_dir, STEPS, tmp_path / "second", dtype="fp32")
    base = AutoModelForCausalLM.from_pretrained(checkpoint(family), dtype=torch.float32)
    assert_close(weights(PeftModel.from_pretrained(base, tmp_path / "second")), weights(reference))
    again = from_folder(tmp_path / "second")
    assert again == from_folder(folder) | {"folder": str(tmp_path / "second")}


def test_a_killed_run_from_an_adapter_resumes_bit_for_bit(tune, checkpoint, tmp_path):
    folder = adapter_of_peft(checkpoint("llama"), DORA, tmp_path / "first")
    adapter = from_folder(folder, dropout=0.1)
    whole = tune("llama", adapter=adapter, layout=LAYOUTS["shards"])
    assert whole.train() == [0, 0]
    killed = tune("llama", adapter=adapter, layout=LAYOUTS["shards"])
    killed.train(until=killed.a_checkpoint_is_complete)
    assert killed.train() == [0, 0]
    assert killed.curve() == whole.curve()


def test_magnitudes_and_dropout_are_those_of_peft():
    """Whose frozen product, too, has the inputs that dropout leaves, and whose bias has no magnitude."""
    torch.manual_seed(3)
    ours = torch.nn.Sequential(torch.nn.Linear(12, 8))
    settings = {"r": 2, "lora_alpha": 6, "lora_dropout": 0.5, "use_dora": True, "target_modules": ["0"]}
    theirs = get_peft_model(copy.deepcopy(ours), LoraConfig(**settings)).train()
    adapt(ours, [ours], Adapter(rank=2, alpha=6.0, dropout=0.5, use_dora=True), precision="fp32")
    layer, peft_layer = ours[0], theirs.base_model.model[0]
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.rand(parameter.shape) + 0.5)
        layer.lora_A.weight.copy_(peft_layer.lora_A["default"].weight)
        layer.lora_B.weight.copy_(peft_layer.lora_B["default"].weight)
        layer.lora_magnitude_vector.copy_(peft_layer.lora_magnitude_vector["default"].weight)
    x, outputs = torch.rand(5, 12), []
    for model in (ours, theirs):
        torch.manual_seed(4)
        outputs.append(model(x))
        outputs[-1].square().sum().backward()
    assert torch.allclose(outputs[0], outputs[1], atol=1e-5)
    for own, other in (
        (layer.lora_A.weight, peft_layer.lora_A["default"].weight),
        (layer.lora_B.weight, peft_layer.lora_B["default"].weight),
        (layer.lora_magnitude_vector, peft_layer.lora_magnitude_vector["default"].weight),
    ):
        assert torch.allclose(own.grad, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("layer", "has an adapter of layer 2, and the model the layers 0 to 1"),
        ("missing", "has no tensor `base_model.model.model.layers.1.mlp.up_proj.lora_A.weight`"),
        ("shape", r"is \[4, 16\], and the model has \[4, 32\]"),
    ],
)
def test_an_adapter_of_another_model_is_refused(checkpoint, tmp_path, change, message):
    folder = adapter_of_peft(checkpoint("llama"), LORA, tmp_path / "adapter")
    file = folder / "adapter_model.safetensors"
    content = load_file(file)
    name = "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight"
    if change == "layer":
        content[name.replace(".1.", ".2.")] = content[name].clone()
    elif change == "missing":
        del content[name]
    else:
        content[name] = content[name][:, :16].contiguous()
    save_file(content, file)
    config = AutoConfig.from_pretrained(checkpoint("llama"))
    model = Decoder(adaptable_decoder(config))
    adapt(model, model.blocks, Adapter.model_validate(LORA), precision="fp32")
    with pytest.raises(EnvironmentProblem, match=message):
        load_adapters([model], folder, config)


@pytest.fixture
def in_hub_cache(checkpoint, tmp_path):
    """The tiny checkpoint as the hub's cache has it."""
    cached = tmp_path / "hub" / "models--me--tiny"
    shutil.copytree(checkpoint("llama"), cached / "snapshots" / REVISION)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(REVISION)
    return cached / "snapshots" / REVISION


def test_an_adapter_names_its_base_on_the_hub_and_the_revision_it_was_trained_beside(tune, in_hub_cache, tmp_path):
    model = {"hf": str(in_hub_cache), "weights": "pretrained"}
    run = tune("llama", adapter=LORA, ranks=1, workload__model=model, workload__train_for="1 steps")
    assert run.train() == [0]

    def base() -> tuple[str, str | None]:
        export(run.run_dir, 1, tmp_path / "adapter", dtype="fp32")
        config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
        shutil.rmtree(tmp_path / "adapter")
        return config["base_model_name_or_path"], config["revision"]

    assert base() == ("me/tiny", REVISION)
    config = in_hub_cache / "config.json"
    config.write_text(config.read_text() + "\n")  # not what it was trained beside
    assert base() == (str(in_hub_cache), None)
    with pytest.raises(EnvironmentProblem, match="are not those that the adapter was trained beside"):
        export(run.run_dir, 1, tmp_path / "merged", dtype="fp32", merge=True)


def test_a_checkpoint_that_is_named_by_its_id_has_a_revision(in_hub_cache, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(in_hub_cache.parents[2]))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_origin(checkpoint_folder("me/tiny")) == ("me/tiny", REVISION)
    assert hub_origin(in_hub_cache.parent) is None
