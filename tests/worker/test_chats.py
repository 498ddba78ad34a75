"""Conversations as rows: which tokens count, what a template may do, what becomes of long ones, and broken lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.worker.chat_data import CHATML, letters_tokenizer
from trainworks.config.data import Data
from trainworks.errors import UsageError
from trainworks.plan.run.steps import num_steps
from trainworks.worker.data.card import read_card
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.prepare import prepare
from trainworks.worker.data.split import Side
from trainworks.worker.data.tokenization import BUILT_IN

MARKED = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}A:{% generation %}{{ message['content'] }}\n"
    "{% endgeneration %}{% else %}Q:{{ message['content'] }}\n{% endif %}{% endfor %}"
)
FORGETFUL = (
    "{% for message in messages %}{{ message['role'] }}:{% if message['role'] == 'assistant' and loop.last %}(thinks)"
    "{% endif %}{{ message['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hi."}]
LONGER = [*HELLO, {"role": "user", "content": "How are you?"}, {"role": "assistant", "content": "Well, thanks."}]


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of single bytes."""
    return letters_tokenizer(tmp_path_factory.mktemp("letters"))


class Prepared:
    """Rows of prepared chats."""

    def __init__(self, records: list[Any], tokenizer: Path, to: Path, *, length: int = 200, **changes: Any) -> None:
        file = to / "chats.jsonl"
        file.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
        fields = {"source": str(file), "sequence_length": length, "tokenizer": str(tokenizer), "chat": True} | changes
        self.data = Data.model_validate(fields)
        self.folder, self.card = prepare(self.data, to / "cache")
        dataset = open_dataset(self.folder, self.data)
        every = np.arange(len(dataset))
        self.arrays = dataset.gather(every, every)
        self._tokenizer = Tokenizer.from_file(str(tokenizer))

    def text(self, row: int) -> str:
        """All tokens of a row."""
        return str(self._tokenizer.decode(self.arrays["x"][row].tolist(), skip_special_tokens=False))

    def counted(self, row: int = 0) -> str:
        """What the loss counts of a row."""
        labels = self.arrays["labels"][row]
        return str(self._tokenizer.decode(labels[labels >= 0].tolist(), skip_special_tokens=False))


@pytest.fixture
def prepared(letters: Path, tmp_path: Path):
    """A function: rows of some records, with changes to `data`."""

    def made(*records: Any, template: str | None = None, **changes: Any) -> Prepared:
        if template is not None:
            (tmp_path / "own.jinja").write_text(template)
            changes["chat"] = changes.get("chat", {}) | {"template": str(tmp_path / "own.jinja")}
        return Prepared(list(records), letters, tmp_path, **changes)

    return made


# Which tokens count


def test_the_loss_counts_the_answer_and_its_end(prepared):
    rows = prepared({"messages": HELLO}, template=CHATML)
    assert rows.text(0).startswith("<|im_start|>user\nHello?<|im_end|>\n<|im_start|>assistant\nHi.<|im_end|>\n")
    assert rows.counted() == "Hi.<|im_end|>\n"


def test_every_answer_of_a_conversation_counts(prepared):
    rows = prepared({"messages": LONGER}, template=CHATML)
    assert len(rows.arrays["x"]) == 1
    assert rows.counted() == "Hi.<|im_end|>\nWell, thanks.<|im_end|>\n"


def test_marks_of_the_template_say_what_an_answer_is(prepared):
    rows = prepared({"messages": LONGER}, template=MARKED)
    assert rows.counted() == "Hi.\nWell, thanks.\n"


def test_the_marks_agree_with_those_of_transformers(prepared, letters):
    rows = prepared({"messages": LONGER}, template=MARKED)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(letters))
    theirs = tokenizer.apply_chat_template(
        LONGER, chat_template=MARKED, return_assistant_tokens_mask=True, return_dict=True
    )
    length = len(theirs["input_ids"])
    assert rows.arrays["x"][0][:length].tolist() == theirs["input_ids"]
    ours = rows.arrays["labels"][0][: length - 1] >= 0
    assert ours.tolist() == [mask == 1 for mask in theirs["assistant_masks"][1:]]


def test_a_template_that_forgets_gives_one_sample_per_answer(prepared):
    rows = prepared({"messages": LONGER}, template=FORGETFUL)
    assert [rows.counted(row) for row in range(2)] == ["(thinks)Hi.\n", "(thinks)Well, thanks.\n"]
    assert "assistant:Hi.\n" in rows.text(1)


