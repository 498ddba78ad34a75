"""Held-out data: which documents are on which side, and what a run without enough of them says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer

from trainworks.config.data import Data, Evaluation
from trainworks.errors import UsageError
from trainworks.worker.data.card import CARD, DatasetCard, Shard, read_card
from trainworks.worker.data.images import prepare_images, read_files
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.preparation import prepare_evaluation, training_side
from trainworks.worker.data.prepare import prepare
from trainworks.worker.data.split import Side, split_prepared

SPLIT = Evaluation.model_validate({"split": "20 %", "every": "10 steps"})


@given(st.lists(st.text()), st.floats(0.01, 0.5))
def test_every_document_is_on_one_side_whatever_stands_beside_it(texts: list[str], share: float) -> None:
    held_out, rest = Side(share, held_out=True), Side(share, held_out=False)
    out, kept = list(held_out.documents(texts)), list(rest.documents(texts))
    assert sorted(out + kept) == sorted(texts)
    assert not set(out) & set(kept)
    assert out == [text for text in texts if list(held_out.documents([text]))]


def test_the_held_out_share_is_that_of_the_run_file() -> None:
    texts = [f"document {number}" for number in range(10_000)]
    assert len(list(Side(0.05, held_out=True).documents(texts))) == pytest.approx(500, abs=90)


def numbered(folder: Path, count: int = 400) -> Data:
    """JSONL documents that begin with their number."""
    folder.mkdir(parents=True)
    lines = (json.dumps({"text": f"<{number}> {'word ' * (number % 7 + 3)}"}) for number in range(count))
    (folder / "texts.jsonl").write_text("\n".join(lines))
    return Data.model_validate({"source": str(folder), "sequence_length": 8, "vocabulary": 300})


def numbers_in(folder: Path) -> set[int]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [
        token
        for name in read_card(folder).shards
        for token in memoryview((folder / name).read_bytes()).cast("H").tolist()
    ]
    text = tokenizer.decode(ids, skip_special_tokens=False)
    return {int(part.partition(">")[0]) for part in text.split("<") if part.partition(">")[0].isdigit()}


def test_training_and_held_out_tokens_share_no_document_and_miss_none(tmp_path: Path) -> None:
    data = numbered(tmp_path / "texts")
    train, _ = prepare(data, tmp_path / "cache", side=training_side(SPLIT))
    held_out = prepare_evaluation(data, SPLIT, train, tmp_path / "cache")[""]
    trained_on, evaluated_on = numbers_in(train), numbers_in(held_out)
    assert not trained_on & evaluated_on
    assert trained_on | evaluated_on == set(range(400))
    assert 40 < len(evaluated_on) < 120
    assert read_card(held_out).tokenization == read_card(train).tokenization is not None
    assert read_card(held_out).fingerprint != read_card(train).fingerprint


def test_named_sets_are_prepared_once_each_with_the_tokenizer_of_the_training_data(tmp_path: Path) -> None:
    data = numbered(tmp_path / "texts")
    numbered(tmp_path / "wiki", 90), numbered(tmp_path / "code", 60)
    sets = {"wiki": str(tmp_path / "wiki"), "code": {"source": str(tmp_path / "code" / "*.jsonl"), "column": "text"}}
    settings = Evaluation.model_validate({"data": sets, "every": "10 steps"})
    train, card = prepare(data, tmp_path / "cache", side=training_side(settings))
    found = prepare_evaluation(data, settings, train, tmp_path / "cache")
    assert {name: numbers_in(folder) for name, folder in found.items()} == {
        "wiki": set(range(90)),
        "code": set(range(60)),
    }
    assert {read_card(folder).tokenization for folder in found.values()} == {card.tokenization}
    made: list[int] = []
    again = prepare_evaluation(data, settings, train, tmp_path / "cache", lambda done, total: made.append(done))
    assert again == found and not made, "the sets are prepared again"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": {"split": "a.txt"}}, "`split` is not the name of a held-out set"),
        ({"data": {}}, "`data` names no set"),
        ({"data": {"wiki": "a.txt"}, "metric_of": "wikis"}, "no held-out set has this name"),
        ({"split": 0.1, "metric_of": "wiki"}, "no held-out set has this name"),
    ],
)
def test_a_set_has_a_name_that_is_no_key_of_a_source(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Evaluation.model_validate({"every": "10 steps"} | settings)


def test_a_split_without_documents_to_hold_out_names_what_is_missing(tmp_path: Path) -> None:
    data = numbered(tmp_path / "texts", 3)
    train, _ = prepare(data, tmp_path / "cache", side=training_side(SPLIT))
    with pytest.raises(UsageError, match=r"held out for `eval.split` leaves \d+ tokens to evaluate on"):
        prepare_evaluation(data, SPLIT, train, tmp_path / "cache")


def test_prepared_data_is_split_by_whole_shards(tmp_path: Path) -> None:
    data = numbered(tmp_path / "texts", 60_000)
    whole, card = prepare(data, tmp_path / "cache")
    assert len(card.shards) > 2
    again = data.model_copy(update={"source": str(whole)})
    train, train_card = prepare(again, tmp_path / "cache", side=training_side(SPLIT))
    held_out = prepare_evaluation(again, SPLIT, train, tmp_path / "cache")[""]
    held_out_card = read_card(held_out)
    assert set(train_card.shards) | set(held_out_card.shards) == set(card.shards)
    assert not set(train_card.shards) & set(held_out_card.shards)
    assert len(open_dataset(held_out, data)) + len(open_dataset(train, data)) == len(open_dataset(whole, data))


def test_a_split_of_prepared_data_follows_them_to_another_place(tmp_path: Path) -> None:
    (data := tmp_path / "data").mkdir()
    shards = {f"tokens-{number}.bin": Shard(items=1, num_bytes=2, sha256="") for number in range(4)}
    card = DatasetCard(source="texts", fingerprint="f00d", shards=shards)
    for name, content in {**dict.fromkeys(shards, "ab"), "tokenizer.json": "{}", CARD: card.model_dump_json()}.items():
        (data / name).write_text(content)
    before = split_prepared(data, Side(0.3, held_out=False), tmp_path)
    moved = data.rename(tmp_path / "moved")
    after = split_prepared(moved, Side(0.3, held_out=False), tmp_path)
    assert after == before
    assert [(after / name).read_text() for name in read_card(after).shards] == ["ab"] * 3


def test_a_single_shard_cannot_be_split(tmp_path: Path) -> None:
    data = numbered(tmp_path / "texts")
    whole, _ = prepare(data, tmp_path / "cache")
    with pytest.raises(UsageError, match="single shard, which cannot be split"):
        prepare(data.model_copy(update={"source": str(whole)}), tmp_path / "cache", side=training_side(SPLIT))


def test_images_are_split_by_their_path(tmp_path: Path) -> None:
    for number in range(200):
        file = tmp_path / "images" / f"class-{number % 2}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"not opened here")
    source = Data.model_validate({"source": str(tmp_path / "images"), "image_size": 32}).sources[0]
    (tmp_path / "cache").mkdir()
    sides = [prepare_images(source, tmp_path / "cache", Side(0.2, held_out=flag)) for flag in (True, False)]
    out, kept = ({file.path for file in read_files(folder)} for folder in sides)
    assert len(out | kept) == 200
    assert not out & kept
    assert 20 < len(out) < 60
