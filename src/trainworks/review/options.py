"""Options of a review in pyproject.toml: `[tool.trainworks.review]` with `select`, `ignore` and `exclude`."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainworks.errors import UsageError, suggest

_SECTION = "tool.trainworks.review"


@dataclass(frozen=True, slots=True)
class ReviewOptions:
    """Rules and files that a review takes and leaves out."""

    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    exclude: Sequence[str] = ()
    """Patterns of paths below the folder of pyproject.toml: `third_party/*`."""
    folder: Path = Path()


def find_options(start: Path) -> ReviewOptions:
    """Options of the nearest pyproject.toml in a folder or above it that has the section.

    Raises:
        UsageError: the file is not TOML, or a key or value of the section is not valid.
    """
    for folder in (start.absolute(), *start.absolute().parents):
        path = folder / "pyproject.toml"
        if path.is_file() and (section := _section(path)) is not None:
            return _options(section, path)
    return ReviewOptions()


def _section(path: Path) -> Any:
    try:
        found: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"invalid TOML: {error}", place=str(path)) from None
    for key in _SECTION.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _options(section: Any, path: Path) -> ReviewOptions:
    known = ("select", "ignore", "exclude")
    for key, value in section.items() if isinstance(section, dict) else ():
        place = f"{path}  {_SECTION}.{key}"
        if key not in known:
            hint = suggest(key, known, otherwise=f"known keys: {', '.join(known)}")
            raise UsageError(f"unknown key `{key}`", place=place, hint=hint)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError(f"`{key}` must be a list of texts", place=place, hint=f'write it like `{key} = ["TW2"]`')
    return ReviewOptions(**section, folder=path.parent) if isinstance(section, dict) else ReviewOptions()
