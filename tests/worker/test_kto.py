"""KTO agrees with its paper by hand, an answer at a time, on answers that have labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.worker.harness import TinyRun
from tests.worker.test_adapters import (
    GLOBAL_BATCH,
    LAYOUTS,
    LORA,
    STEPS,
    checkpoint,
    losses,
    optimizer_by_hand,
    peft_model,
)
from tests.worker.test_preference import BETA, LENGTH, STYLE, log_probability, prefer, transformer
from trainworks.config.finetune import Adapter
from trainworks.errors import UsageError
from trainworks.record.evaluations import read_evaluations
from trainworks.worker.data.chats import labelled_answer
from trainworks.worker.data.inputs import Record
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.tasks.preferences import exchange_answers

__all__ = ["checkpoint", "prefer"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # peft reads it
]
WEIGHTS = {"desirable_weight": 1.5, "undesirable_weight": 0.75}


def write_answers(file: Path, count: int) -> Path:
    lines = [
        {
            "prompt": [{"role": "user", "content": f"{n} + {n % 7}?"}],
            "completion": [{"role": "assistant", "content": "No idea" if n % 3 else f"It is {n + n % 7}."}],
            "label": n % 3 == 0,
        }
        for n in range(count)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


@pytest.fixture
def kto(prefer, tmp_path):
    """A function: a run of a family on answers with labels, not started yet."""

    def make(family: str, *, adapter: dict[str, Any] | None = None, **changes: Any) -> TinyRun:
        fields = {
            "workload__preference": {"method": "kto", "beta": BETA, **WEIGHTS},
            "workload__data__source": str(write_answers(tmp_path / "answers.jsonl", 50)),
            "workload__data__chat": {"labels": True},
            "layout": {"dp_shard": 2, "micro_batch": 2},
        }
        return prefer(family, adapter=adapter, **fields | changes)

    return make


def document_of(rows: dict[str, np.ndarray], index: int) -> tuple[np.ndarray, int]:
    """Tokens of an answer with its prompt, and the place where the answer begins."""
    x, labels, length = rows["x"][index, 0], rows["labels"][index, 0], int(rows["lengths"][index, 0])
    begin = int(np.flatnonzero(labels >= 0)[0]) + 1
    return np.concatenate((x, labels[-1:]))[:length], begin


def log_p(model: torch.nn.Module, prompt: np.ndarray, answer: np.ndarray) -> torch.Tensor:
    whole = np.concatenate((prompt, answer))[: LENGTH + 1]
    labels = np.where(np.arange(1, len(whole)) >= len(prompt), whole[1:], -100)
    return log_probability(model, whole[:-1], labels)


def by_hand(run: TinyRun, model: torch.nn.Module, reference: torch.nn.Module, *, micro: int) -> tuple[Any, Any]:
    """Losses and accuracies, from the equations of the paper; `micro` answers lend each other theirs."""
    workload = run.run_dir.read_resolved().run_file.workload
    assert workload is not None
    dataset = open_dataset(run.data_folder, workload.data)
    order, optimizer = dataset.order(workload.seed), optimizer_by_hand(model)
    found, accuracies = [], []
    for step in range(STEPS):
        samples = np.arange(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH)
        rows = dict(dataset.gather(order(samples), samples))
        texts = [document_of(rows, index) for index in range(GLOBAL_BATCH)]
        answers = [(tokens[:begin], tokens[begin:]) for tokens, begin in texts]
        with torch.no_grad():
            divergence = torch.zeros(())
            for index, (prompt, _) in enumerate(answers):
                other = answers[index - 1 if index % micro else index + micro - 1][1]
                divergence += log_p(model, prompt, other) - log_p(reference, prompt, other)
            divergence = (divergence / GLOBAL_BATCH).clamp(min=0)
        total, right = torch.zeros(()), 0
        for (prompt, answer), label in zip(answers, rows["values"].tolist(), strict=True):
            with torch.no_grad():
                before = log_p(reference, prompt, answer)
            margin = BETA * (log_p(model, prompt, answer) - before - divergence)
            name, sign = ("desirable_weight", 1) if label else ("undesirable_weight", -1)
            total = total + WEIGHTS[name] * (1 - torch.sigmoid(sign * margin))
            right += int(sign * margin > 0)
        loss = total / GLOBAL_BATCH
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
        accuracies.append(right / GLOBAL_BATCH)
    return found, accuracies


@pytest.mark.parametrize(
    ("family", "adapter", "layout", "micro"),
    [
        ("llama", None, {"dp_shard": 2, "micro_batch": 2}, 2),
        ("llama", None, {"tp": 2, "micro_batch": 4}, 4),
        ("gpt2", LORA, {"dp_replicate": 2, "micro_batch": 2}, 2),
        ("gemma", LORA, {"dp_shard": 2, "micro_batch": 2}, 2),
    ],
)
def test_kto_agrees_with_its_equations_by_hand(kto, checkpoint, family, adapter, layout, micro):
    run = kto(family, adapter=adapter, layout=layout)
    assert run.train() == [0, 0]
    folder = checkpoint(family)
    model = peft_model(folder, Adapter.model_validate(adapter)) if adapter else transformer(folder).train()
    expected, accuracies = by_hand(run, model, transformer(folder), micro=micro)
    assert losses(run) == pytest.approx(expected, abs=1e-5)
    assert [row["accuracy"] for row in run.rows()][1:] == pytest.approx(accuracies[1:])  # the first margins are 0


def test_a_killed_run_resumes_bit_for_bit(kto):
    whole, killed = (kto("llama", layout={"dp_replicate": 2, "micro_batch": 2}) for _ in range(2))
    assert whole.train() == [0, 0]
    killed.train(until=killed.a_checkpoint_is_complete)
    assert killed.train() == [0, 0]
    assert killed.curve() == whole.curve()


def test_held_out_answers_are_evaluated_whole(kto, tmp_path):
    """Seven answers in batches of four: the last batch is not full."""
    held_out = write_answers(tmp_path / "held-out.jsonl", 7)
    settings = {"data": {"source": str(held_out)}, "every": f"{STEPS} steps", "steps": 2, "metric": "accuracy"}
    run = kto("llama", adapter=LORA, layout=LAYOUTS["replicas"] | {"micro_batch": 2}, workload__eval=settings)
    assert run.train() == [0, 0]
    (evaluated,) = read_evaluations(run.run_dir, "accuracy")
    assert evaluated.value * 7 == pytest.approx(round(evaluated.value * 7))


def test_prompts_get_the_answer_before_theirs_cut_to_a_row():
    """Rows of five tokens: prompts 1, 2 2 and 3 4 4, with answers 5 6, 7 8 and 9 10; the last two do not fit there."""
    rows = torch.tensor([[[1, 5, 6, 0, 0], [2, 2, 7, 8, 0], [3, 4, 4, 9, 10]]])
    begins, lengths = [1, 2, 3], torch.tensor([[3, 4, 5]])
    labels = torch.full((1, 3, 4), -100)
    for row, (begin, end) in enumerate(zip(begins, lengths[0].tolist(), strict=True)):
        labels[0, row, begin - 1 : end - 1] = rows[0, row, begin:end]
    tokens, others = exchange_answers(rows[..., :-1], labels, lengths)
    assert others.tolist() == [[[9, 10, -100, -100], [-100, 5, 6, -100], [-100, -100, 7, 8]]]
    assert tokens[0, 0, :3].tolist() == [1, 9, 10]
    assert tokens[0, 1].tolist() == [2, 2, 5, 6]
    assert tokens[0, 2].tolist() == [3, 4, 4, 7]


@pytest.mark.parametrize("label", ["yes", None, 2, [True]])
def test_a_label_that_is_not_true_or_false_is_named(label):
    record = Record({"prompt": "a", "completion": "b", "label": label}, lambda: "answers.jsonl:3")
    with pytest.raises(UsageError, match=r"answers\.jsonl:3: `label` is .*, not true or false"):
        labelled_answer(record, STYLE, loss_on="answers")


def test_labels_stand_beside_their_answers(kto):
    run = kto("llama")
    workload = run.run_dir.read_resolved().run_file.workload
    assert workload is not None
    dataset = open_dataset(run.data_folder, workload.data)
    rows = dataset.gather(np.arange(50), np.arange(50))
    assert rows["values"].sum() == 17
    desirable = (rows["labels"][:, 0] >= 0).sum(-1)[rows["values"] == 0]
    assert set(desirable.tolist()) == {len("No idea\n") + 1}  # all that the template writes behind the question
