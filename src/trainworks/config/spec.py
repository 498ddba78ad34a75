"""Base of the models in files that people read or write."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, StringConstraints

Image = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9./][A-Za-z0-9._@/:+=#-]*$", max_length=4096)]
"""A container image, also with the `#` that Enroot writes after the name of a registry, or its file."""


class Frozen(BaseModel):
    """Base of immutable models that refuse unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


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
