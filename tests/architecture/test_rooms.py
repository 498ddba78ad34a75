"""What is read together stands together, and joints have types. Only a new capability raises a limit."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from tests.architecture.source import ROOT, folder_of, imports, longest_chain, modules

MOST_FILES = 847
MOST_LINES = 145_400
MOST_FLOORS = 5
"""Of imports inside `api/`."""
MOST_IMPORTED_ONCE = 108
MOST_SMALL = 155
MOST_UNTYPED = 120
_SMALL_LINES = 3


def test_the_source_has_few_files_and_does_not_grow() -> None:
    files = list(ROOT.rglob("*.py"))
    assert len(files) <= MOST_FILES
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= MOST_LINES


def test_use_cases_stand_on_few_floors() -> None:
    inside = {
        name: frozenset(other for other in others if folder_of(other) == "api")
        for name, others in imports(strings=False).items()
        if folder_of(name) == "api"
    }
    chain = longest_chain(inside)
    assert len(chain) <= MOST_FLOORS, " -> ".join(chain)


def test_few_modules_are_imported_by_one_other_alone() -> None:
    importers = Counter(other for others in imports(strings=False).values() for other in others)
    once = [name for name in modules() if importers[name] == 1]
    assert len(once) <= MOST_IMPORTED_ONCE, "\n".join(once)


def test_few_functions_of_three_lines_have_one_caller() -> None:
    small = list(small_functions())
    assert len(small) <= MOST_SMALL, "\n".join(small)


def small_functions() -> Iterator[str]:
    """Private functions of up to three lines that their module names once."""
    for name, tree in modules().items():
        named = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
        )
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or named[node.name] != 1:
                continue
            is_private = node.name.startswith("_") and not node.name.startswith("__")
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            if is_private and body and (node.end_lineno or 0) - body[0].lineno < _SMALL_LINES:
                yield f"{name}:{node.lineno} {node.name}"


def test_few_values_are_dictionaries_of_anything() -> None:
    untyped = {path: path.read_text(encoding="utf-8").count("dict[str, Any]") for path in ROOT.rglob("*.py")}
    assert sum(untyped.values()) <= MOST_UNTYPED, {str(path): count for path, count in untyped.items() if count}
