"""Conversations and instructions as text, with the places of the answers in it.

A record of a source has one of these forms:

    messages       [{"role": .., "content": ..}, ..], and perhaps `tools`, which the template gets
    conversations  [{"from": .., "value": ..}, ..]
    prompt         and completion: two texts, which follow each other without a template; or two lists of messages, and
                   only those of the completion are answers
    instruction    and output, and perhaps input, which is put below the instruction

A record of preferences has `chosen` and `rejected`, two texts that follow the text or the messages of `prompt`, or two
lists of messages, which may begin with it; and perhaps a number `margin`. One of a single answer has a `label` beside
any of the forms above, true or false.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from trainworks.config.finetune import LossOn
from trainworks.errors import UsageError
from trainworks.worker.data.inputs import Record
from trainworks.worker.data.tokenization import ChatStyle

_ROLES = {"human": "user", "gpt": "assistant"}
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_FORMS = "`messages`, `conversations`, `prompt` and `completion`, or `instruction` and `output`"

Message = Mapping[str, Any]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Example:
    """A text, and the spans of its characters that are answers."""

    text: str
    answers: tuple[Span, ...]
    is_closed: bool
    """The template has closed it: no end-of-text token is to follow."""
    place: Callable[[], str] = "an unknown place".strip
    """Place of the record, for errors."""
    value: float = 0.0
    """Margin of its pair, or 1 of a desirable answer."""


def check_style(style: ChatStyle) -> None:
    """Check a template, by rendering a question with it.

    Raises:
        UsageError: it is not Jinja, or cannot be rendered.
    """
    try:
        _rendered(style, [{"role": "user", "content": "?"}], {})
    except (TemplateError, TypeError) as error:
        raise UsageError(f"chat template {style.origin}: {type(error).__name__}: {error}") from None


def _rendered(style: ChatStyle, messages: Sequence[Message], options: Mapping[str, Any], *, ask: bool = False) -> str:
    """The text of messages, with the beginning of an answer if `ask` is set. The template runs in Jinja's sandbox."""
    texts, _ = render_jinja_template(
        [list(messages)],  # type: ignore[arg-type]
        chat_template=style.template,
        add_generation_prompt=ask,
        **options,
        **style.tokens,
    )
    return str(texts[0])


def examples_of(record: Record, style: ChatStyle, *, loss_on: LossOn) -> list[Example]:
    """The record as text with its answers; several where the template renders an answer differently in a
    longer conversation, each then with one answer at its end.

    Raises:
        UsageError: the record has none of the forms, no answer, or the template refuses it; with file and line.
    """
    try:
        examples = _examples(record.fields, style, with_answers=loss_on == "answers")
    except (_BrokenError, TemplateError, TypeError) as error:
        hint = error.hint if isinstance(error, _BrokenError) else None
        what = str(error) if isinstance(error, _BrokenError) else f"the chat template refuses it: {error}"
        raise UsageError(f"{record.place()}: {what}", hint=hint) from None
    everything = loss_on == "all"
    return [
        replace(each, answers=((0, len(each.text)),) if everything else each.answers, place=record.place)
        for each in examples
    ]


def pair_of(record: Record, style: ChatStyle, *, loss_on: LossOn, has_margin: bool = False) -> tuple[Example, Example]:
    """The preferred conversation of a record and the other one, each with its answers, and with the margin.

    Raises:
        UsageError: the record has no pair, no answer, no margin where it needs one, or the template refuses it; with
            file and line.
    """
    margin = record.fields.get("margin") if has_margin else 0.0
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not math.isfinite(margin):
        hint = "give each pair a `margin`, or leave `data.chat.margins` out"
        raise UsageError(f"{record.place()}: `margin` is {json.dumps(margin)}, not a finite number", hint=hint)
    chosen, rejected = (
        examples_of(replace(record, fields=fields), style, loss_on=loss_on)[-1] for fields in _sides(record)
    )
    return replace(chosen, value=float(margin)), replace(rejected, value=float(margin))


def labelled_answer(record: Record, style: ChatStyle, *, loss_on: LossOn) -> Example:
    """The conversation of a record with its last answers, and 1 as its value if the label says that it is desirable.

    Raises:
        UsageError: the record has no label, no answer, or the template refuses it; with file and line.
    """
    label = record.fields.get("label")
    if label not in (True, False):
        hint = "write true for a desirable answer, and false for an undesirable one"
        raise UsageError(f"{record.place()}: `label` is {json.dumps(label)}, not true or false", hint=hint)
    return replace(examples_of(record, style, loss_on=loss_on)[-1], value=float(label))


