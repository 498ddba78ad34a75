"""Fine-tuning agrees with `peft` and `transformers` run by hand, resumes bit for bit, and exports what they open."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

from tests.worker.chat_data import letters_tokenizer, write_chats
from tests.worker.harness import TinyRun, events, make_run
from trainworks.api.checkpointing.exports import HandOver, export_model
from trainworks.config.finetune import Adapter
from trainworks.errors import UsageError
from trainworks.record.events.log import append_event
from trainworks.record.exit_code import ExitCode
from trainworks.record.manifest import complete_checkpoints
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.export import export
from trainworks.worker.export_files import state_of
from trainworks.worker.models.adapters import adapt, draw_adapters, linear_layers
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.models.families import adaptable_decoder
from trainworks.worker.models.nf4 import dequantized, quantized
from trainworks.worker.models.transformer import CausalTransformer

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # peft reads it
]

STEPS, GLOBAL_BATCH, LENGTH = 5, 4, 120
LORA = {"rank": 4, "alpha": 8.0}
DORA = LORA | {"use_dora": True}
SETTINGS: dict[str, Any] = {
    "lr": 1e-2,
    "eps": 1e-3,
    "weight_decay": 0.1,
    "schedule": "constant",
    "clip_grad_norm": 1.0,
    "betas": [0.9, 0.95],
}
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "intermediate_size": 48, "tie_word_embeddings": False},
    "gpt2": {"n_inner": 48, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "gemma": {"num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8, "pad_token_id": 0},
}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    """A function: the folder of a tiny checkpoint with its tokenizer."""
    made: dict[str, Path] = {}

    def of(family: str) -> Path:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            config = AutoConfig.for_model(
                family,
                vocab_size=259,
                bos_token_id=256,
                eos_token_id=256,
                initializer_range=0.1,
                **SIZE,
                **FAMILIES[family],
            )
            torch.manual_seed(3)
            AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
            letters_tokenizer(folder)
            made[family] = folder
        return made[family]

    return of


@pytest.fixture
def tune(checkpoint, tmp_path):
    """A function: a run of a family on conversations, not started yet."""

    def make(family: str, *, adapter: dict[str, Any] | None, ranks: int = 2, **changes: Any) -> TinyRun:
        folder = checkpoint(family)
        chats = write_chats(tmp_path / "chats.jsonl", 60)
        fields = {
            "workload__model": {"hf": str(folder), "weights": "pretrained"},
            "workload__data": {
                "source": str(chats),
                "sequence_length": LENGTH,
                "tokenizer": str(folder / "tokenizer.json"),
                "chat": True,
                "pack": True,
            },
            "workload__global_batch": GLOBAL_BATCH,
            "workload__train_for": f"{STEPS} steps",
            "workload__optimizer": SETTINGS,
            "cluster__processes_per_node": ranks,
            "checkpoint__every": "3 steps",
        }
        if adapter is not None:
            fields["workload__adapter"] = adapter
        run = make_run(tmp_path / "runs", tmp_path, tmp_path / "cache", **fields | changes)
        append_event(run.run_dir.events_file, {"kind": "data_ready", "folder": str(run.data_folder)})
        return run

    return make


def optimizer_by_hand(model: torch.nn.Module) -> torch.optim.Optimizer:
    """AdamW with the settings of the run file, for what is trained."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [each for each in trained if each.ndim >= 2], "weight_decay": 0.1},
        {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-3)


def by_hand(run: TinyRun, model: torch.nn.Module) -> list[float]:
    """The same training in one process without any of our code but the data: each document alone, token by token."""
    workload = run.run_dir.read_resolved().run_file.workload
    assert workload is not None
    dataset = open_dataset(run.data_folder, workload.data)
    order = dataset.order(workload.seed)
    optimizer = optimizer_by_hand(model)
    losses = []
    for step in range(STEPS):
        samples = np.arange(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH)
        rows = dataset.gather(order(samples), samples)
        total = torch.zeros(())
        for x, labels, positions in zip(rows["x"], rows["labels"], rows["positions"], strict=True):
            starts = [*np.flatnonzero(positions == 0), len(x)]
            for start, stop in itertools.pairwise(starts):
                logits = model(input_ids=torch.from_numpy(x[None, start:stop])).logits[0]
                total = total + cross_entropy(logits, torch.from_numpy(labels[start:stop]), reduction="sum")
        loss = total / int((rows["labels"] >= 0).sum())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def peft_model(folder: Path, adapter: Adapter, seed: int = 1, **changes: Any) -> torch.nn.Module:
    """The checkpoint with an adapter of `peft` that begins with the same random matrix A."""
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    own = CausalTransformer(base.config, pretrained=str(folder), seed=1)
    names = adapt(own, own.blocks, adapter, precision="fp32")
    draw_adapters([own], seed=seed)
    if (decoder := adaptable_decoder(base.config)) is not None:
        ours: torch.nn.Module = Decoder(decoder)
        adapt(ours, ours.blocks, adapter, precision="fp32")
        draw_adapters([ours], seed=seed)
        first = {f"model.{name}": value for name, value in ours.named_parameters()}
    else:
        first = {name.removeprefix("model."): value for name, value in own.named_parameters()}
    leaves = sorted({name.rpartition(".")[2] for name in names})
    settings = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        target_modules=leaves,
        bias="none",
        use_dora=adapter.use_dora,
        fan_in_fan_out=base.config.model_type == "gpt2",
    )
    model = get_peft_model(base, settings)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_A" in name:
                parameter.copy_(first[name.removeprefix("base_model.model.").replace(".default", "")])
    return model.train()


