"""Base of the models in files that people read or write."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Base of immutable models that refuse unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Spec(Frozen):
    """Base of models in files that people read or write; the docstring of each field documents it."""

    model_config = ConfigDict(use_attribute_docstrings=True)  # reads the source, which takes time at import
