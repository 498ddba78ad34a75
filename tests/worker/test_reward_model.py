"""A reward model agrees with `transformers` by hand, resumes bit for bit, and opens as a sequence classifier."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from torch.nn.functional import logsigmoid
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.worker.harness import TinyRun
from tests.worker.test_adapters import GLOBAL_BATCH, LAYOUTS, LORA, STEPS, checkpoint, losses, optimizer_by_hand
from tests.worker.test_preference import LENGTH, STYLE, prefer
from trainworks.errors import UsageError
from trainworks.record.evaluations import read_evaluations
from trainworks.worker.data.chats import pair_of
from trainworks.worker.data.inputs import Record
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.tokenization import Tokenization
from trainworks.worker.export import export
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.models.families import decoder_config
from trainworks.worker.models.weights import SCORE, draw_weights
from trainworks.worker.tasks.causal_lm import CausalLanguageModeling
from trainworks.worker.tasks.preferences import RewardModeling

__all__ = ["checkpoint", "prefer"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # peft reads it
]
CENTER = 0.2
PAIRS = {"pairs": True, "margins": True}


@pytest.fixture
def reward(prefer, tmp_path):
    """A function: a run of a reward model on pairs with margins, not started yet."""

    def make(family: str, *, adapter: dict[str, Any] | None = None, **changes: Any) -> TinyRun:
        pairs = write_pairs(tmp_path / "margins.jsonl", 30)
        fields = {
            "workload__preference": {"method": "reward", "center_rewards_coefficient": CENTER},
            "workload__data__source": str(pairs),
            "workload__data__chat": PAIRS,
        }
        return prefer(family, adapter=adapter, **fields | changes)

    return make


def write_pairs(file: Path, count: int) -> Path:
    lines = [
        {
            "prompt": [{"role": "user", "content": f"{n} + {n % 7}?"}],
            "chosen": f"It is {n + n % 7}.",
            "rejected": "No idea" * (n % 3 + 1),
            "margin": n % 5 / 4 - 0.5,
        }
        for n in range(count)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def classifier(folder: Path, *, seed: int = 1) -> torch.nn.Module:
    """The checkpoint with the head that a run begins with."""
    torch.manual_seed(seed)  # `transformers` draws the heads of its models
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
    if (config := decoder_config(model.config)) is not None:
        ours = Decoder(replace(config, scores=True))
        draw_weights([ours], seed=seed, only=SCORE)
        assert ours.score is not None
        model.score.weight.data.copy_(ours.score.weight)
    return model.train()


def rewards_of(model: torch.nn.Module, x: np.ndarray, lengths: np.ndarray) -> torch.Tensor:
    """Rewards of both conversations of a pair, each alone and without anything behind it."""
    model.config.pad_token_id = None  # the last token counts
    texts = [torch.from_numpy(row[None, :length]) for row, length in zip(x, lengths, strict=True)]
    return torch.stack([model(input_ids=text).logits.view(()) for text in texts])


def rows_of(run: TinyRun, count: int) -> dict[str, np.ndarray]:
    """The first samples that the run trains on."""
    workload = run.run_dir.read_resolved().run_file.workload
    assert workload is not None
    dataset = open_dataset(run.data_folder, workload.data)
    samples = np.arange(count)
    return dict(dataset.gather(dataset.order(workload.seed)(samples), samples))


def by_hand(run: TinyRun, model: torch.nn.Module) -> tuple[list[float], list[float]]:
    """Losses and accuracies of the same training, a pair at a time in one process."""
    rows, optimizer = rows_of(run, STEPS * GLOBAL_BATCH), optimizer_by_hand(model)
    found: list[float] = []
    accuracies: list[float] = []
    for step in range(STEPS):
        total, right = torch.zeros(()), 0
        for each in range(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH):
            chosen, rejected = rewards_of(model, rows["x"][each], rows["lengths"][each])
            margin = float(rows["values"][each]) if "values" in rows else 0.0
            total = total - logsigmoid(chosen - rejected - margin) + CENTER * (chosen + rejected) ** 2
            right += int(chosen > rejected)
        loss = total / GLOBAL_BATCH
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
        accuracies.append(right / GLOBAL_BATCH)
    return found, accuracies


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("llama", {"dp_shard": 2, "micro_batch": 1}),
        ("llama", {"tp": 2, "sequence_parallel": True}),
        ("gpt2", {"dp_replicate": 2}),
        ("gemma", {"dp_shard": 2}),
    ],
)
def test_a_reward_model_agrees_with_transformers_by_hand(reward, checkpoint, tmp_path, family, layout):
    run = reward(family, layout=layout)
    assert run.train() == [0, 0]
    model = classifier(checkpoint(family))
    expected, accuracies = by_hand(run, model)
    assert losses(run) == pytest.approx(expected, abs=1e-5)
    assert [row["accuracy"] for row in run.rows()] == pytest.approx(accuracies)
    export(run.run_dir, STEPS, tmp_path / "model", dtype="fp32")
    opened = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    assert opened.config.num_labels == 1
    ours = dict(opened.named_parameters())
    for name, value in model.named_parameters():
        assert torch.allclose(ours[name], value, atol=1e-5), name
    assert_rows_have_their_rewards(run, opened, model.eval(), tmp_path / "model")


@torch.no_grad()
def assert_rows_have_their_rewards(run: TinyRun, opened: torch.nn.Module, by_hand: torch.nn.Module, folder: Path):
    """A padded batch of the exported tokenizer has the rewards that its conversations have alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert opened.config.pad_token_id == tokenizer.pad_token_id is not None
    rows = rows_of(run, GLOBAL_BATCH)
    tokens = [row[:length].tolist() for row, length in zip(rows["x"][:, 0], rows["lengths"][:, 0], strict=True)]
    batch = tokenizer.pad({"input_ids": tokens}, return_tensors="pt")
    alone = [rewards_of(by_hand, x, lengths)[0] for x, lengths in zip(rows["x"], rows["lengths"], strict=True)]
    assert opened(**batch).logits.view(-1) == pytest.approx(torch.stack(alone), abs=1e-5)


