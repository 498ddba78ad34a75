"""The measured tables of the pages are those that the benchmarks wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_pages_show_what_the_benchmarks_measured() -> None:
    check = [sys.executable, str(ROOT / "benchmarks" / "publish.py"), "--check"]
    outcome = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_one_command_measures_a_machine_and_says_what_it_could_not(tmp_path: Path) -> None:
    """The paths of a machine with accelerators, with tiny models on processors; attention alone needs an accelerator."""
    file = tmp_path / "gpu.json"
    program = [sys.executable, str(ROOT / "benchmarks" / "gpu.py")]
    command = [*program, "--small", "--only", "llama-28m,attention", "--json", str(file)]
    without = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, env=without)
    parts = json.loads(file.read_text())["parts"]
    assert parts["llama-28m"]["measured_s"] > 0 and parts["llama-28m"]["planned_bytes"] > 0
    assert "an accelerator is needed" in parts["attention"]["not_measured"]
    assert outcome.returncode == 1
