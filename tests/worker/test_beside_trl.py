"""Losses are those of trl's trainers: the same model, the same records in their own form, the same order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.worker.chat_data import CHATML, MARKED_CHATML, sums
from tests.worker.harness import TinyRun
from tests.worker.test_adapters import GLOBAL_BATCH, LORA, SETTINGS, checkpoint, losses, peft_model, tune
from tests.worker.test_adapters import LENGTH as ROW
from tests.worker.test_preference import BETA, LENGTH, prefer
from tests.worker.test_reward_model import CENTER, classifier
from trainworks.config.finetune import Adapter
from trainworks.worker.data.opening import Dataset as Rows
from trainworks.worker.data.opening import open_dataset

trl = pytest.importorskip("trl", reason="trl is not installed: the comparison with its trainers is left out")

__all__ = ["checkpoint", "prefer", "tune"]

pytestmark = pytest.mark.filterwarnings("ignore")  # those of another library
STEPS = 8
END, END_ID = "<|endoftext|>", 256
ALL_STEPS = {"workload__train_for": f"{STEPS} steps"}
FAR = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "It is two. " * 20}]
"""A conversation longer than a row, whose end is cut off."""


def stored(folder: Path, records: list[dict[str, Any]], template: str) -> tuple[str, str]:
    """Paths of the records and of the chat template."""
    (folder / "records.jsonl").write_text("\n".join(map(json.dumps, records)))
    (folder / "chat.jinja").write_text(template)
    return str(folder / "records.jsonl"), str(folder / "chat.jinja")


def rows_of(run: TinyRun) -> tuple[Rows, np.ndarray]:
    """What the run trains on, and the places of its samples in the order of training."""
    workload = run.run_dir.read_resolved().run_file.workload
    assert workload is not None
    rows = open_dataset(run.data_folder, workload.data)
    return rows, rows.order(workload.seed)(np.arange(STEPS * GLOBAL_BATCH))


def model_of(folder: Path, adapter: dict[str, Any] | None) -> torch.nn.Module:
    if adapter is not None:
        return peft_model(folder, Adapter.model_validate(adapter))
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def losses_of_trl(
    kind: str,
    model: torch.nn.Module,
    folder: Path,
    records: list[Any],
    template: str,
    *,
    order: Callable[[Dataset], list[int]] | None = None,
    **own: Any,
) -> list[float]:
    """Losses of one of its trainers with the settings of the run, on its samples in this order."""
    settings = getattr(trl, f"{kind}Config")(
        **{
            "output_dir": str(folder / "trl"),
            "max_steps": STEPS,
            "per_device_train_batch_size": GLOBAL_BATCH,
            "learning_rate": SETTINGS["lr"],
            "lr_scheduler_type": "constant",
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "adam_epsilon": SETTINGS["eps"],
            "weight_decay": SETTINGS["weight_decay"],
            "max_grad_norm": SETTINGS["clip_grad_norm"],
            "train_sampling_strategy": "sequential",
            "activation_checkpointing": False,
            "bf16": False,
            "use_cpu": True,
            "logging_steps": 1,
            "report_to": [],
            "save_strategy": "no",
        }
        | own
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token=END, pad_token=END, chat_template=template
    )
    data = Dataset.from_list(records)
    trainer = getattr(trl, f"{kind}Trainer")(model=model, args=settings, train_dataset=data, processing_class=tokenizer)
    if order is not None:
        trainer.train_dataset = trainer.train_dataset.select(order(trainer.train_dataset))
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def assert_the_same(run: TinyRun, theirs: list[float]) -> None:
    ours = losses(run)
    assert len(ours) == STEPS
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert ours[-1] < ours[0] - 1e-2  # the steps between did something


@pytest.mark.parametrize("adapter", [None, LORA], ids=["all weights", "LoRA"])
def test_fine_tuning_on_conversations(tune, checkpoint, tmp_path, adapter):
    """Answers alone count, one conversation in a row, one of them cut."""
    records = [*sums(STEPS * GLOBAL_BATCH - 1), {"messages": FAR}]
    source, chat = stored(tmp_path, records, MARKED_CHATML)
    run = tune(
        "llama",
        adapter=adapter,
        **ALL_STEPS,
        workload__data__source=source,
        workload__data__chat={"template": chat},
        workload__data__pack=False,
    )
    assert run.train() == [0, 0]
    rows, order = rows_of(run)
    assert len(rows) == len(records)
    folder, in_order = checkpoint("llama"), [records[index] for index in order]
    own: dict[str, Any] = {"output_dir": str(tmp_path / "trl"), "max_length": ROW + 1, "assistant_only_loss": True}
    assert_the_same(run, losses_of_trl("SFT", model_of(folder, adapter), folder, in_order, MARKED_CHATML, **own))


@pytest.mark.parametrize(
    ("pack", "accumulates"),
    [(True, False), (True, True), (False, True)],
    ids=["packed", "packed and accumulated", "accumulated"],
)
def test_packed_rows_and_accumulated_micro_batches(tune, checkpoint, tmp_path, pack, accumulates):
    """Both pack by best-fit decreasing: the same rows, which trl's `packing` trains on without padding."""
    records = sums(90)
    source, chat = stored(tmp_path, records, MARKED_CHATML)
    run = tune(
        "llama",
        adapter=None,
        **ALL_STEPS,
        workload__data__source=source,
        workload__data__chat={"template": chat},
        workload__data__pack=pack,
        layout={"dp_replicate": 2, "micro_batch": 1 if accumulates else 2},
    )
    assert run.train() == [0, 0]
    rows, order = rows_of(run)
    ours = rows.gather(order, np.arange(len(order)))["x"].tolist()

    def in_order(theirs: Dataset) -> list[int]:
        begins = [[*ids, *[END_ID] * ROW][:ROW] for ids in theirs["input_ids"]]
        assert len(begins) == len(rows)
        return [begins.index(row) for row in ours]

    folder = checkpoint("llama")
    size = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": GLOBAL_BATCH} if accumulates else {}
    own: dict[str, Any] = {"output_dir": str(tmp_path / "trl"), "packing": pack, "max_length": ROW + 1} | size
    own |= {"assistant_only_loss": True}
    model = model_of(folder, None)
    assert_the_same(run, losses_of_trl("SFT", model, folder, records, MARKED_CHATML, order=in_order, **own))


