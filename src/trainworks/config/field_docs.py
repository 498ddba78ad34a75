"""Docstrings of the fields of models, read from their sources."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise

from pydantic import BaseModel


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings below the fields of a model and of its bases, by the names of the fields."""
    docs: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base.__module__ != BaseModel.__module__:
            (written,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(written, ast.ClassDef)
            docs |= dict(_documented(written))
    return docs


def _documented(written: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(written.body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
            yield field.target.id, inspect.cleandoc(text.value.value)
