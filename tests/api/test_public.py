"""The public API: what `import trainworks` offers, and the examples of its functions."""

from __future__ import annotations

import ast
import doctest
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainworks

ROOT = Path(__file__).parents[2]
FUNCTIONS = [name for name in trainworks.__all__ if name != "__version__"]
RUNS = {
    "copy_checkpoint",
    "describe",
    "dev",
    "drain",
    "drill",
    "edit",
    "find_job",
    "find_run",
    "fleet_health",
    "hold",
    "jobs",
    "nodes",
    "prune_checkpoints",
    "release",
    "repair",
    "repair_history",
    "report",
    "restore_checkpoint",
    "resume",
    "retry",
    "run",
    "stop",
    "submit",
    "sweep",
    "track",
    "verify_checkpoints",
}
"""Functions whose examples need a run or the reports of other nodes: the guides have them."""
LAZY = """\
import sys
import trainworks
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "pydantic", "rich", "typer"}))
"""


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No measurement of this machine's user calibrates a plan, and examples name files of the repository."""
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(ROOT)


def test_the_public_names_are_sorted() -> None:
    assert trainworks.__all__ == sorted(trainworks.__all__)


def test_type_checkers_see_the_public_names() -> None:
    stub = ast.parse((ROOT / "src/trainworks/__init__.pyi").read_text())
    names = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names == set(FUNCTIONS)


def test_an_import_loads_no_other_package() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_use_cases_need_neither_typer_nor_torch() -> None:
    code = "import sys, trainworks; trainworks.cost(on='DGX H100'); print({'typer', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_name_stays_a_function_beside_a_folder_of_that_name(name: str) -> None:
    import trainworks.catalog.catalog
    import trainworks.plan.search

    assert callable(getattr(trainworks, name))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = trainworks.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_a_function_runs(name: str) -> None:
    function = getattr(trainworks, name)
    module = sys.modules[function.__module__]
    examples = doctest.DocTestFinder(recurse=False).find(function, name, module=module, globs=dict(vars(module)))
    assert name in RUNS or any(each.examples for each in examples)
    for each in examples:
        assert doctest.DocTestRunner(verbose=False).run(each).failed == 0


@pytest.mark.parametrize(("function", "arguments"), [("cost", {"on": "DGX H100"})], ids=str)
def test_a_result_prints_as_text(function: str, arguments: dict[str, Any]) -> None:
    result = getattr(trainworks, function)(**arguments)
    assert str(result).startswith(result.title)


def test_an_argument_that_is_not_valid_is_named() -> None:
    from trainworks.errors import ArgumentError

    with pytest.raises(ArgumentError) as refused:
        trainworks.goodput(on="64x H100", work="30 fortnights")
    assert (refused.value.argument, refused.value.option) == ("work", "--work")
