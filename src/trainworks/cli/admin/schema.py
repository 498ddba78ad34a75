"""`trainworks schema`."""

from __future__ import annotations

import json

import typer


def command() -> None:
    """Editors with JSON Schema support use it to complete and check run files."""
    from trainworks.config.run_file import RunFile

    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | RunFile.model_json_schema()
    typer.echo(json.dumps(schema, indent=2))
