"""`--tune N`: the best layouts of the plan train for a few steps each, and the fastest runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.faults.launcher import Program
from tests.worker.harness import run_file_text, write_corpus

pytestmark = [
    pytest.mark.slow,
    pytest.mark.lane("test-all"),
    pytest.mark.skipif(find_spec("torch") is None, reason="layouts are trained: trainworks[train]"),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was measured of this machine once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def program(tmp_path: Path, cache: Path) -> Iterator[Program]:
    """The program in a folder with the run file of a tiny model; whatever a failed test leaves is killed."""
    program = Program(tmp_path, cache)
    (tmp_path / "tiny.yaml").write_text(run_file_text(write_corpus(tmp_path / "corpus")), encoding="utf-8")
    yield program
    program.kill_all()


def test_the_fastest_of_the_tried_layouts_is_planned(program: Program) -> None:
    code, stdout, stderr = program.run("plan", "tiny.yaml", "--nproc", "2", "--tune", "3", "--json")
    assert code == 0, stderr
    plan = json.loads(stdout)
    tried = [one for one in plan["compared"] if one["measured_s"]]
    fastest = min(tried, key=lambda one: one["measured_s"])
    assert tried == plan["compared"][:3]
    assert {**plan["layout"], "bucket_mib": 25} == fastest["layout"]


def test_a_dry_run_shows_the_layouts_that_were_compared(program: Program) -> None:
    code, _, stderr = program.run("run", "tiny.yaml", "--nproc", "2", "--dry-run")
    assert code == 0, stderr
    table = stderr.partition("layouts\n")[2].splitlines()
    assert table[0].split() == ["layout", "step", "memory"]
    assert len([line for line in table if "micro-batch" in line]) > 3


@pytest.mark.parametrize("cluster", [{"engine": "slurm", "nodes": 2}, {"engine": "kubernetes", "nodes": 2}])
def test_layouts_are_tuned_on_this_machine_alone(program: Program, cluster: dict[str, object]) -> None:
    text = run_file_text(program.folder / "corpus", cluster=cluster)
    (program.folder / "tiny.yaml").write_text(text, encoding="utf-8")
    code, _, stderr = program.run("run", "tiny.yaml", "--tune", "2", "--dry-run")
    assert code == 2
    assert "error: `--tune` trains layouts of a `causal-lm` on this machine" in stderr