def test_all_tokens_count_if_wanted(prepared):
    rows = prepared({"messages": HELLO}, template=CHATML, chat={"loss_on": "all"})
    assert rows.counted() == "user\nHello?<|im_end|>\n<|im_start|>assistant\nHi.<|im_end|>\n"


# Forms of records


def test_a_prompt_and_its_completion_need_no_template(prepared):
    rows = prepared({"prompt": "2 + 2 = ", "completion": "4"})
    assert rows.text(0).startswith("2 + 2 = 4<|endoftext|>")
    assert rows.counted() == "4<|endoftext|>"


def test_other_forms_are_the_same_conversation(prepared):
    rows = prepared(
        {"messages": HELLO},
        {"conversations": [{"from": "human", "value": "Hello?"}, {"from": "gpt", "value": "Hi."}]},
        {"prompt": HELLO[:1], "completion": HELLO[1:]},
        {"instruction": "Hello?", "input": "", "output": "Hi."},
    )
    assert len({rows.text(row) for row in range(4)}) == 1


@pytest.mark.parametrize("template", [CHATML, MARKED, FORGETFUL])
def test_answers_in_a_prompt_of_messages_do_not_count(prepared, template):
    rows = prepared({"prompt": LONGER[:3], "completion": LONGER[3:]}, template=template)
    assert "Hi." in rows.text(0)
    assert [rows.counted(row) for row in range(len(rows.arrays["x"]))] == [rows.counted()]
    assert "Well, thanks." in rows.counted()
    assert "Hi." not in rows.counted()


def test_an_input_is_put_below_its_instruction(prepared):
    rows = prepared({"instruction": "Add.", "input": "2, 2", "output": "4"})
    assert "Add.\n\n2, 2" in rows.text(0)


# Templates


def test_a_tokenizer_without_a_template_gets_the_built_in_one(prepared):
    rows = prepared({"messages": HELLO})
    assert rows.text(0).startswith("<|user|>\nHello?<|endoftext|>\n<|assistant|>\nHi.<|endoftext|>\n")
    assert json.loads((rows.folder / "chat.json").read_text())["template"] == BUILT_IN


