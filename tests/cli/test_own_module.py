"""The examples of `task: module`, as a user runs them."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.faults.launcher import Program
from tests.worker.harness import write_corpus

pytestmark = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("sklearn") is None,
    reason="the examples are trained on tables of scikit-learn: trainworks[train,test]",
)

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """What was measured once, of this machine and of a module."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def program(tmp_path, cache):
    """The program in a folder with the examples; whatever a failed test leaves is killed."""
    program = Program(tmp_path, cache)
    for name in ("tabular", "diffusion"):
        for suffix in ("py", "yaml"):
            shutil.copy(EXAMPLES / f"{name}.{suffix}", tmp_path)
    yield program
    program.kill_all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tabular", "diffusion"])
def test_an_example_of_less_than_40_lines_learns_and_reports(program, name):
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 40
    code, stdout, stderr = program.run("run", f"{name}.yaml")
    assert code == 0, stderr
    losses = [loss for loss, _ in program.curve()]
    assert sum(losses[-20:]) < 0.75 * sum(losses[:20])
    assert "as measured in a few steps of the model itself" in stderr + stdout


@pytest.mark.slow
@pytest.mark.lane("test-all")
def test_an_error_in_the_file_ends_the_plan_with_its_line_and_without_a_traceback(program):
    file = program.folder / "tabular.py"
    file.write_text(file.read_text(encoding="utf-8").replace("self.enter(x)", "self.entre(x)"), encoding="utf-8")
    code, _, stderr = program.run("plan", "tabular.yaml")
    assert code == 2
    assert "AttributeError: 'Regression' object has no attribute 'entre'" in stderr
    assert "--> " in stderr
    assert "tabular.py:17" in stderr
    assert "Traceback" not in stderr


@pytest.mark.slow
@pytest.mark.lane("test-all")
def test_epochs_of_a_module_are_counted_in_its_samples(program):
    code, stdout, stderr = program.run("plan", "tabular.yaml", "--json")
    assert code == 0, stderr
    assert json.loads(stdout)["num_steps"] == 20 * 442 // 32


@pytest.mark.slow
@pytest.mark.lane("test-all")
def test_masked_tokens_are_learned_from_a_run_file(program):
    text = (EXAMPLES / "bert.yaml").read_text(encoding="utf-8")
    assert "source: python-stdlib, " in text
    write_corpus(program.folder / "text")
    text = text.replace("source: python-stdlib, ", "source: text, vocabulary: 400, ")
    (program.folder / "bert.yaml").write_text(text, encoding="utf-8")
    code, _, stderr = program.run("run", "bert.yaml")
    assert code == 0, stderr
    losses = [loss for loss, _ in program.curve()]
    assert losses[-1] < losses[0] - 1


def test_a_file_that_is_not_there_is_refused_with_its_place(program):
    (program.folder / "tabular.py").unlink()
    code, _, stderr = program.run("plan", "tabular.yaml")
    assert code == 2
    assert "error: `tabular.py` is not a file\n  --> tabular.yaml:4  workload.model.module" in stderr
