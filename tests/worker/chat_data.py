"""Conversations, a chat template, and a tokenizer whose tokens can be read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

MARKED_CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{%- if message['role'] == 'assistant' %}"
    "{%- generation %}{{ message['content'] + '<|im_end|>' }}{%- endgeneration %}{{ '\n' }}"
    "{%- else %}{{ message['content'] + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
"""The same text, with marks that end before the line break behind an answer."""


def letters_tokenizer(folder: Path) -> Path:
    """A tokenizer of single bytes, with an end-of-text token and ChatML's two: 259 entries."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def sums(count: int) -> list[dict[str, Any]]:
    """Conversations about sums, of one or two questions."""
    draw = random.Random(1)
    made = []
    for _ in range(count):
        messages = []
        for _ in range(draw.randint(1, 2)):
            left, right = draw.randint(0, 99), draw.randint(0, 9)
            messages += [
                {"role": "user", "content": f"{left} + {right}?"},
                {"role": "assistant", "content": f"It is {left + right}." if right else str(left)},
            ]
        made.append({"messages": messages})
    return made


def write_chats(file: Path, count: int) -> Path:
    """Some of them as JSONL."""
    file.write_text("".join(json.dumps(each) + "\n" for each in sums(count)), encoding="utf-8")
    return file
