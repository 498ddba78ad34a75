"""The tokenizer and the chat template that a run trained with, as `transformers` stores them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from trainworks.config.run_file import Workload
from trainworks.files import naming_full_disk, write_atomic
from trainworks.worker.data.card import TOKENIZER
from trainworks.worker.data.tokenization import (
    TEMPLATE,
    TOKENIZER_CONFIG,
    TOKENS_MAP,
    ChatStyle,
    Tokenization,
    special_tokens,
)
from trainworks.worker.data.tokenizer import end_of_text
from trainworks.worker.models.transformer import checkpoint_folder

_SETTINGS = (TOKENIZER_CONFIG, TOKENS_MAP, TEMPLATE, "added_tokens.json")


def write_tokenizer(workload: Workload, tokenization: Tokenization, part: Path) -> None:
    """Write a tokenizer to the folder of an exported model.

    Args:
        workload: of the run.
        tokenization: of its data. The template and the special tokens in it are always its own; other settings are
            those of the checkpoint that the run started from, where the tokenizer is the same.
        part: the folder.

    Raises:
        DiskFullError: no space left.
    """
    origin = checkpoint_folder(workload.model.hf) if workload.model.hf is not None else None
    with naming_full_disk(part):
        if origin is not None and _holds(origin / TOKENIZER, tokenization.tokenizer_json):
            for name in _SETTINGS:
                if (origin / name).is_file():
                    shutil.copyfile(origin / name, part / name)
        if not (part / TOKENIZER_CONFIG).exists():
            loaded = tokenization.tokenizer
            end = end_of_text(loaded)
            special = {} if end is None else {"eos_token": loaded.id_to_token(end)}
            length = workload.data.sequence_length
            PreTrainedTokenizerFast(tokenizer_object=loaded, model_max_length=length, **special).save_pretrained(part)
        write_atomic(part / TOKENIZER, tokenization.tokenizer_json)
        if (style := tokenization.chat) is not None:
            write_atomic(part / TEMPLATE, style.template)
            _name_special_tokens(part / TOKENIZER_CONFIG, style)
            (part / TOKENS_MAP).unlink(missing_ok=True)  # its tokens would count before them


def _holds(file: Path, content: bytes) -> bool:
    return file.is_file() and file.read_bytes() == content


def _name_special_tokens(file: Path, style: ChatStyle) -> None:
    """Let the settings of a tokenizer name the special tokens of a template, so that it renders it as the run did."""
    settings = json.loads(file.read_bytes())
    named = special_tokens(settings)
    settings |= {name: token for name, token in style.tokens.items() if named.get(name, "") != token}
    settings |= {name: None for name in named if name not in style.tokens and name in style.template}
    write_atomic(file, json.dumps(settings, indent=2) + "\n")
