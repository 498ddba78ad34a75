"""Base of the models in files that people read or write."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler


class Frozen(BaseModel):
    """Base of immutable models that refuse unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Spec(Frozen):
    """Base of models in files that people read or write; the docstring of each field documents it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema with the docstrings of the fields; `use_attribute_docstrings` would read all sources at import."""
        from trainworks.config.field_docs import field_docs  # noqa: PLC0415  # for schemas alone

        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in field_docs(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return schema