def losses(run: TinyRun) -> list[float]:
    return [row["loss"] for row in run.rows()]


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in model.named_parameters()}


def assert_close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.allclose(ours[name], value, atol=1e-5), name


LAYOUTS = {
    "replicas": {"dp_replicate": 2},
    "shards": {"dp_shard": 2, "micro_batch": 1},
    "tensor": {"tp": 2},
    "pipeline": {"pp": 2, "micro_batch": 1},
}


@pytest.mark.parametrize(("family", "layout"), [("llama", "replicas"), ("gemma", "shards")])
def test_full_fine_tuning_agrees_with_transformers(tune, checkpoint, tmp_path, family, layout):
    run = tune(family, adapter=None, layout=LAYOUTS[layout])
    assert run.train() == [0, 0]
    reference = AutoModelForCausalLM.from_pretrained(checkpoint(family), dtype=torch.float32).train()
    assert losses(run) == pytest.approx(by_hand(run, reference), abs=1e-5)
    export(run.run_dir, STEPS, tmp_path / "model", dtype="fp32")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    assert_close(weights(ours), weights(reference))


@pytest.mark.parametrize(
    ("adapter", "family", "layout"),
    [
        (LORA, "llama", "shards"),
        (LORA, "gpt2", "replicas"),
        (LORA, "gemma", "replicas"),
        (LORA, "llama", "tensor"),
        (LORA, "gemma", "pipeline"),
        (DORA, "gemma", "shards"),
        (DORA, "gpt2", "replicas"),
        (DORA, "llama", "tensor"),
        (DORA, "llama", "pipeline"),
    ],
)
def test_an_adapter_agrees_with_peft(tune, checkpoint, tmp_path, adapter, family, layout):
    run = tune(family, adapter=adapter, layout=LAYOUTS[layout])
    assert run.train() == [0, 0]
    reference = peft_model(checkpoint(family), Adapter.model_validate(adapter))
    assert losses(run) == pytest.approx(by_hand(run, reference), abs=1e-5)
    export(run.run_dir, STEPS, tmp_path / "adapter", dtype="fp32")
    base = AutoModelForCausalLM.from_pretrained(checkpoint(family), dtype=torch.float32)
    opened = PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert_close(weights(opened), weights(reference))
    export(run.run_dir, STEPS, tmp_path / "merged", dtype="fp32", merge=True)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    assert_close(weights(merged), weights(reference.merge_and_unload()))


@pytest.mark.parametrize("adapter", [LORA, DORA])
def test_an_adapter_may_train_beside_weights_rounded_to_4_bits(tune, checkpoint, tmp_path, adapter):
    run = tune("llama", adapter=adapter | {"base": "nf4"}, layout=LAYOUTS["shards"])
    assert run.train() == [0, 0]
    reference = peft_model(checkpoint("llama"), Adapter.model_validate(adapter))
    base = reference.get_base_model()
    with torch.no_grad():
        for name, layer in linear_layers(base, base.model.layers):
            if ".lora_" not in name:
                layer.weight.copy_(dequantized(*quantized(layer.weight), layer.weight.shape, torch.float32))
        for layer in base.modules():
            if "default" in getattr(layer, "lora_magnitude_vector", {}):
                layer.lora_magnitude_vector["default"].weight.copy_(layer.weight.norm(dim=1))
    assert losses(run) == pytest.approx(by_hand(run, reference), abs=1e-5)
    export(run.run_dir, STEPS, tmp_path / "merged", dtype="fp32", merge=True)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    assert_close(weights(merged), weights(reference.merge_and_unload()))


def test_a_killed_run_resumes_bit_for_bit_from_its_adapter(tune):
    whole = tune("llama", adapter=LORA | {"dropout": 0.1}, layout=LAYOUTS["shards"])
    assert whole.train() == [0, 0]
    killed = tune("llama", adapter=LORA | {"dropout": 0.1}, layout=LAYOUTS["shards"])
    killed.train(until=killed.a_checkpoint_is_complete)
    assert killed.train() == [0, 0]
    assert killed.curve() == whole.curve()