def _sides(record: Record) -> list[Mapping[str, Any]]:
    """The two conversations of a record of preferences, each in a form that `messages_of` reads."""
    fields = record.fields
    sides: list[Mapping[str, Any]] = []
    for side in ("chosen", "rejected"):
        prompt, answer = fields.get("prompt"), fields.get(side)
        if not isinstance(answer, str | list) or (isinstance(answer, str) and not isinstance(prompt, str | list)):
            known = ", ".join(fields) or "nothing"
            raise UsageError(
                f"{record.place()}: no pair of answers: the record has {known}",
                hint="it needs `prompt`, `chosen` and `rejected`, or lists of messages in the last two",
            )
        if isinstance(answer, str) and isinstance(prompt, list):
            answer = [{"role": "assistant", "content": answer}]
        begins = isinstance(answer, str) or isinstance(prompt, list)
        sides.append({"prompt": prompt, "completion": answer} if begins else {"messages": answer})
    return sides


class _BrokenError(Exception):
    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def _examples(fields: Mapping[str, Any], style: ChatStyle, *, with_answers: bool) -> list[Example]:
    prompt, completion = fields.get("prompt"), fields.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        return [Example(prompt + completion, ((len(prompt), len(prompt) + len(completion)),), is_closed=False)]
    messages = messages_of(fields)
    options = {"tools": fields["tools"]} if fields.get("tools") else {}
    if not with_answers:
        return [Example(_rendered(style, messages, options), (), is_closed=True)]
    first = len(prompt) if isinstance(prompt, list) and "completion" in fields else 1
    num_answers = sum(message["role"] == "assistant" for message in messages[first:])
    if not num_answers:
        raise _BrokenError("no answer: no message of `assistant` follows another one")
    if _GENERATION.search(style.template):
        texts, spans = render_jinja_template(
            [messages],  # type: ignore[arg-type]
            chat_template=style.template,
            return_assistant_tokens_mask=True,
            **options,
            **style.tokens,
        )
        answers = spans[0] if first == 1 else spans[0][-num_answers:]
        return [Example(texts[0], tuple(tuple(span) for span in answers), is_closed=True)]  # type: ignore[misc]
    return _found_by_prefix(lambda part, ask: _rendered(style, part, options, ask=ask), messages, first)


def messages_of(fields: Mapping[str, Any]) -> list[Message]:
    """The conversation of a record, in any form but a prompt of text."""
    if "messages" in fields:
        return _checked(fields["messages"], "messages")
    if "conversations" in fields:
        turns = _checked(fields["conversations"], "conversations", role="from", content="value")
        return [{"role": _ROLES.get(turn["from"], turn["from"]), "content": turn["value"]} for turn in turns]
    if "prompt" in fields and "completion" in fields:
        return _checked(fields["prompt"], "prompt") + _checked(fields["completion"], "completion")
    if "instruction" in fields and "output" in fields:
        parts = [fields["instruction"], fields.get("input") or "", fields["output"]]
        if not all(isinstance(part, str) for part in parts):
            raise _BrokenError("`instruction`, `input` and `output` are not all text")
        question = "\n\n".join(part for part in parts[:2] if part)
        return [{"role": "user", "content": question}, {"role": "assistant", "content": parts[2]}]
    known = ", ".join(fields) or "nothing"
    raise _BrokenError(f"no conversation: the record has {known}", hint=f"it needs {_FORMS}")


def _checked(value: Any, key: str, *, role: str = "role", content: str = "content") -> list[Message]:
    if not isinstance(value, list) or not value:
        raise _BrokenError(f"`{key}` is not a list of messages", hint=f"it needs {_FORMS}")
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get(role), str):
            raise _BrokenError(f"`{key}[{number}]` has no `{role}`")
        if not isinstance(message.get(content), str | list) and not message.get("tool_calls"):
            raise _BrokenError(f"`{key}[{number}]` has no text in `{content}`")
    return value


def _found_by_prefix(
    render: Callable[[Sequence[Message], bool], str], messages: list[Message], first: int
) -> list[Example]:
    """An answer is what the text of the messages up to it has more than their text before it.

    A message of the assistant before the one at `first` is not an answer.
    """
    whole = render(messages, False)
    found: list[tuple[str, Span]] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant" or number < first:
            continue
        before, after = render(messages[:number], True), render(messages[: number + 1], False)
        if not after.startswith(before):
            raise _BrokenError(
                "the chat template begins an answer in other words than it asks for one: its tokens cannot be found",
                hint="set `data.chat.template` to one with `{% generation %}`, or `data.chat.loss_on: all`",
            )
        found.append((after, (len(before), len(after))))
    if all(whole.startswith(after) for after, _ in found):
        return [Example(whole, tuple(span for _, span in found), is_closed=True)]
    return [Example(after, (span,), is_closed=True) for after, span in found]


def plain_text(record: Record) -> str:
    """What a tokenizer is trained on: the contents of all messages.

    Raises:
        UsageError: the record is not a conversation, with file and line.
    """
    fields = record.fields
    if "chosen" in fields:
        return "\n".join(plain_text(replace(record, fields=side)) for side in _sides(record))
    if isinstance(fields.get("prompt"), str) and isinstance(fields.get("completion"), str):
        return str(fields["prompt"] + fields["completion"])
    try:
        contents = [message.get("content") for message in messages_of(fields)]
    except _BrokenError as error:
        raise UsageError(f"{record.place()}: {error}", hint=error.hint) from None
    return "\n".join(content for content in contents if isinstance(content, str))
