"""The measured tables of the pages are those that the benchmarks wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_pages_show_what_the_benchmarks_measured() -> None:
    check = [sys.executable, str(ROOT / "benchmarks" / "publish.py"), "--check"]
    outcome = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_one_command_measures_a_machine_and_says_what_it_could_not(tmp_path: Path) -> None:
    """The paths of a machine with accelerators, with tiny models on processors; attention needs an accelerator."""
    file = tmp_path / "gpu.json"
    program = [sys.executable, str(ROOT / "benchmarks" / "gpu.py")]
    command = [*program, "--small", "--only", "llama-28m,attention", "--json", str(file)]
    without = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, env=without)
    parts = json.loads(file.read_text())["parts"]
    assert parts["llama-28m"]["measured_s"] > 0 and parts["llama-28m"]["planned_bytes"] > 0
    assert "an accelerator is needed" in parts["attention"]["not_measured"]
    assert outcome.returncode == 1


def test_a_dry_run_lists_every_part_and_a_peer_that_is_missing_is_named(tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "benchmarks" / "gpu.py")]
    of_ranks = [
        subprocess.run([*program, "--dry-run", "--ranks", ranks], capture_output=True, text=True, check=True).stdout
        for ranks in ("1", "8")
    ]
    first = [[line.split()[0] for line in listed.splitlines()][:3] for listed in of_ranks]
    assert first == [["health", "1b", "350m"], ["health", "1b", "1b-shards"]]
    listed = of_ranks[0]
    assert {"1b", "kill", "1b-torchtitan", "attention"} <= {line.split()[0] for line in listed.splitlines()}
    assert "torchtitan's own trainer" in listed
    if find_spec("torchtitan") is None:
        file = tmp_path / "gpu.json"
        command = [*program, "--small", "--only", "1b-torchtitan", "--json", str(file)]
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        reason = json.loads(file.read_text())["parts"]["1b-torchtitan"]["not_measured"]
        assert reason.startswith("`torchtitan` is not installed")
        assert f"NOT MEASURED: {reason}" in outcome.stderr
