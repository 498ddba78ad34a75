"""Framework, resources and environment of a command, with the keys of a SkyPilot task file."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_serializer

from trainworks.config.spec import FieldError, Spec

Framework = Literal["torch", "jax", "tensorflow", "mpi", "deepspeed", "slurm"]


class AcceleratorRequest(Spec):
    """Kind and number of accelerators of one node: `A100:8`."""

    name: str
    count: int

    @property
    def kind(self) -> str | None:
        """Name of the accelerator; None for `gpu`, which means any."""
        return None if self.name.lower() == "gpu" else self.name

    def __str__(self) -> str:
        return f"{self.name}:{self.count}"

    @model_serializer
    def _as_text(self) -> str:
        return str(self)


def _requests(value: Any) -> Any:
    """Parse one or several alternatives, as text, mapping or list: `A100:8`, `{A100: 8}`, `[A100:8, V100:8]`."""
    if isinstance(value, dict):
        texts = [str(name) if count is None else f"{name}:{count}" for name, count in value.items()]
    elif isinstance(value, list | tuple):
        texts = [str(item) for item in value]
    else:
        texts = [str(value)]
    return tuple(_request(text) for text in texts)


def _request(text: str) -> AcceleratorRequest:
    name, _, count = text.strip().partition(":")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise FieldError(f"`{text}` does not name an accelerator", hint="write it like `A100:8`")
    if not re.fullmatch(r"[1-9][0-9]*", count or "1"):
        raise FieldError(
            f"`{text}` does not give a whole number of accelerators", hint=f"use whole accelerators: `{name}:1`"
        )
    return AcceleratorRequest(name=name, count=int(count or "1"))


def _at_least(unit: str, example: str) -> BeforeValidator:
    """A validator of `4` and `4+`; with a unit, of `32`, `32+` and `32GB+`."""

    def parse(value: Any) -> Any:
        found = re.fullmatch(rf"(\d+(?:\.\d+)?)(?:\s*{unit})?\+?", str(value).strip())
        if found is None or float(found[1]) <= 0:
            raise FieldError(f"`{value}` is not a number above 0", hint=f"write it like `{example}`")
        return float(found[1])

    return BeforeValidator(parse)


AcceleratorsField = Annotated[
    tuple[AcceleratorRequest, ...],
    BeforeValidator(_requests),
    Field(min_length=1),
    WithJsonSchema({"type": "string", "examples": ["A100:8", "H100"]}),
]
CoresField = Annotated[
    float, _at_least("", "4+"), WithJsonSchema({"type": ["string", "number"], "examples": ["4+", "16"]})
]
MemoryField = Annotated[
    float, _at_least("GB", "32+"), WithJsonSchema({"type": ["string", "number"], "examples": ["32+", "64GB"]})
]


def _environment_value(value: Any) -> Any:
    """Convert a number to text, as SkyPilot does."""
    return str(value) if isinstance(value, int | float) else value


EnvironmentValue = Annotated[
    str | None,
    BeforeValidator(_environment_value),
    WithJsonSchema({"type": ["string", "number", "boolean", "null"], "examples": ["hello"]}),
]
"""Text; null takes the value from the shell that starts the run."""


class Resources(Spec):
    """Resources that every node must have, with SkyPilot's keys; refused if this machine has less."""

    accelerators: AcceleratorsField | None = None
    """Accelerators of a node: `A100:8`, `gpu:8` for any kind, `{A100: 8}`, or a list of alternatives, of which the
    kind of this machine counts."""
    cpus: CoresField | None = None
    """Cores of a node, at least."""
    memory: MemoryField | None = None
    """Memory of a node in GB, at least."""
