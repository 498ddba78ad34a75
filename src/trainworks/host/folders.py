"""Folders for data that outlives a run: XDG folders, or those of the environment."""

from __future__ import annotations

import os
from pathlib import Path

from trainworks.errors import EnvironmentProblem
from trainworks.system import user_id

FINISHED_RUNS = "finished-runs.jsonl"
"""What this user's runs measured, under `data_folder`."""


def cache_folder(*parts: str) -> Path:
    """`$TRAINWORKS_CACHE`, else `$XDG_CACHE_HOME/trainworks`, else `~/.cache/trainworks`; not created."""
    own = os.environ.get("TRAINWORKS_CACHE")
    base = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "trainworks"
    return base.joinpath(*parts)


def data_folder(*parts: str) -> Path:
    """`$TRAINWORKS_DATA`, else `$XDG_DATA_HOME/trainworks`, else `~/.local/share/trainworks`; not created."""
    own = os.environ.get("TRAINWORKS_DATA")
    base = Path(own) if own else Path(os.environ.get("XDG_DATA_HOME") or _home() / ".local/share") / "trainworks"
    return base.joinpath(*parts)


def _home() -> Path:
    """Home folder of this user; EnvironmentProblem if neither `$HOME` nor an account names one."""
    try:
        return Path.home()
    except RuntimeError:
        raise EnvironmentProblem(
            f"cannot find the home folder of uid {user_id()}: the user has no account and `HOME` is not set",
            hint="set HOME, or TRAINWORKS_DATA and TRAINWORKS_CACHE",
        ) from None
