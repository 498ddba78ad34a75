"""Base of the models in files that people read or write, the error of a value in one, and kinds of text and place."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    WithJsonSchema,
    field_validator,
    model_validator,
)

Image = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9./][A-Za-z0-9._@/:+=#-]*$", max_length=4096)]
"""A container image, also with the `#` that Enroot writes after the name of a registry, or its file."""


class FieldError(ValueError):
    """An invalid value, raised by a pydantic validator and reported with its place by the loader of the file."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


_LONGEST_PATH = 4096
"""Longest path in characters; file systems accept no longer one."""


def _path(text: str) -> str:
    if len(text) > _LONGEST_PATH:
        raise FieldError(
            f"the path has {len(text):,} characters, more than {_LONGEST_PATH:,}", hint="use a shorter path"
        )
    return text


PathText = Annotated[str, AfterValidator(_path)]
"""A path that file systems accept."""
ConfigPath = Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9._/-]*$", max_length=1024)]
"""A path that slurm.conf takes: absolute, without a blank or a comment sign."""

RUN_NAME_HINT = (
    "use up to 63 letters and digits of any script, `.`, `_` and `-`, and begin with a letter or digit, like "
    "`fine-tune-7b` or `训练-7b`"
)
_RUN_NAME = "^[^\\x00-/:-@\\[-`{-\\x7f][^\\x00-,/:-@\\[-^`{-\\x7f]{0,62}$"
"""Pattern for editors: of ASCII letters, digits, `.`, `_` and `-` alone. `run_name` also looks at other characters."""
LONGEST_RUN_NAME, _LARGEST_RUN_NAME = 63, 200
"""Characters and UTF-8 bytes of a name; a file system takes 255 bytes, and `-NUMBER` follows the name."""
_MOST_MARKS = 3
"""Combining marks on one letter."""


def is_run_id(text: str) -> bool:
    """Whether a text may name the folder of a run: letters, digits, `.`, `_` and `-`, a letter or digit first."""
    return text[:1] not in ("", ".", "_", "-") and _odd_character(text) is None and len(text.encode()) <= 255


def _odd_character(text: str) -> str | None:
    """The first character that no run name has: a sign, a blank, a control, an emoji, or one mark too many."""
    marks = 0
    for character in text:
        kind = unicodedata.category(character)
        marks = marks + 1 if kind[0] == "M" else 0
        if not (kind[0] in "LM" or kind == "Nd" or character in "._-") or marks > _MOST_MARKS:
            return character
    return None


def run_name(text: str) -> str:
    """The name in composed form (NFC), so that two ways to encode a letter name one run."""
    name = unicodedata.normalize("NFC", text)
    odd = _odd_character(name)
    if odd is not None and not odd.isascii():
        character = f"U+{ord(odd):04X} {unicodedata.name(odd, '')}".strip()
        shown = "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text[:100])
        raise FieldError(f"invalid run name `{shown}`: {character} is not a letter or digit", hint=RUN_NAME_HINT)
    if not is_run_id(name) or unicodedata.category(name[0])[0] == "M" or len(name) > LONGEST_RUN_NAME:
        raise FieldError(f"invalid run name `{text[:100]}`", hint=RUN_NAME_HINT)
    if len(name.encode()) > _LARGEST_RUN_NAME:
        size = f"{len(name.encode())} bytes in UTF-8, more than {_LARGEST_RUN_NAME}"
        raise FieldError(f"the run name `{name}` has {size}", hint="use a shorter name")
    return name


def name_from(text: str) -> str:
    """A valid run name made of any text; `command` if no character of it can be used.

    >>> name_from("训练 7b.sh"), name_from("!?")
    ('训练-7b-sh', 'command')
    """
    composed = unicodedata.normalize("NFC", text).lstrip("._-")
    name = "".join(one if one.isalpha() or one.isdecimal() else "-" for one in composed).strip("-")[:60]
    return name.encode()[:_LARGEST_RUN_NAME].decode(errors="ignore").strip("-") or "command"


