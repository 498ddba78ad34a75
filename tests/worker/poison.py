"""Text with one rare character, and a model to start from that cannot bear it: an ordinary run with a bad batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from tests.worker.harness import TinyRun, make_run, write_corpus
from trainworks.config.data import Data
from trainworks.worker.data.opening import open_dataset

RARE = "~"
VOCABULARY, LENGTH, BATCH = 400, 32, 8
CONSTANT = {"lr": 3e-3, "schedule": "constant"}
"""A rate that does not depend on the step: runs whose steps are counted differently can be compared."""


def write_poisoned_corpus(folder: Path) -> Path:
    """Made-up words, and one rare character among them."""
    write_corpus(folder)
    text = (folder / "1.txt").read_text(encoding="utf-8")
    (folder / "1.txt").write_text(text[:5000] + RARE + text[5000:], encoding="utf-8")
    return folder


def _rare_token(data_folder: Path) -> int:
    return Tokenizer.from_file(str(data_folder / "tokenizer.json")).token_to_id(RARE)


def break_with_nan(model: Any, token: int) -> None:
    """The rare token's embedding is not a number; all other sequences never see it."""
    model.model.embed_tokens.weight[token] = torch.nan


def break_with_always_nan(model: Any, token: int) -> None:
    """A model that is broken for good."""
    model.model.norm.weight[0] = torch.nan


def break_with_spike(model: Any, token: int) -> None:
    """The model is as sure as can be that the rare token never comes."""
    model.model.embed_tokens.weight[:, 0] = 5.0
    model.lm_head.weight[token] = 0.0
    model.lm_head.weight[token, 0] = -200.0


def _write_model(folder: Path, token: int, break_model: Callable[[Any, int], None], dropout: float) -> Path:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
        attention_dropout=dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        break_model(model, token)
    model.save_pretrained(folder)
    return folder


def bad_steps(run: TinyRun, *, seed: int, num_steps: int = 24) -> list[int]:
    """The steps whose batch holds the rare token, counted from 1."""
    dataset = open_dataset(run.data_folder, Data(source="", sequence_length=LENGTH))
    samples = np.arange(BATCH * num_steps)
    tokens = dataset.gather(dataset.order(seed)(samples), samples)["tokens"]
    rare = _rare_token(run.data_folder)
    return [int(where) // BATCH + 1 for where in np.flatnonzero((tokens == rare).any(axis=1))]


def poisoned_run(
    folder: Path,
    corpus: Path,
    cache: Path,
    *,
    at: range,
    broken: Callable[[Any, int], None],
    dropout: float = 0.0,
    **changes: Any,
) -> tuple[TinyRun, int]:
    """A run whose only bad batch comes in `at`, and the step of that batch."""
    changes = {"workload__optimizer": dict(CONSTANT)} | changes
    clean = make_run(folder / "data", corpus, cache)
    seed, bad = next(
        (seed, found[0])
        for seed in range(10_000)
        if len(found := bad_steps(clean, seed=seed, num_steps=60)) == 1 and found[0] in at
    )
    model = _write_model(folder / "model", _rare_token(clean.data_folder), broken, dropout)
    source = {"hf": str(model), "weights": "pretrained"}
    return make_run(folder / "runs", corpus, cache, workload__model=source, workload__seed=seed, **changes), bad
