"""The guide from Python as a notebook, run by a real kernel: it stays small, and an error has no frames.

Its run file trains a smaller model, because the cells train two runs on whatever machine tests run on.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.test_docs import ROOT, blocks

pytestmark = pytest.mark.lane("test-all")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

LARGEST_NOTEBOOK = 100_000
TINY = """\
name: stdlib-lm
workload:
  task: causal-lm
  model: {architecture: llama, layers: 1, hidden: 32, heads: 2}
  data: {source: python-stdlib, sequence_length: 32, vocabulary: 512}
  global_batch: 8
  train_for: 40 steps
  eval: {split: 5 %, every: 20 steps, steps: 2}
cluster: {engine: local, processes_per_node: 1}
"""
MORE = (
    "planned",
    "run",
    "report",
    "trainworks.runs()",
    "run.metrics",
    "report.plots['loss']",
    "trainworks.run('examples/stdlib-lm.yaml', settings={'workload.train_for': '10 steps'})",
    "trainworks.plan('examples/plan-llama-2-7b.yaml', on='64x H1000')",
    "%tb Verbose",
    "from IPython.core.completer import provisionalcompleter\n"
    "with provisionalcompleter():\n"
    "    print(sorted(one.text for one in get_ipython().Completer.completions('planned.', 8)))",
)
"""Cells that show what the guide's have made, as the last line of a cell."""


def cells_of_the_guide() -> list[str]:
    """The code of its blocks, without prompts and outputs."""
    found = []
    for _, block in blocks(ROOT / "docs/guides/python.md", "python", "pycon"):
        lines = block.splitlines()
        if lines[0].startswith(">>> "):
            lines = [line[4:] for line in lines if line.startswith((">>> ", "... "))]
        found.append("\n".join(lines))
    return found


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The notebook after its cells have run, in a folder with the examples."""
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "examples").mkdir()
    shutil.copy(ROOT / "examples/plan-llama-2-7b.yaml", folder / "examples")
    (folder / "examples/stdlib-lm.yaml").write_text(TINY)
    cells = [
        {"cell_type": "code", "metadata": {}, "source": source, "outputs": [], "execution_count": None}
        for source in (*cells_of_the_guide(), *MORE)
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (folder / "guide.ipynb").write_text(json.dumps(notebook))
    execute = "import sys, nbclient, nbformat; book = nbformat.read('guide.ipynb', 4)\n"
    execute += "nbclient.NotebookClient(book, allow_errors=True, kernel_name='python3').execute()\n"
    execute += "nbformat.write(book, 'guide.ipynb')"
    environment = {**os.environ, "JUPYTER_PREFER_ENV_PATH": "1", "NO_COLOR": ""}
    subprocess.run([sys.executable, "-c", execute], cwd=folder, check=True, env=environment)
    return {"size": (folder / "guide.ipynb").stat().st_size, **json.loads((folder / "guide.ipynb").read_text())}


def outputs(notebook: dict[str, Any], source: str) -> list[dict[str, Any]]:
    """Outputs of the cell with this source."""
    (cell,) = [cell for cell in notebook["cells"] if "".join(cell["source"]) == source]
    found: list[dict[str, Any]] = cell["outputs"]
    return found


def shown(notebook: dict[str, Any], source: str) -> str:
    """Text that a cell shows."""
    parts = [each.get("text", each.get("data", {}).get("text/plain", "")) for each in outputs(notebook, source)]
    return "".join("".join(part) for part in parts)


def test_the_cells_of_the_guide_run_and_their_notebook_is_small(executed: dict[str, Any]) -> None:
    guide = executed["cells"][: -len(MORE)]
    errors = [each["evalue"] for cell in guide for each in cell["outputs"] if each["output_type"] == "error"]
    assert errors == []
    assert executed["size"] < LARGEST_NOTEBOOK


def test_a_result_shows_text_without_escapes_and_html(executed: dict[str, Any]) -> None:
    for source in ("planned", "report", "trainworks.runs()", "run.metrics"):
        (output,) = outputs(executed, source)
        assert "<table" in "".join(output["data"]["text/html"])
        assert "\x1b" not in "".join(output["data"]["text/plain"])
    (plot,) = outputs(executed, "report.plots['loss']")
    assert "<svg" in "".join(plot["data"]["text/html"])


def test_a_cell_that_runs_keeps_the_last_line_of_its_progress(executed: dict[str, Any]) -> None:
    progress = shown(executed, next(source for source in MORE if source.startswith("trainworks.run(")))
    assert "stdlib-lm-2 SUCCEEDED | step 10/10 | loss " in progress


def test_an_error_shows_its_hint_and_its_frames_on_request(executed: dict[str, Any]) -> None:
    (error,) = outputs(executed, next(source for source in MORE if "H1000" in source))
    assert error["traceback"][0].startswith("line 1: trainworks.plan(")
    assert "hint: write it like" in "\n".join(error["traceback"])
    assert len(error["traceback"]) < 10
    frames = json.dumps(outputs(executed, "%tb Verbose"))
    assert "described_run" in frames or "cluster_argument" in frames


def test_completion_shows_no_name_of_pydantic(executed: dict[str, Any]) -> None:
    completed = shown(executed, MORE[-1])
    assert "'step_time_s'" in completed
    assert "model_" not in completed
