"""Files that a command makes for an administrator: printed, or written to a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

ToFolder = Annotated[
    Path | None, typer.Option("--to", metavar="FOLDER", help="Write the files to this folder instead of printing them.")
]


def print_or_write(files: Mapping[str, str], to: Path | None) -> None:
    """All files by name; scripts can be executed."""
    if to is None:
        for name, text in files.items():
            typer.echo(f"# --- {name}")
            typer.echo(text, nl=False)
        return
    from trainworks.files import write_atomic

    for name, text in files.items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(to / name, text)
        (to / name).chmod(0o755 if name.endswith(".sh") else 0o644)
        typer.echo(to / name)