RunName = Annotated[str, AfterValidator(run_name), WithJsonSchema({"type": "string", "pattern": _RUN_NAME})]
"""Name of a run, and of the folder of its record without a number."""


def _run_id(text: str) -> str:
    if not is_run_id(text):
        raise FieldError(f"`{text[:100]}` is not the name of a run's folder")
    return text


RunId = Annotated[str, AfterValidator(_run_id)]
"""Name of the folder of a run."""

_CALLBACK = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"


def _of_module(kind: str, example: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not re.fullmatch(_CALLBACK, text, re.ASCII):
            raise FieldError(f"`{text[:100]}` does not name a {kind}", hint=f"write it like `{example}`")
        return text

    return check


_NAMED = WithJsonSchema({"type": "string", "pattern": _CALLBACK})
CallbackClass = Annotated[str, AfterValidator(_of_module("class", "package.module:Class")), _NAMED]
"""A class as `package.module:Class`."""
MetricFunction = Annotated[str, AfterValidator(_of_module("function", "package.module:function")), _NAMED]
"""A function as `package.module:function`."""


_PYDANTIC = frozenset(dir(BaseModel)) - frozenset(dir(object))


class Frozen(BaseModel):
    """Base of immutable models that refuse unknown keys; completion shows their own names alone."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - _PYDANTIC | type(self).model_fields.keys())


class Spec(Frozen):
    """Base of models in files that people read or write; the docstring of each field documents it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema with the docstrings of the fields; `use_attribute_docstrings` would read all sources at import."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in field_docs(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return schema


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings below the fields of a model and of its bases, by the names of the fields."""
    import ast  # noqa: PLC0415  # for schemas alone, and every process imports this module
    import inspect  # noqa: PLC0415
    import textwrap  # noqa: PLC0415

    docs: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        (written,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(written, ast.ClassDef)
        for field, text in pairwise(written.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                value = getattr(text.value, "value", None)
                docs |= {field.target.id: inspect.cleandoc(value)} if isinstance(value, str) else {}
    return docs


class CheckpointCopy(Spec):
    """A second place of checkpoints. A text is short for `{to: ...}`."""

    to: str
    """A folder, such as that of a file server, or `s3://bucket/prefix` of an S3-compatible store; the run's id is
    added. Keys come from the environment, as for every tool of AWS."""
    keep: Annotated[int, Field(ge=1)] = 2
    """Number of complete copies to keep there, beside that of the best evaluation."""
    endpoint: str | None = None
    """Address of the store; by default `AWS_ENDPOINT_URL`, else AWS."""
    region: str | None = None
    """Region of the bucket; by default that of the environment."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"to": value} if isinstance(value, str) else value

    @field_validator("to")
    @classmethod
    def _is_a_place(cls, to: str) -> str:
        if "://" not in to:
            return to
        url = urlsplit(to)
        if url.scheme != "s3":
            raise FieldError(f"cannot copy checkpoints to `{url.scheme}`", hint="name a folder or s3://bucket/prefix")
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", url.netloc):
            raise FieldError("the address of a bucket is `s3://bucket/prefix`; keys come from the environment")
        return to.rstrip("/")

    @model_validator(mode="after")
    def _check_store(self) -> CheckpointCopy:
        if not self.is_s3 and (self.endpoint or self.region):
            raise FieldError(f"`{self.to}` is a folder: it has neither endpoint nor region")
        if self.endpoint is not None and "@" in self.endpoint:
            raise FieldError("an endpoint holds no keys; they come from the environment")
        return self

    def address(self, run_id: str) -> str:
        """Folder or URL of the copies of a run."""
        return f"{self.to}/{run_id}" if self.is_s3 else str(Path(self.to).expanduser() / run_id)

    @property
    def is_s3(self) -> bool:
        """Whether the place is a store."""
        return self.to.startswith("s3://")
