"""Names of backends: built in, and from plugins. Listing jobs imports them, so this module imports no configuration."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

BUILT_IN = ("local", "described", "slurm", "kubernetes", "skypilot", "ssh")
"""Values of `cluster.engine` that need no plugin."""
ENTRY_POINTS = f"{__name__.partition('.')[0]}.backends"
"""Entry point group in which an installed distribution registers its backend under a name."""
PUBLISHED = {"ray": "trainworks-ray"}
"""Known plugins: name of the backend, and the distribution that provides it."""


def is_plugin(name: object) -> bool:
    """Whether a plugin, installed or published, provides a backend of this name."""
    return name in PUBLISHED or name in entry_points(group=ENTRY_POINTS).names


def add_blocks(schema: dict[str, Any]) -> None:
    """Add the blocks of known plugins, and `hosts`, to the JSON Schema of a run file's cluster."""
    for name, distribution in PUBLISHED.items():
        text = f"Options of the `{name}` backend, which `{distribution}` provides."
        schema["properties"][name] = {"type": "object", "description": text}
    hosts = {"type": "array", "items": {"type": "string"}, "description": "Short for `ssh: {hosts: [...]}`."}
    schema["properties"]["hosts"] = hosts
