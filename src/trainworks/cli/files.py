"""Options that write files beside a result: a stack file, generated files, and files of a format of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainworks.cli.options import option_errors
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from trainworks.api.proposal import Proposed

WriteStack = Annotated[
    Path | None,
    typer.Option("--write-stack", metavar="FILE", help="Write a stack file of the cluster, for `trainworks deploy`."),
]
ToFolder = Annotated[
    Path | None, typer.Option("--to", metavar="FOLDER", help="Write the files to this folder instead of printing them.")
]


def write_proposed_stack(proposal: Proposed, path: Path) -> None:
    """Write the stack file of a proposed cluster, and say on stderr what follows."""
    from trainworks.api.proposal import stack_yaml

    with option_errors():
        write_file(path, stack_yaml(proposal), "--write-stack")
    say(f"note: fill in the marked lines of {path}, then: trainworks deploy check {path}", err=True)


def write_file(path: Path, content: str, option: str) -> None:
    """Write the file that an option names, atomically; errors name the option."""
    from trainworks.files import write_atomic

    with option_errors(option, path):
        write_atomic(path, content)


def print_or_write(files: Mapping[str, str], to: Path | None) -> None:
    """Print the files under their names, or write them to a folder; scripts become executable."""
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
