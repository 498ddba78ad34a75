"""Documents and conversations as tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from trainworks.config.finetune import Chat
from trainworks.config.spec import Spec
from trainworks.errors import UsageError
from trainworks.worker.data.inputs import Piece, Record, documents, records
from trainworks.worker.data.tokenization import ChatStyle, Tokenization, end_of_text
from trainworks.worker.data.tokens import COUNTED, MARKED_DTYPE, VALUE_DTYPE, Tokens

if TYPE_CHECKING:
    from trainworks.worker.data.chats import Example

_BATCH_BYTES = 2_000_000
_Mask = NDArray[np.bool_]
_Item = TypeVar("_Item")


class Recipe(Spec):
    """How a source becomes rows of tokens."""

    column: str | None = None
    """Column of the text."""
    row: int | None = None
    """Tokens per row of whole documents, T + 1; None if documents follow each other."""
    one_per_row: bool = False
    """Rows of one document each; else as many as fit."""
    chat: Chat | None = None

    @property
    def marked(self) -> bool:
        """Tokens carry the marks START and COUNTED of `packing`, which set documents of a row apart."""
        return self.row is not None

    @property
    def has_values(self) -> bool:
        """A row has a number behind its tokens."""
        return self.chat is not None and self.chat.has_values


def encoder_of(recipe: Recipe, tokenization: Tokenization) -> TextEncoder | ChatEncoder:
    """The encoder of a recipe, with counts of what it met by name."""
    if recipe.chat is None:
        return TextEncoder(tokenization.tokenizer, recipe)
    assert recipe.row is not None and tokenization.chat is not None
    return ChatEncoder(tokenization.tokenizer, recipe.chat, tokenization.chat, row=recipe.row)


def dtype_of(recipe: Recipe, vocabulary: int) -> np.dtype[np.unsignedinteger]:
    """The smallest type that holds a vocabulary, and the marks if there are any."""
    return MARKED_DTYPE if recipe.marked or vocabulary > 1 << 16 else np.dtype("<u2")


class TextEncoder:
    """Documents, each closed by the tokenizer's end-of-text token."""

    def __init__(self, tokenizer: Tokenizer, recipe: Recipe) -> None:
        self.counts: Counter[str] = Counter()
        self._tokenizer = tokenizer
        self._column = recipe.column
        self._dtype = dtype_of(recipe, 1 + max(tokenizer.get_vocab().values()))
        self._mark = COUNTED if recipe.marked else 0
        self._end = end_of_text(tokenizer)

    def encode(self, pieces: Sequence[Piece]) -> Iterator[tuple[list[Tokens], int]]:
        """Tokens of each document of a batch, and their size as text."""
        closing = [] if self._end is None else [self._end]
        for batch in _batches((text, len(text)) for text in documents(pieces, self._column)):
            encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            tokens = [np.array(encoding.ids + closing, dtype=self._dtype) for encoding in encodings]
            if self._mark:
                tokens = [each | self._dtype.type(self._mark) for each in tokens]
            yield tokens, sum(len(text.encode()) for text in batch)


class ChatEncoder:
    """Conversations in the words of a chat template; answers are counted. A row has T + 1 tokens."""

    def __init__(self, tokenizer: Tokenizer, chat: Chat, style: ChatStyle, *, row: int) -> None:
        from trainworks.worker.data import chats  # noqa: PLC0415  # imports `transformers`

        self.counts: Counter[str] = Counter()
        self._chats = chats
        self._style = style
        self._tokenizer = tokenizer
        self._chat = chat
        self._row = row
        self._end = end_of_text(tokenizer)

    def encode(self, pieces: Sequence[Piece]) -> Iterator[tuple[list[Tokens], int]]:
        """Marked tokens of each conversation of a batch, and their size as text; without those that are dropped."""
        samples = (
            (sample, sum(len(example.text) for example in sample))
            for record in records(pieces)
            for sample in self._samples_of(record)
        )
        for batch in _batches(samples):
            texts = [example.text for sample in batch for example in sample]
            encodings = iter(self._tokenizer.encode_batch(texts, add_special_tokens=False))
            encoded = [[self._marked(example, next(encodings)) for example in sample] for sample in batch]
            yield (
                [each for sample, tokens in zip(batch, encoded, strict=True) for each in self._whole(sample, tokens)],
                sum(len(text.encode()) for text in texts),
            )

    def _samples_of(self, record: Record) -> list[tuple[Example, ...]]:
        """Conversations that are kept or dropped together: each alone, or the two of a pair."""
        chat, style = self._chat, self._style
        if chat.pairs:
            return [self._chats.pair_of(record, style, loss_on=chat.loss_on, has_margin=chat.margins)]
        if chat.labels:
            return [(self._chats.labelled_answer(record, style, loss_on=chat.loss_on),)]
        return [(example,) for example in self._chats.examples_of(record, style, loss_on=chat.loss_on)]

    def _whole(self, sample: tuple[Example, ...], tokens: list[Tokens | None]) -> list[Tokens]:
        """The conversations of a sample, each with the bits of its value behind it; none if one of them is dropped."""
        kept = [each for each in tokens if each is not None]
        if len(kept) < len(tokens):
            self.counts["dropped"] += len(tokens)
            return []
        self.counts["answer_tokens"] += sum(int((each[1:] & COUNTED > 0).sum()) for each in kept)
        if not self._chat.has_values:
            return kept
        values = np.array([each.value for each in sample], dtype=VALUE_DTYPE).view(MARKED_DTYPE)
        return [np.append(each, value) for each, value in zip(kept, values, strict=True)]

    def _marked(self, example: Example, encoding: Encoding) -> Tokens | None:
        """A token belongs to an answer if its first character does. None if the conversation is dropped."""
        tokens = np.array(encoding.ids, dtype=MARKED_DTYPE)
        at = np.array([start for start, _ in encoding.offsets])
        counted = np.zeros(len(tokens), dtype=bool)
        for start, stop in example.answers:
            counted |= (at >= start) & (at < stop)
        if not example.is_closed and self._end is not None:
            tokens, counted = np.append(tokens, MARKED_DTYPE.type(self._end)), np.append(counted, True)
        self.counts["conversations"] += 1
        if (kept := self._fitted(tokens, counted, example)) is None:
            return None
        tokens, counted = kept
        return np.where(counted, tokens | MARKED_DTYPE.type(COUNTED), tokens)

    def _fitted(self, tokens: Tokens, counted: _Mask, example: Example) -> tuple[Tokens, _Mask] | None:
        """The first T + 1 tokens; None if they have no answer, or longer conversations are dropped."""
        too_long = len(tokens) > self._row
        if too_long and self._chat.too_long == "refuse":
            raise UsageError(
                f"{example.place()}: {len(tokens):,} tokens, more than the {self._row:,} of a row "
                "(`data.sequence_length` + 1)",
                hint="raise `data.sequence_length`, or set `data.chat.too_long` to `cut` or `drop`",
            )
        kept = tokens[: self._row], counted[: self._row]
        if (too_long and self._chat.too_long == "drop") or not kept[1][1:].any():
            return None
        self.counts["cut"] += too_long
        return kept


def _batches(items: Iterable[tuple[_Item, int]]) -> Iterator[list[_Item]]:
    """Items, each with its size, in batches of about `_BATCH_BYTES`."""
    batch: list[_Item] = []
    size = 0
    for item, item_size in items:
        batch.append(item)
        size += item_size
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