def test_a_base_that_has_changed_is_refused_at_the_resume(tune, checkpoint, tmp_path):
    """Its weights are read again, and the adapter fits those that it was trained beside."""
    base = shutil.copytree(checkpoint("llama"), tmp_path / "base")
    model = {"hf": str(base), "weights": "pretrained"}
    run = tune("llama", adapter=LORA, ranks=1, workload__model=model, workload__train_for="40 steps")
    run.train(until=run.a_checkpoint_is_complete)
    other = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.01)
    other.save_pretrained(base)
    assert run.train() == [ExitCode.ENVIRONMENT]
    assert "the frozen weights in `model.hf` changed since step" in events(run, "failure")[-1]["message"]


def test_a_checkpoint_holds_the_adapter_and_its_optimizer_alone(tune):
    run = tune("llama", adapter=LORA, ranks=1)
    assert run.train() == [0]
    _, folder = complete_checkpoints(run.run_dir)[-1]
    assert all(".lora_" in name for name in state_of(folder))
    plan = run.run_dir.read_resolved().plan
    assert plan is not None
    trained = sum(LORA["rank"] * (inputs + outputs) * 2 for inputs, outputs in [(32, 32), (32, 16), (32, 16), (32, 32)])
    trained += sum(LORA["rank"] * (32 + 48) * 2 for _ in range(3))
    assert plan.checkpoint_bytes == 12 * trained


@pytest.mark.parametrize("adapter", [LORA, DORA])
def test_bf16_keeps_the_frozen_weights_in_16_bits(tune, adapter):
    run = tune("llama", adapter=adapter, layout=LAYOUTS["shards"], workload__precision="bf16")
    assert run.train() == [0, 0]
    reference = tune("llama", adapter=adapter, layout=LAYOUTS["shards"])
    assert reference.train() == [0, 0]
    assert losses(run) == pytest.approx(losses(reference), rel=0.02)


def test_only_named_layers_get_an_adapter(checkpoint, tmp_path):
    config = AutoConfig.from_pretrained(checkpoint("llama"))
    model = Decoder(adaptable_decoder(config))
    chosen = adapt(model, model.blocks, Adapter(rank=2, targets=("q_proj", "mlp.up_proj")), precision="fp32")
    assert chosen == [f"layers.{layer}.{name}" for layer in (0, 1) for name in ("self_attn.q_proj", "mlp.up_proj")]


def test_an_unknown_target_is_refused_with_those_that_there_are(checkpoint):
    model = Decoder(adaptable_decoder(AutoConfig.from_pretrained(checkpoint("llama"))))
    with pytest.raises(UsageError, match="no layer `c_attn` to adapt"):
        adapt(model, model.blocks, Adapter(targets=("c_attn",)), precision="fp32")


def test_the_adapter_folder_has_its_tokenizer_and_template(tune, tmp_path):
    from transformers import AutoTokenizer

    run = tune("llama", adapter=LORA, ranks=1, workload__train_for="1 steps")
    assert run.train() == [0]
    export(run.run_dir, 1, tmp_path / "adapter", dtype="fp32")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "adapter")
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1 + 1?"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|user|>\n1 + 1?<|endoftext|>\n<|assistant|>\n"
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == LORA["rank"]


def test_a_run_without_an_adapter_has_nothing_to_merge(tune, tmp_path):
    run = tune("llama", adapter=None, ranks=1, workload__train_for="1 steps")
    assert run.train() == [0]
    with pytest.raises(UsageError, match="has no adapter to merge"):
        export(run.run_dir, 1, tmp_path / "model", dtype="fp32", merge=True)


def test_an_adapter_has_the_loss_of_the_run_alone_and_merged_and_a_card_without_its_local_base(tune, tmp_path):
    held_out = {"data": str(write_chats(tmp_path / "held-out.jsonl", 8)), "every": "2 steps"}
    run = tune("llama", adapter=LORA, ranks=1, workload__train_for="2 steps", workload__eval=held_out)
    assert run.train() == [0]
    base = run.run_dir.read_resolved().run_file.workload.model.hf
    for merge in (False, True):
        folder = tmp_path / f"merged-{merge}"
        options = {"step": None, "dtype": "fp32", "merge": merge, "then": HandOver(check=True)}
        found = export_model(run.run_dir, folder, **options, progress=lambda *_: None)["check"]
        assert found["recorded"] == run.rows()[-1]["evaluation"]["loss"]
        assert abs(found["loss"] - found["recorded"]) <= found["tolerance"] < 1e-3
        card = ModelCard.load(folder / "README.md")
        assert card.data.library_name == ("transformers" if merge else "peft")
        assert card.data.base_model is None
        assert f"the checkpoint `{Path(base).name}`" in card.text
        assert str(tmp_path.parent.parent) not in card.content
    with pytest.raises(UsageError, match="a folder of this machine"):
        export_model(
            run.run_dir,
            tmp_path / "pushed",
            step=None,
            dtype="fp32",
            then=HandOver(push="me/adapter"),
            progress=lambda *_: None,
        )
    assert not (tmp_path / "pushed").exists()
