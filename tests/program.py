"""The program `trainworks`: as a process, or within that of a test, which imports once what its commands need."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from trainworks.cli import app


def terminal(**env: str) -> dict[str, str]:
    """Variables of a terminal of 80 columns without colour, and those of this program that are given."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("TRAINWORKS_")}
    return others | {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"} | env


def trainworks_process(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Start the program in such a terminal, and wait for its end."""
    command = [sys.executable, "-m", "trainworks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=terminal(), cwd=folder)


def trainworks_program(*arguments: str, folder: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """The same in this process; `tests/cli/test_app.py` shows that both are alike."""
    out, err = StringIO(), StringIO()
    usual, code = gc.get_threshold(), 0
    with pytest.MonkeyPatch.context() as patched, chdir(folder or "."), redirect_stdout(out), redirect_stderr(err):
        for name in os.environ.keys() - terminal(**env).keys():
            patched.delenv(name)
        for name, value in terminal(**env).items():
            patched.setenv(name, value)
        patched.setattr(sys, "argv", ["trainworks", *arguments])
        patched.setattr(app, "_tidy_up_when_asked_to_end", lambda: None)  # handlers of signals would stay
        try:
            app.main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            gc.set_threshold(*usual)
    return subprocess.CompletedProcess(list(arguments), code, out.getvalue(), err.getvalue())
