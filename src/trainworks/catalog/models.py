"""Known models: their Hugging Face configs by name and alias."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal

from trainworks.catalog.catalog import explain_term
from trainworks.config.source import read_package_data
from trainworks.config.spec import Frozen
from trainworks.errors import UsageError, suggest


class KnownModel(Frozen):
    """A model of the catalogue."""

    name: str
    config: dict[str, Any]
    """Contents of config.json; `trainworks.plan.shapes.transformer` derives the shape."""
    parameters: int | None = None
    """Exact published total; None if only a rounded one is published."""
    aliases: tuple[str, ...] = ()
    source: str
    date: str
    """Date of the row."""
    confidence: Literal["high", "medium"] = "high"


def preset_names() -> tuple[str, ...]:
    """Names of all models, in the order of the catalogue."""
    return tuple(_models())


def preset(name: str) -> dict[str, Any]:
    """The config of a model, as in its config.json.

    Raises:
        UsageError: the model is unknown; the hint names the nearest ones.
    """
    return dict(known_model(name).config)


def known_model(name: str) -> KnownModel:
    """Find a model by its name or an alias, without regard to case, blanks, `-` and `_`.

    Raises:
        UsageError: the model is unknown; the hint names the nearest ones.
    """
    models = _models()
    exact = _names_by_key().get(_key(_WORD.findall(name.lower())))
    if name in models or exact is not None:
        return models[name if name in models else str(exact)]
    meant = find_preset(name)
    if meant is None and (explained := explain_term(name)) is not None:
        raise explained
    hint = suggest(meant or name.lower(), models, count=3, cutoff=0.5, otherwise=_OWN)
    raise UsageError(f"unknown model `{name}`", hint=hint)


def find_preset(text: str) -> str | None:
    """Find the model that a text names; None if it is not certain.

    Case, spaces, dashes and underscores do not matter, and the text may have other words; the longest name wins. A size
    that is not part of a known name, as in `GPT2 3B`, or a word as in `Phi-4-multimodal`, makes it another model.

    >>> find_preset("llama3_70b cut to 12 layers")
    'llama3-70b'
    >>> find_preset("GPT OSS 120B")
    'gpt-oss-120b'
    >>> find_preset("GPT-181B (candidates)") is None
    True
    """
    words = _WORD.findall(text.lower())
    names = _names_by_key()
    for start in range(len(words)):
        for end in range(len(words), start, -1):
            name = names.get(_key(words[start:end]))
            if name is not None:
                last, after = words[end - 1], words[end : end + 1]
                is_another_size = after and not _SIZE.fullmatch(last) and _SIZE.fullmatch(after[0])
                return None if is_another_size or _OTHERS.intersection(after) else name
    return None


_OWN = "give its dimensions (`layers`, `hidden`, `heads`), or its checkpoint with `hf`"
_WORD = re.compile(r"[a-z0-9]+(?:\.[0-9]+[a-z0-9]*)*")
_HUB_ID = re.compile(r"huggingface\.co/(.+)/blob")
_OTHERS = frozenset(("distill", "embed", "flash", "moe", "multimodal", "vision", "vl"))
_SIZE = re.compile(r"\d+(\.\d+)?[bmt]")


def _key(words: list[str]) -> str:
    """Join words and separate numbers: `llama3 70b` and `llama-3-70b` are equal, `gpt18.4b` is different."""
    pieces = re.findall(r"[a-z]+|[0-9.]+", " ".join(words))
    return re.sub(r"(?<=[a-z]) | (?=[a-z])", "", " ".join(pieces))


@cache
def _names_by_key() -> dict[str, str]:
    """Preset by the key of its name, of each alias and of its id on the hub."""
    names: dict[str, str] = {}
    for model in _models().values():
        for name in (model.name, *model.aliases, *_HUB_ID.findall(model.source)):
            key = _key(_WORD.findall(name.lower()))
            if names.setdefault(key, model.name) != model.name:
                raise ValueError(f"`{name}` names both `{names[key]}` and `{model.name}`")
    return names


@cache
def _models() -> dict[str, KnownModel]:
    content = read_package_data(__package__, "models")
    return {name: KnownModel(name=name, date=str(content["date"]), **row) for name, row in content["models"].items()}