def test_a_reward_model_beside_an_adapter_is_what_peft_opens(reward, checkpoint, tmp_path):
    """The adapter trains with the head; merged, they are one model."""
    run = reward("llama", adapter=LORA, layout=LAYOUTS["shards"])
    assert run.train() == [0, 0]
    export(run.run_dir, STEPS, tmp_path / "adapter", dtype="fp32")
    export(run.run_dir, STEPS, tmp_path / "merged", dtype="fp32", merge=True)
    first = classifier(checkpoint("llama")).eval()
    head = first.score.weight.clone()
    opened = PeftModel.from_pretrained(first, tmp_path / "adapter").eval()
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    assert not torch.allclose(merged.score.weight, head, atol=1e-3)
    rows = rows_of(run, GLOBAL_BATCH)
    with torch.no_grad():
        for x, lengths in zip(rows["x"], rows["lengths"], strict=True):
            assert rewards_of(opened, x, lengths) == pytest.approx(rewards_of(merged, x, lengths), abs=1e-5)


def test_a_killed_reward_model_resumes_bit_for_bit(reward):
    whole, killed = (reward("llama", adapter=LORA, layout=LAYOUTS["replicas"]) for _ in range(2))
    assert whole.train() == [0, 0]
    killed.train(until=killed.a_checkpoint_is_complete)
    assert killed.train() == [0, 0]
    assert killed.curve() == whole.curve()


def test_held_out_pairs_are_evaluated_whole(reward, tmp_path):
    """Seven pairs in batches of four: the last batch is not full."""
    held_out = write_pairs(tmp_path / "held-out.jsonl", 7)
    settings = {"data": {"source": str(held_out)}, "every": f"{STEPS} steps", "steps": 2, "metric": "accuracy"}
    run = reward("llama", layout=LAYOUTS["shards"], workload__eval=settings)
    assert run.train() == [0, 0]
    (evaluated,) = read_evaluations(run.run_dir, "accuracy")
    assert evaluated.value * 7 == pytest.approx(round(evaluated.value * 7))


def test_the_last_token_is_the_last_one_before_the_padding(reward):
    """As `transformers` finds it: also a token of the text that is that of the padding does not count."""
    run = reward("llama")
    workload = run.run_dir.read_resolved().run_file.workload
    assert workload is not None
    language: Any = CausalLanguageModeling(workload, None, None, marked=True)  # type: ignore[arg-type]
    task = RewardModeling(workload, language, padding=9)
    tokens = torch.tensor([[[[5, 6, 9, 7, 8], [5, 9, 6, 9, 9]]]])
    scored, _ = task.split({"x": tokens, "lengths": torch.tensor([[[4, 6]]])})
    assert scored.last.tolist() == [[[3, 2]]]
    assert scored.margins.tolist() == [[0.0]]


def test_margins_stand_beside_their_pairs(reward):
    rows = rows_of(reward("llama"), 30)
    assert sorted(set(rows["values"].tolist())) == [-0.5, -0.25, 0.0, 0.25, 0.5]
    assert rows["x"].shape == (30, 2, LENGTH)


@pytest.mark.parametrize("margin", ["much", None, True, float("inf")])
def test_a_margin_that_is_no_number_is_named(margin):
    fields = {"prompt": "a", "chosen": "b", "rejected": "c", "margin": margin}
    with pytest.raises(UsageError, match=r"pairs\.jsonl:3: `margin` is .*, not a finite number"):
        pair_of(Record(fields, lambda: "pairs.jsonl:3"), STYLE, loss_on="answers", has_margin=True)


def test_a_tokenizer_without_any_end_has_no_padding(reward):
    found = Tokenization.read(reward("llama").data_folder)
    assert found.tokenizer.id_to_token(found.padding) == "<|endoftext|>"
    bare = found.tokenizer_json.replace(b"<|endoftext|>", b"<|nothing|>")
    with pytest.raises(UsageError, match="no token for padding"):
        _ = Tokenization(bare, None, "here").padding
