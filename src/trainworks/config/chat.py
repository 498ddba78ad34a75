"""Conversations and instructions as training data."""

from __future__ import annotations

from typing import Literal

from trainworks.config.spec import Spec

LossOn = Literal["answers", "all"]
TooLong = Literal["cut", "drop", "refuse"]


class Chat(Spec):
    """How conversations become training sequences."""

    template: str | None = None
    """File with a chat template (Jinja); by default that of the tokenizer, or a built-in one if it has none."""
    loss_on: LossOn = "answers"
    """Tokens that the loss counts: those of the assistant's messages and completions, or all."""
    too_long: TooLong = "cut"
    """What to do with a conversation longer than `sequence_length`: cut its end off, drop it, or refuse the data."""
