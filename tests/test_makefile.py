"""`make` says what it does before each step that takes long."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make: apt-get install make")


@pytest.mark.parametrize("target", ["demo", "quick", "cluster-demo", "docs"])
def test_a_line_names_each_installation_before_it_begins(target: str, tmp_path: Path) -> None:
    command = ["make", "--dry-run", "--no-print-directory", f"VENV={tmp_path}", target]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    before = [line for line, step in pairwise(printed.splitlines()) if "/bin/pip install " in step]
    assert len(before) >= 2
    assert [line for line in before if not re.fullmatch(f"echo 'Installing .* into {tmp_path}, once.*'", line)] == []
