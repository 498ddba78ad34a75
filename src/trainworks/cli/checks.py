"""What several commands refuse before they begin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainworks.errors import UsageError


def check_writable(path: Path | None, option: str) -> None:
    """Refuse a file that cannot be written, before anything is computed.

    Raises:
        UsageError: its folder does not exist, or the path is not a file.
    """
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise UsageError(f"`{path.parent}` is not a folder", place=option)
    if path.exists() and not path.is_file():
        raise UsageError(f"`{path}` is not a file", place=option, hint="name a file to write")


def refuse_unused(option: str, others: Mapping[str, object]) -> None:
    """Refuse the options that a mode of a command would ignore.

    Args:
        option: that selects the mode.
        others: value of each option that the mode does not use; one that is not given is None, False or 0.

    Raises:
        UsageError: one of them is given.
    """
    for name, value in others.items():
        if value:
            raise UsageError(f"`{option}` does not use `{name}`", place=name, hint="leave one of them out")
