"""Tokenized data: complete or absent, made once, the same text again."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.worker.harness import write_corpus
from trainworks.config.data import Data
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.record.events.log import read_events
from trainworks.worker.data.preparation import prepare_for_run
from trainworks.worker.data.prepare import prepare
from trainworks.worker.data.tokenization import end_of_text


def data(source, **changes) -> Data:
    return Data(**({"source": str(source), "sequence_length": 32, "vocabulary": 400} | changes))


def tokens_of(folder, card):
    return np.concatenate([np.fromfile(folder / name, dtype=card.dtype) for name in card.shards])


def test_the_tokens_spell_the_text(corpus, cache):
    folder, card = prepare(data(corpus), cache)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    documents = tokenizer.decode(tokens_of(folder, card), skip_special_tokens=False).split("<|endoftext|>")
    assert documents == [file.read_text() for file in sorted(corpus.iterdir())] + [""]


def test_the_second_time_nothing_is_made(corpus, cache):
    prepare(data(corpus), cache)
    prepare(data(corpus), cache, lambda done, total: pytest.fail("tokenized again"))


def test_a_run_says_once_that_it_is_about_to_tokenize(corpus, tmp_path):
    for _ in range(2):
        prepare_for_run(data(corpus), tmp_path / "cache", tmp_path / "events.jsonl", model_vocabulary=400)
    first, *rest = read_events(tmp_path / "events.jsonl")
    size = sum(file.stat().st_size for file in corpus.iterdir())
    assert (first["kind"], first["done_bytes"], first["total_bytes"]) == ("data_progress", 0, size)
    assert [event["cached"] for event in rest if event["kind"] == "data_ready"] == [False, True]
    assert all(event.get("done_bytes") != 0 for event in rest)


def test_other_text_is_other_data(corpus, cache, tmp_path):
    _, before = prepare(data(corpus), cache)
    _, after = prepare(data(write_corpus(tmp_path / "text", words=9_000)), cache)
    assert before.fingerprint != after.fingerprint


def test_two_processes_at_once_make_it_once(corpus, tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        made = pool.starmap(prepare, [(data(corpus), tmp_path / "cache")] * 2)
    assert made[0] == made[1]
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.name.startswith(".")] == []


def test_too_little_text_is_refused(tmp_path):
    (tmp_path / "short.txt").write_text("a few words")
    with pytest.raises(UsageError, match="fewer than one sequence of 32"):
        prepare(data(tmp_path / "short.txt"), tmp_path / "cache")


def test_a_tokenizer_larger_than_the_model_is_refused(corpus, cache):
    with pytest.raises(UsageError, match="the tokenizer has 400 entries, the model 300"):
        prepare_for_run(data(corpus), cache, None, model_vocabulary=300)


def test_a_tokenizer_that_is_none_is_refused(corpus, cache, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EnvironmentProblem, match="is not a tokenizer"):
        prepare(data(corpus, tokenizer=str(tmp_path / "tokenizer.json")), cache)


def test_an_own_tokenizer_closes_documents_with_its_own_token(corpus, cache, tmp_path):
    folder, _ = prepare(data(corpus), cache)
    text = (folder / "tokenizer.json").read_text().replace("<|endoftext|>", "</s>")
    (tmp_path / "tokenizer.json").write_text(text)
    folder, card = prepare(data(corpus, tokenizer=str(tmp_path / "tokenizer.json")), cache)
    closing = end_of_text(Tokenizer.from_file(str(tmp_path / "tokenizer.json")))
    assert tokens_of(folder, card)[-1] == closing
