"""Preference tuning agrees with DPO by hand, on pairs that are read from all usual forms of records."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from torch.nn.functional import log_softmax, logsigmoid
from transformers import AutoModelForCausalLM
from transformers.utils.chat_template_utils import render_jinja_template

from tests.worker.chat_data import CHATML, MARKED_CHATML
from tests.worker.harness import TinyRun, make_run
from tests.worker.test_adapters import (
    GLOBAL_BATCH,
    LAYOUTS,
    LORA,
    SETTINGS,
    STEPS,
    checkpoint,
    losses,
    optimizer_by_hand,
    peft_model,
)
from trainworks.config.finetune import Adapter, Chat
from trainworks.errors import UsageError
from trainworks.record.evaluations import read_evaluations
from trainworks.record.events.log import append_event
from trainworks.worker.data.chats import pair_of
from trainworks.worker.data.inputs import Record
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.tokenization import BUILT_IN, ChatStyle
from trainworks.worker.export import export

__all__ = ["checkpoint"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # peft reads it
]
BETA, LENGTH = 0.3, 64


def write_pairs(file: Path, count: int, *, seed: int = 1) -> Path:
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        left, right = draw.randint(0, 99), draw.randint(0, 9)
        prompt = [{"role": "user", "content": f"{left} + {right}?"}]
        lines.append({"prompt": prompt, "chosen": f"It is {left + right}.", "rejected": f"{left * right} I guess."})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


@pytest.fixture
def prefer(checkpoint, tmp_path):
    """A function: a run of a family on pairs, not started yet."""

    def make(family: str, *, adapter: dict[str, Any] | None, **changes: Any) -> TinyRun:
        folder = checkpoint(family)
        data = {"sequence_length": LENGTH, "tokenizer": str(folder / "tokenizer.json"), "chat": {"pairs": True}}
        fields = {
            "workload__model": {"hf": str(folder), "weights": "pretrained"},
            "workload__preference": {"beta": BETA},
            "workload__data": data | {"source": str(write_pairs(tmp_path / "pairs.jsonl", 50))},
            "workload__global_batch": GLOBAL_BATCH,
            "workload__train_for": f"{STEPS} steps",
            "workload__optimizer": SETTINGS,
            "checkpoint__every": "3 steps",
        }
        if adapter is not None:
            fields["workload__adapter"] = adapter
        run = make_run(tmp_path / "runs", tmp_path, tmp_path / "cache", **fields | changes)
        append_event(run.run_dir.events_file, {"kind": "data_ready", "folder": str(run.data_folder)})
        return run

    return make


def log_probability(model: torch.nn.Module, x: Any, labels: Any) -> torch.Tensor:
    """Of one answer, without any of our code."""
    log_p = log_softmax(model(input_ids=torch.from_numpy(x[None])).logits[0].float(), dim=-1)
    counted = np.flatnonzero(labels >= 0)
    return log_p[counted, torch.from_numpy(labels[counted])].sum()


def by_hand(run: TinyRun, model: torch.nn.Module, reference: torch.nn.Module) -> list[float]:
    """DPO (Rafailov et al. 2023, equation 7), a pair at a time in one process."""
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
        for (chosen, rejected), (chosen_labels, rejected_labels) in zip(rows["x"], rows["labels"], strict=True):
            with torch.no_grad():
                before = log_probability(reference, chosen, chosen_labels)
                before = before - log_probability(reference, rejected, rejected_labels)
            after = log_probability(model, chosen, chosen_labels) - log_probability(model, rejected, rejected_labels)
            total = total - logsigmoid(BETA * (after - before))
        loss = total / GLOBAL_BATCH
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def transformer(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("llama", {"dp_shard": 2, "micro_batch": 1}),
        ("llama", {"dp_shard": 2, "zero": 2}),
        ("llama", {"tp": 2, "sequence_parallel": True}),
    ],
)
def test_a_model_with_a_frozen_copy_agrees_with_dpo_by_hand(prefer, checkpoint, tmp_path, family, layout):
    run = prefer(family, adapter=None, layout=layout)
    assert run.train() == [0, 0]
    model = transformer(checkpoint(family)).train()
    assert losses(run) == pytest.approx(by_hand(run, model, transformer(checkpoint(family))), abs=1e-5)
    assert losses(run)[0] == pytest.approx(np.log(2), abs=1e-5)  # the model begins as its reference
    export(run.run_dir, STEPS, tmp_path / "model", dtype="fp32")
    ours = dict(transformer(tmp_path / "model").named_parameters())
    for name, value in model.named_parameters():
        assert torch.allclose(ours[name], value, atol=1e-5), name


@pytest.mark.parametrize(("family", "layout"), [("llama", "shards"), ("gpt2", "replicas"), ("llama", "tensor")])
def test_an_adapter_agrees_with_dpo_by_hand(prefer, checkpoint, tmp_path, family, layout):
    run = prefer(family, adapter=LORA, layout=LAYOUTS[layout])
    assert run.train() == [0, 0]
    model = peft_model(checkpoint(family), Adapter.model_validate(LORA))
    assert losses(run) == pytest.approx(by_hand(run, model, transformer(checkpoint(family))), abs=1e-5)
    export(run.run_dir, STEPS, tmp_path / "adapter", dtype="fp32")
    opened = dict(PeftModel.from_pretrained(transformer(checkpoint(family)), tmp_path / "adapter").named_parameters())
    for name, value in model.named_parameters():
        assert torch.allclose(opened[name], value, atol=1e-5), name


def counted_by_trl(record: dict[str, Any], template: str) -> list[str]:
    """What its DPOTrainer (1.16.0) counts of the chosen and of the rejected answer: all that follows the question."""
    style = ChatStyle(template, {}, "test")
    question, *others = (
        render_jinja_template([messages], chat_template=template, add_generation_prompt=ask)[0][0]
        for messages, ask in [
            (record["prompt"], True),
            (record["prompt"] + record["chosen"], False),
            (record["prompt"] + record["rejected"], False),
        ]
    )
    assert [each.text for each in pair_of(Record(record, lambda: "here"), style, loss_on="answers")] == others
    return [whole.removeprefix(question) for whole in others]


@pytest.mark.parametrize(("template", "left_out"), [(CHATML, ""), (MARKED_CHATML, "\n")], ids=["plain", "marked"])
def test_a_pair_counts_what_trl_counts_but_for_what_marks_leave_out(template, left_out):
    """The only difference found: with `{% generation %}`, the line break behind an answer does not count here."""
    record = {"prompt": ASKED, "chosen": answers("4")[1:], "rejected": answers("5")[1:]}
    pair = pair_of(Record(record, lambda: "here"), ChatStyle(template, {}, "test"), loss_on="answers")
    ours = [each.text[slice(*each.answers[0])] for each in pair]
    assert [text + left_out for text in ours] == counted_by_trl(record, template)


def test_a_killed_run_resumes_bit_for_bit(prefer):
    changes: dict[str, Any] = {"adapter": LORA | {"dropout": 0.1}, "layout": LAYOUTS["replicas"]}
    whole = prefer("llama", **changes)
    assert whole.train() == [0, 0]
    killed = prefer("llama", **changes)
    killed.train(until=killed.a_checkpoint_is_complete)
    assert killed.train() == [0, 0]
    assert killed.curve() == whole.curve()


def test_held_out_pairs_have_a_loss_and_the_share_in_the_right_order(prefer, tmp_path):
    held_out = write_pairs(tmp_path / "held-out.jsonl", 7, seed=2)
    settings = {"data": {"source": str(held_out)}, "every": f"{STEPS} steps", "steps": 2, "metric": "accuracy"}
    run = prefer("llama", adapter=LORA, layout=LAYOUTS["shards"], workload__eval=settings)
    assert run.train() == [0, 0]
    (evaluated,) = read_evaluations(run.run_dir, "accuracy")
    assert evaluated.value * 7 == pytest.approx(round(evaluated.value * 7))


STYLE = ChatStyle(BUILT_IN, {"eos_token": "<end>"}, "built-in")
ASKED = [{"role": "user", "content": "2 + 2?"}]


def answers(text: str) -> list[dict[str, str]]:
    return [*ASKED, {"role": "assistant", "content": text}]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ASKED, "chosen": "4", "rejected": "5"},
        {"prompt": ASKED, "chosen": answers("4")[1:], "rejected": answers("5")[1:]},
        {"prompt": "2 + 2?", "chosen": answers("4"), "rejected": answers("5")},
        {"chosen": answers("4"), "rejected": answers("5")},
    ],
    ids=[
        "texts behind messages",
        "messages behind messages",
        "a prompt that the messages repeat",
        "whole conversations",
    ],
)
def test_a_pair_is_read_from_all_forms_with_messages(fields):
    pair = pair_of(Record(fields, lambda: "here"), STYLE, loss_on="answers")
    assert [each.text for each in pair] == [f"<|user|>\n2 + 2?<end>\n<|assistant|>\n{n}<end>\n" for n in "45"]
    assert [each.text[slice(*each.answers[0])] for each in pair] == ["4<end>\n", "5<end>\n"]


def test_a_pair_of_texts_follows_its_prompt_without_a_template():
    fields = {"prompt": "2 + 2 is", "chosen": " 4", "rejected": " 5"}
    pair = pair_of(Record(fields, lambda: "here"), STYLE, loss_on="answers")
    assert [(each.text, each.answers) for each in pair] == [("2 + 2 is 4", ((8, 10),)), ("2 + 2 is 5", ((8, 10),))]


@pytest.mark.parametrize("fields", [{"prompt": "a", "chosen": "b"}, {"chosen": "b", "rejected": "c"}, {"text": "a"}])
def test_a_record_without_a_pair_is_named(fields):
    with pytest.raises(UsageError, match=r"pairs\.jsonl:3: no pair of answers"):
        pair_of(Record(fields, lambda: "pairs.jsonl:3"), STYLE, loss_on="answers")


def test_a_pair_is_dropped_whole(prefer, tmp_path):
    """A conversation that is too long takes the other one with it, so that the next pairs stay pairs."""
    lines = [json.dumps({"prompt": "a", "chosen": "b" * n, "rejected": "c"}) for n in (1, 100, 2)]
    (tmp_path / "some.jsonl").write_text("\n".join(lines))
    data = {"source": str(tmp_path / "some.jsonl"), "chat": Chat(pairs=True, too_long="drop").model_dump()}
    run = prefer("llama", adapter=LORA, workload__data__source=data["source"], workload__data__chat=data["chat"])
    workload = run.run_dir.read_resolved().run_file.workload
    assert workload is not None
    dataset = open_dataset(run.data_folder, workload.data)
    gathered = dataset.gather(np.arange(len(dataset)), np.arange(len(dataset)))
    assert (gathered["labels"] >= 0).sum(-1).tolist() == [[2, 2], [3, 2]]  # the closing token counts
