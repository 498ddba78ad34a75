"""The script of the Python guide trains, on a smaller model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs trainworks[train]")

from tests.worker.harness import write_corpus

ROOT = Path(__file__).parents[2]
SMALLER = {
    "python-stdlib, sequence_length: 256, vocabulary: 2048": "text, sequence_length: 32, vocabulary: 400",
    "layers: 4, hidden: 256, heads: 8": "layers: 1, hidden: 32, heads: 2",
    "split: 5 %": "split: 50 %",
    "300 steps": "5 steps",
    "100 steps": "5 steps",
}


@pytest.mark.slow
def test_the_script_of_the_guide_plans_submits_follows_and_reports(tmp_path: Path) -> None:
    script, _ = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/python.md").read_text(), re.DOTALL)
    run_file = (ROOT / "examples/stdlib-lm.yaml").read_text()
    write_corpus(tmp_path / "text")
    for text, smaller in SMALLER.items():
        assert text in run_file
        run_file = run_file.replace(text, smaller)
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "stdlib-lm.yaml").write_text(run_file)
    places = {"TRAINWORKS_STORE": f"sqlite:///{tmp_path}/jobs.db", "TRAINWORKS_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | places, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    plan, *steps, end = done.stdout.splitlines()
    assert re.fullmatch(r"[\d.]+ s per step, \d+ s in all", plan)
    assert steps[-1].startswith("5 ")
    assert end.startswith("stdlib-lm-1 SUCCEEDED")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
