"""Contracts of the commands: a file is options, one call and rendering; a use case of the same name does the work."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import trainworks
from trainworks.catalog.rows import KINDS
from trainworks.cli.commands import COMMANDS, command_of
from trainworks.cli.planning import catalog, network
from trainworks.plan.network.topologies import TOPOLOGIES

SOURCES = Path(__file__).parents[2] / "src" / "trainworks"
PLANNING = [
    "accuracy",
    "calibrate",
    "capacity",
    "catalog",
    "cost",
    "goodput",
    "network",
    "plan",
    "score",
    "size",
    "storage",
]
NOT_ARGUMENTS = {
    "as_json",
    "html",
    "pdf",
    "write",
    "write_stack",
    "explain",
    "target",
    "run_file",
    "run_files",
    "draw",
    "cables",
    "bill",
    "save_trace",
    "out",
}
NOT_ARGUMENTS |= {"review"}  # findings are shown beside the plan
RENAMED = {"spot_life": "spot_node_life"}
HEAVY = {"jinja2", "numpy", "psutil", "pydantic", "rich", "sqlalchemy", "yaml"}


@pytest.mark.parametrize("name", [name for name in PLANNING if name != "catalog"])
def test_every_option_is_an_argument_of_the_use_case(name: str) -> None:
    options = set(inspect.signature(command_of(name)).parameters) - NOT_ARGUMENTS
    arguments = set(inspect.signature(getattr(trainworks, name)).parameters)
    assert {RENAMED.get(option, option) if name == "capacity" else option for option in options} <= arguments


@pytest.mark.parametrize("name", PLANNING)
def test_a_use_case_imports_neither_typer_nor_rich(name: str) -> None:
    assert not imports(SOURCES / "api" / f"{'score' if name == 'accuracy' else name}.py") & {"typer", "rich"}


def test_the_help_of_a_command_imports_no_use_case() -> None:
    modules = [command_of(name).__module__ for name in COMMANDS]
    code = f"import sys, {', '.join(modules)}; print(*{HEAVY} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_help_names_every_kind_and_topology() -> None:
    assert catalog.KINDS.split(", ") == list(KINDS)
    assert network.TOPOLOGIES.split(", ") == list(TOPOLOGIES)


def imports(path: Path) -> set[str]:
    """Top-level packages that a file imports, those inside functions too."""
    tree = ast.parse(path.read_text())
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return {name.partition(".")[0] for name in names}