def test_the_template_of_the_tokenizer_is_found_beside_it(letters, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(letters.read_bytes())
    settings = {"chat_template": "{{ bos_token }}" + CHATML, "bos_token": {"content": "<|endoftext|>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    rows = Prepared([{"messages": HELLO}], tmp_path / "tokenizer.json", tmp_path)
    assert rows.text(0).startswith("<|endoftext|><|im_start|>user\n")


def test_a_template_cannot_reach_beyond_the_conversation(prepared):
    with pytest.raises(UsageError, match="SecurityError"):
        prepared({"messages": HELLO}, template="{{ messages.__class__.__mro__ }}")


def test_a_template_that_refuses_a_conversation_is_blamed_with_the_line(prepared):
    template = "{% if messages | length > 2 %}{{ raise_exception('too many turns') }}{% endif %}" + CHATML
    with pytest.raises(UsageError, match=r"chats.jsonl:2`: the chat template refuses it: too many turns"):
        prepared({"messages": HELLO}, {"messages": LONGER}, template=template)


# Rows


def test_documents_of_a_row_are_told_apart(prepared):
    rows = prepared({"messages": HELLO}, {"messages": LONGER}, pack=True, template=CHATML)
    assert len(rows.arrays["x"]) == 1
    starts = np.flatnonzero(rows.arrays["positions"][0] == 0)
    pieces = [rows.text(0)[start:] for start in (0,)]
    assert len(starts) == 3  # two conversations and the filler
    assert pieces[0].count("<|im_start|>user") == 3
    assert rows.counted().endswith("<|im_end|>\n")


def test_fillers_do_not_count_and_no_document_predicts_the_next(prepared):
    rows = prepared({"messages": HELLO}, {"messages": HELLO}, pack=True, chat={"loss_on": "all"})
    labels, positions = rows.arrays["labels"][0], rows.arrays["positions"][0]
    starts = np.flatnonzero(positions == 0)
    assert all(labels[start - 1] < 0 for start in starts[1:])
    assert (labels[starts[-1] :] < 0).all()


def test_rows_of_one_conversation_need_no_positions(prepared):
    rows = prepared({"messages": HELLO}, {"messages": LONGER})
    assert set(rows.arrays) == {"x", "labels"}
    assert len(rows.arrays["x"]) == 2


def test_packed_text_is_told_apart_too(prepared, tmp_path, letters):
    file = tmp_path / "texts.jsonl"
    file.write_text('{"text": "one"}\n{"text": "two"}\n')
    data = Data(source=str(file), sequence_length=15, tokenizer=str(letters), pack=True)
    folder, _ = prepare(data, tmp_path / "cache")
    arrays = open_dataset(folder, data).gather(np.arange(1), np.arange(1))
    assert np.flatnonzero(arrays["positions"][0] == 0).tolist() == [0, 4, 8]
    assert (arrays["labels"][0] >= 0).tolist() == [True] * 3 + [False] + [True] * 3 + [False] * 8


def test_an_epoch_is_every_row_once(prepared, letters):
    from trainworks.config.run_file import Workload

    rows = prepared(*[{"messages": HELLO}] * 10, length=63)
    model = {"layers": 1, "hidden": 8, "heads": 1}
    fields = {"task": "causal-lm", "model": model, "global_batch": 2, "train_for": "3 epochs", "data": rows.data}
    workload = Workload.model_validate(fields)
    assert num_steps(workload, tokens_in_data=read_card(rows.folder).num_tokens) == 15


# What does not fit


def test_a_long_conversation_is_cut_at_its_end_and_counted(prepared):
    rows = prepared({"messages": LONGER}, {"messages": HELLO}, template=CHATML, length=60)
    assert rows.counted(0).startswith("Hi.<|im_end|>\n")
    assert rows.card.chats is not None
    assert (rows.card.chats.conversations, rows.card.chats.cut, rows.card.chats.dropped) == (2, 1, 0)


def test_a_long_conversation_is_dropped_if_wanted(prepared):
    rows = prepared({"messages": LONGER}, {"messages": HELLO}, template=CHATML, length=60, chat={"too_long": "drop"})
    assert rows.card.chats is not None and rows.card.chats.dropped == 1
    assert len(rows.arrays["x"]) == 1


def test_a_long_conversation_is_refused_if_wanted(prepared):
    with pytest.raises(UsageError, match=r"chats.jsonl:2`: \d+ tokens, more than the 61 of a row"):
        prepared({"messages": HELLO}, {"messages": LONGER}, template=CHATML, length=60, chat={"too_long": "refuse"})


def test_data_without_an_answer_that_fits_are_refused(prepared):
    with pytest.raises(UsageError, match=r"none of the 1 conversations .* has an answer within 10 tokens"):
        prepared({"messages": HELLO}, template=CHATML, length=10)


# Broken lines


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": []}, r"`messages` is not a list of messages"),
        ({"messages": [{"content": "?"}]}, r"`messages\[0\]` has no `role`"),
        ({"messages": [{"role": "user"}]}, r"`messages\[0\]` has no text in `content`"),
        ({"messages": HELLO[:1]}, r"no answer: no message of `assistant` follows"),
        ({"text": "?"}, r"no conversation: the record has text"),
        ({"instruction": 1, "output": "?"}, r".* are not all text"),
        ([1], r"a line is an object"),
    ],
)
def test_a_broken_line_is_named(prepared, record, message):
    with pytest.raises(UsageError, match=r"chats.jsonl:2`: " + message):
        prepared({"messages": HELLO}, record)


def test_a_line_that_is_not_json_is_named(letters, tmp_path):
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": HELLO}) + "\n{\n")
    data = Data(source=str(tmp_path / "chats.jsonl"), sequence_length=100, tokenizer=str(letters), chat={})
    with pytest.raises(UsageError, match=r"chats.jsonl:2`: not JSON"):
        prepare(data, tmp_path / "cache")


def test_a_tokenizer_can_be_trained_on_conversations(tmp_path):
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": LONGER}) + "\n" for _ in range(20)))
    data = Data(source=str(tmp_path / "chats.jsonl"), sequence_length=100, vocabulary=300, chat={})
    _, card = prepare(data, tmp_path / "cache")
    assert card.chats is not None and card.chats.conversations == 20


# Held-out conversations


def test_a_split_holds_whole_conversations_out(prepared, tmp_path):
    records = [{"prompt": f"{number}?", "completion": "yes"} for number in range(40)]
    rows = prepared(*records)
    both = (Side(0.25, held_out=held_out) for held_out in (True, False))
    sides = [prepare(rows.data, tmp_path / "cache", side=side)[1].chats for side in both]
    counts = [side.conversations for side in sides if side is not None]
    assert sum(counts) == 40 and min(counts) > 0
