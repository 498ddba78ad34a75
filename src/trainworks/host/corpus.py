"""Which text files a data source names."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from trainworks.errors import UsageError

__all__ = ["STDLIB", "anchored_source", "source_files"]

STDLIB = "python-stdlib"


def anchored_source(source: str) -> str:
    """The source in a form that means the same from every folder."""
    return source if source == STDLIB else str(Path(source).expanduser().absolute())


def source_files(source: str) -> list[Path]:
    """The text files of a source, sorted: `python-stdlib`, a file, a folder (all files below) or a glob.

    Raises:
        UsageError: there are none.
    """
    if source == STDLIB:
        library = Path(sysconfig.get_path("stdlib"))
        return sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
    files = sorted(file for file in _named(Path(anchored_source(source))) if file.is_file())
    if not files:
        raise UsageError(
            f"data source `{source}` names no files", hint="give `python-stdlib`, a file, a folder or a glob"
        )
    return files


def _named(path: Path) -> Iterator[Path]:
    if path.is_dir():
        return path.rglob("*")
    if any(character in str(path) for character in "*?["):
        return Path(path.anchor).glob(str(path.relative_to(path.anchor)))
    return iter([path])
