"""The floor plan: what the folder list promises and import-linter cannot see."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.architecture.source import ROOT, classes, cycle, folder_of, imports, longest_chain, modules

DEEPEST = 16
"""Only goes down."""
MOST_FILES = 25
MOST_LINES = 426
"""Only goes down; 400 is the goal."""
MOST_LINES_OF_COMMANDS = 165
"""Of a file of commands of one subject. Only goes down."""


@pytest.mark.parametrize("strings", [False, True], ids=["imported", "imported or named in a string"])
def test_no_module_reaches_itself(strings: bool) -> None:
    assert cycle(imports(strings=strings)) == []


def test_no_module_starts_or_imports_one_of_a_higher_folder_by_name() -> None:
    seen = imports(strings=False)
    downward = {
        (folder_of(a), folder_of(b)) for a, others in seen.items() for b in others if folder_of(a) != folder_of(b)
    }
    by_name = ((a, b) for a, others in imports(strings=True).items() for b in others - seen[a])
    assert [(a, b) for a, b in by_name if (folder_of(b), folder_of(a)) in downward] == []


def test_the_longest_chain_of_imports_is_short() -> None:
    chain = longest_chain(imports(strings=False))
    assert len(chain) <= DEEPEST, " -> ".join(chain)


def test_a_folder_holds_few_files() -> None:
    files = Counter(path.parent for path in ROOT.rglob("*.py") if path.name != "__init__.py")
    assert {str(folder.relative_to(ROOT)): count for folder, count in files.items() if count > MOST_FILES} == {}


def test_a_file_is_short() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in ROOT.rglob("*.py")}
    assert {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > MOST_LINES} == {}


def test_a_public_class_has_a_name_of_its_own() -> None:
    names = Counter(name for _, name in classes())
    assert sorted(name for name, count in names.items() if count > 1) == []


def test_a_file_of_commands_is_short() -> None:
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "cli").rglob("*.py")}
    assert {name: count for name, count in lines.items() if count > MOST_LINES_OF_COMMANDS} == {}


@pytest.mark.parametrize("banned", ["eval", "exec"])
def test_no_text_is_executed(banned: str) -> None:
    calls = (
        f"{name}:{node.lineno}"
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == banned
    )
    assert list(calls) == []
