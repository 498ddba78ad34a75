"""Tokenizer and chat template are one object, which all data of a run share, or are refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker.chat_data import CHATML, letters_tokenizer, write_chats
from trainworks.config.data import Data, Evaluation
from trainworks.config.finetune import Chat
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.record.manifest import Manifest, check_tokenization
from trainworks.worker.data.card import CARD, read_card
from trainworks.worker.data.preparation import prepare_evaluation
from trainworks.worker.data.prepare import prepare
from trainworks.worker.data.shards import put
from trainworks.worker.data.split import Side
from trainworks.worker.data.tokenization import BUILT_IN, ChatStyle, Tokenization, find_tokenization, fingerprint_of

OTHER = CHATML.replace("im_end|>\n", "im_end|>")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a tokenizer whose template is ChatML."""
    (folder := tmp_path / "model").mkdir()
    letters_tokenizer(folder)
    settings = {"chat_template": CHATML, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def chats(model: Path, tmp_path: Path) -> Callable[..., Data]:
    """A function: data of conversations, with changes to its keys."""
    file = write_chats(tmp_path / "chats.jsonl", 20)

    def made(**changes: Any) -> Data:
        fields = {"source": str(file), "sequence_length": 100, "chat": True, "tokenizer": str(model / "tokenizer.json")}
        return Data.model_validate(fields | changes)

    return made


@pytest.fixture
def other_template(tmp_path: Path) -> dict[str, Any]:
    """`data.chat` with another template."""
    (tmp_path / "other.jinja").write_text(OTHER)
    return {"template": str(tmp_path / "other.jinja")}


def template_of(folder: Path) -> str:
    chat = Tokenization.read(folder).chat
    assert chat is not None
    return chat.template


def test_a_fingerprint_is_that_of_the_content_and_not_of_the_place(model: Path) -> None:
    one = find_tokenization(model / "tokenizer.json", Chat())
    assert one.chat is not None
    moved = dataclasses.replace(one, place="elsewhere", chat=dataclasses.replace(one.chat, origin="elsewhere"))
    assert moved.fingerprint == one.fingerprint
    named = ChatStyle(one.chat.template, {"eos_token": "<|endoftext|>"}, "")
    others = [
        dataclasses.replace(one, tokenizer_json=one.tokenizer_json + b"\n"),
        dataclasses.replace(one, chat=dataclasses.replace(one.chat, template=OTHER)),
        dataclasses.replace(one, chat=named),
        dataclasses.replace(one, chat=None),
    ]
    assert len({each.fingerprint for each in [one, *others]}) == 5


def test_a_file_beside_a_tokenizer_that_happens_to_be_named_chat_json_is_not_its_template(model: Path) -> None:
    (model / "chat.json").write_text(json.dumps([{"messages": []}]))
    chat = find_tokenization(model / "tokenizer.json", Chat()).chat
    assert chat is not None and chat.template == CHATML


def test_a_template_that_cannot_be_rendered_is_refused(chats: Any, tmp_path: Path) -> None:
    (tmp_path / "adds.jinja").write_text("{{ 1 + messages[0]['content'] }}")
    with pytest.raises(UsageError, match=r"adds\.jinja: TypeError: unsupported operand"):
        prepare(chats(chat={"template": str(tmp_path / "adds.jinja")}), tmp_path / "cache")


def test_a_list_of_templates_without_names_counts_as_none(model: Path) -> None:
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": [CHATML, {"name": "tools"}]}))
    chat = find_tokenization(model / "tokenizer.json", Chat()).chat
    assert chat is not None and chat.template == BUILT_IN


def test_a_tokenizer_that_was_trained_on_a_column_is_not_taken_for_conversations(tmp_path: Path) -> None:
    record = {"text": "alpha beta " * 9, "prompt": "gamma delta " * 9, "completion": "epsilon zeta " * 9}
    (tmp_path / "both.jsonl").write_text("".join(json.dumps(record) + "\n" for _ in range(9)))
    fields = {"source": str(tmp_path / "both.jsonl"), "sequence_length": 100, "vocabulary": 300}
    text, chats = (Data.model_validate(fields | how) for how in ({}, {"chat": True}))
    prepare(text, tmp_path / "cache")
    found = {prepare(chats, tmp_path / cache)[1].tokenization for cache in ("cache", "another-cache")}
    assert len(found) == 1


def test_a_changed_template_prepares_anew_and_a_moved_one_does_not(model: Path, chats: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "first.jinja", tmp_path / "second.jinja"
    first.write_text(CHATML)
    before, card = prepare(chats(chat={"template": str(first)}), tmp_path / "cache")
    first.rename(second)
    assert prepare(chats(chat={"template": str(second)}), tmp_path / "cache")[0] == before
    second.write_text(OTHER)
    after, other = prepare(chats(chat={"template": str(second)}), tmp_path / "cache")
    assert after != before
    assert template_of(after) == OTHER
    assert other.tokenization != card.tokenization == fingerprint_of(before)


def test_a_changed_template_beside_the_tokenizer_prepares_anew(model: Path, chats: Any, tmp_path: Path) -> None:
    before, _ = prepare(chats(), tmp_path / "cache")
    (model / "chat_template.jinja").write_text(OTHER)
    assert prepare(chats(), tmp_path / "cache")[0] != before


@pytest.mark.parametrize("evaluation", [{"split": 0.3}, {"data": "held-out.jsonl"}], ids=["split", "data"])
def test_held_out_conversations_have_the_template_of_the_training_data(
    chats: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluation: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_chats(tmp_path / "held-out.jsonl", 8)
    train, card = prepare(chats(), tmp_path / "cache", side=Side(0.3, held_out=False))
    settings = Evaluation.model_validate(evaluation | {"every": "1 steps"})
    (tmp_path / "model" / "tokenizer_config.json").unlink()  # what was found once is not looked up again
    held_out = prepare_evaluation(chats(), settings, train, tmp_path / "cache")[""]
    assert read_card(held_out).tokenization == card.tokenization
    assert template_of(held_out) == CHATML


def test_a_held_out_folder_with_another_template_is_refused_by_its_fingerprint(
    chats: Any, other_template: dict[str, Any], tmp_path: Path
) -> None:
    train, ours = prepare(chats(), tmp_path / "cache")
    other, theirs = prepare(chats(chat=other_template), tmp_path / "cache")
    settings = Evaluation.model_validate({"data": str(other), "every": "1 steps"})
    with pytest.raises(UsageError, match="have different chat templates") as caught:
        prepare_evaluation(chats(), settings, train, tmp_path / "cache")
    assert str(ours.tokenization)[:12] in caught.value.message and str(theirs.tokenization)[:12] in caught.value.message
    assert "`data.chat.template`" in str(caught.value.hint)


def test_a_held_out_folder_of_another_form_is_refused(chats: Any, tmp_path: Path) -> None:
    train, _ = prepare(chats(), tmp_path / "cache")
    packed, _ = prepare(chats(pack=True), tmp_path / "cache")
    settings = Evaluation.model_validate({"data": str(packed), "every": "1 steps"})
    with pytest.raises(UsageError, match="rows of whole documents"):
        prepare_evaluation(chats(), settings, train, tmp_path / "cache")


def test_conversations_beside_prepared_ones_take_their_template(
    chats: Any, other_template: dict[str, Any], tmp_path: Path
) -> None:
    """A tokenizer alone does not say it: none is named in the run file."""
    prepared, card = prepare(chats(), tmp_path / "cache")
    sources = [str(prepared), str(write_chats(tmp_path / "more.jsonl", 9))]
    mixed, found = prepare(chats(source=sources, tokenizer="bpe"), tmp_path / "cache")
    assert found.tokenization == card.tokenization
    assert [template_of(Path(part.folder)) for part in found.parts] == [CHATML] * 2
    assert template_of(mixed) == CHATML
    for source in (sources, str(prepared)):
        with pytest.raises(UsageError, match="have different chat templates"):
            prepare(chats(source=source, tokenizer="bpe", chat=other_template), tmp_path / "cache")


def test_conversations_beside_prepared_text_need_a_template(
    chats: Any, model: Path, other_template: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": "word " * 30}) + "\n" for _ in range(9)))
    texts, _ = prepare(chats(source=str(tmp_path / "texts.jsonl"), chat=None, pack=True), tmp_path / "cache")
    assert Tokenization.read(texts).chat is None
    sources = [str(texts), str(tmp_path / "chats.jsonl")]
    with pytest.raises(UsageError, match="was prepared as text, without a chat template"):
        prepare(chats(source=sources, tokenizer="bpe", pack=True), tmp_path / "cache")
    mixed, _ = prepare(chats(source=sources, tokenizer="bpe", pack=True, chat=other_template), tmp_path / "cache")
    assert template_of(mixed) == OTHER
    mixed, _ = prepare(chats(source=sources, pack=True), tmp_path / "cache")
    assert template_of(mixed) == CHATML


def test_a_prepared_folder_is_refused_beside_a_model_with_another_template(
    chats: Any, other_template: dict[str, Any], tmp_path: Path
) -> None:
    prepared, _ = prepare(chats(chat=other_template), tmp_path / "cache")
    with pytest.raises(UsageError, match="have different chat templates"):
        prepare(chats(source=str(prepared)), tmp_path / "cache")
    again = chats(source=str(prepared), tokenizer=str(prepared / "tokenizer.json"))  # what the hint proposes
    assert prepare(again, tmp_path / "cache")[0] == prepared


def test_the_template_goes_through_a_store(chats: Any, tmp_path: Path) -> None:
    folder, card = prepare(chats(), tmp_path / "cache")
    put(folder, card, str(tmp_path / "store"))
    streamed, _ = prepare(chats(source=f"file://{tmp_path}/store", tokenizer="bpe"), tmp_path / "other-cache")
    assert template_of(streamed) == CHATML
    settings = Evaluation.model_validate({"data": str(write_chats(tmp_path / "held.jsonl", 5)), "every": "1 steps"})
    held_out = prepare_evaluation(chats(tokenizer="bpe"), settings, streamed, tmp_path / "other-cache")[""]
    assert template_of(held_out) == CHATML


def test_a_tokenizer_without_a_template_gets_the_built_in_one_with_its_end_of_text(tmp_path: Path) -> None:
    found = find_tokenization(letters_tokenizer(tmp_path), Chat())
    assert found.chat == ChatStyle(BUILT_IN, {"eos_token": "<|endoftext|>"}, "built-in")


def test_files_that_were_changed_after_the_preparation_are_refused(chats: Any, tmp_path: Path) -> None:
    folder, _ = prepare(chats(), tmp_path / "cache")
    style = json.loads((folder / "chat.json").read_text())
    (folder / "chat.json").write_text(json.dumps(style | {"template": OTHER}))
    with pytest.raises(EnvironmentProblem, match="were changed after the data were prepared"):
        Tokenization.read(folder)


def test_a_card_of_an_earlier_version_is_read(chats: Any, tmp_path: Path) -> None:
    folder, card = prepare(chats(), tmp_path / "cache")
    fields = json.loads((folder / CARD).read_text())
    del fields["tokenization"]
    (folder / CARD).write_text(json.dumps(fields | {"tokenizer_sha256": "0" * 64}))
    assert fingerprint_of(folder) == Tokenization.read(folder).fingerprint == card.tokenization


def test_a_checkpoint_is_refused_beside_data_with_another_template() -> None:
    fields = {"step": 7, "attempt": 1, "created_at": 0.0, "samples_consumed": 7, "data_fingerprint": "d", "torch": "2"}
    layout = dict.fromkeys(("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep", "micro_batch", "grad_accum_steps"), 1)
    manifest = Manifest.model_validate(fields | {"layout": layout, "files": {}, "tokenization": "a" * 64})
    check_tokenization(manifest, "a" * 64)
    check_tokenization(manifest, None)
    check_tokenization(manifest.model_copy(update={"tokenization": None}), "b" * 64)
    with pytest.raises(EnvironmentProblem, match=r"changed since step 7: fingerprint a{12} then, b{12} now"):
        check_tokenization(manifest, "b" * 64)
