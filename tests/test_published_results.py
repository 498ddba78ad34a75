"""The measured tables of the pages are those that the benchmarks wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_pages_show_what_the_benchmarks_measured() -> None:
    check = [sys.executable, str(ROOT / "benchmarks" / "publish.py"), "--check"]
    outcome = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (outcome.returncode, outcome.stderr) == (0, "")