@pytest.mark.parametrize(
    ("form", "adapter"),
    [("texts", None), ("messages", None), ("messages", LORA)],
    ids=["texts, frozen copy", "messages, frozen copy", "messages, adapter"],
)
def test_preferences(prefer, checkpoint, tmp_path, form, adapter):
    """Beside an adapter, trl's reference is a second adapter, and Trainworks' the model without one."""
    records: list[Any] = [
        {"prompt": f"{n} + {n % 7} is", "chosen": f" {n + n % 7}.", "rejected": f" {n} or so."} for n in range(31)
    ]
    records.append({"prompt": "1 + 1 is", "chosen": " two" * 30, "rejected": " one"})
    if form == "messages":
        roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
        records = [{name: [{"role": roles[name], "content": text}] for name, text in each.items()} for each in records]
    source, chat = stored(tmp_path, records, CHATML)
    run = prefer(
        "llama",
        adapter=adapter,
        **ALL_STEPS,
        workload__data__source=source,
        workload__data__chat={"pairs": True, "template": chat},
    )
    assert run.train() == [0, 0]
    folder = checkpoint("llama")
    in_order = [records[index] for index in rows_of(run)[1]]
    own: dict[str, Any] = {"output_dir": str(tmp_path / "trl"), "beta": BETA, "max_length": LENGTH + 1}
    assert_the_same(run, losses_of_trl("DPO", model_of(folder, adapter), folder, in_order, CHATML, **own))


def test_a_reward_model(prefer, checkpoint, tmp_path):
    """With margins and centered rewards; trl scores the token before the end, which is that of its padding."""
    records = [
        {
            "prompt": f"{n} + {n % 7} is",
            "chosen": f" {n + n % 7}.",
            "rejected": " so" * (n % 5 + 1),
            "margin": n % 3 / 2,
        }
        for n in range(STEPS * GLOBAL_BATCH)
    ]
    source, chat = stored(tmp_path, records, CHATML)
    run = prefer(
        "llama",
        adapter=None,
        **ALL_STEPS,
        workload__data__source=source,
        workload__data__chat={"pairs": True, "margins": True, "template": chat},
        workload__preference={"method": "reward", "center_rewards_coefficient": CENTER},
    )
    assert run.train() == [0, 0]
    folder, in_order = checkpoint("llama"), [records[index] for index in rows_of(run)[1]]
    own: dict[str, Any] = {"output_dir": str(tmp_path / "trl"), "max_length": LENGTH}
    own |= {"center_rewards_coefficient": CENTER}
    assert_the_same(run, losses_of_trl("Reward", classifier(folder), folder, in_order, CHATML, **own))


@pytest.mark.parametrize("adapter", [None, LORA], ids=["frozen copy", "adapter"])
def test_answers_with_labels(prefer, checkpoint, tmp_path, adapter):
    """KTO on texts; one answer fills its row with any prompt but its own."""
    records: list[Any] = [
        {"prompt": f"{n} + {n % 7} is", "completion": f" {n + n % 7}." if n % 3 else " so" * 9, "label": n % 3 > 0}
        for n in range(STEPS * GLOBAL_BATCH - 1)
    ]
    records.append({"prompt": "1 + 1 is", "completion": " two" * 30, "label": False})
    weights = {"desirable_weight": 1.5, "undesirable_weight": 0.75}
    source, chat = stored(tmp_path, records, CHATML)
    run = prefer(
        "llama",
        adapter=adapter,
        **ALL_STEPS,
        layout={"tp": 2, "micro_batch": GLOBAL_BATCH},
        workload__data__source=source,
        workload__data__chat={"labels": True, "template": chat},
        workload__preference={"method": "kto", "beta": BETA, **weights},
    )
    assert run.train() == [0, 0]
    folder, in_order = checkpoint("llama"), [records[index] for index in rows_of(run)[1]]
    own: dict[str, Any] = {"output_dir": str(tmp_path / "trl"), "beta": BETA, "max_length": LENGTH + 1, **weights}
    assert_the_same(run, losses_of_trl("KTO", model_of(folder, adapter), folder, in_order, CHATML, **own))
