"""The source tree as the contracts see it: its modules, their imports wherever they stand, and their texts."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "trainworks"


@cache
def modules() -> Mapping[str, ast.Module]:
    """Syntax trees by dotted name; a package has its own name."""
    return {_name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}


@cache
def imports(*, strings: bool) -> Mapping[str, frozenset[str]]:
    """Modules that each module imports, at its top or inside a function.

    Args:
        strings: count modules of ours that are named in a string, as for `python -m` and `import_module`.
    """
    return {name: frozenset(_imports_of(name, tree, strings)) for name, tree in modules().items()}


def folder_of(module: str) -> str:
    """`plan` of `trainworks.plan.network.design`."""
    return module.split(".")[1] if "." in module else module


def classes() -> Iterator[tuple[str, str]]:
    """Module and name of every public class."""
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield name, node.name


def docstrings() -> Iterator[tuple[str, str]]:
    """Place and text of every docstring, those of fields included."""
    for name, tree in modules().items():
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            for part in body if isinstance(body, list) else []:
                value = part.value if isinstance(part, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield f"{name}:{part.lineno}", value.value.strip()


def texts() -> Iterator[tuple[str, str]]:
    """Place and text of every string of more than one word: docstrings, messages, help."""
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield f"{name}:{node.lineno}", node.value


def longest_chain(graph: Mapping[str, frozenset[str]]) -> list[str]:
    """Modules on the longest way down the imports; the graph has no cycle."""

    @cache
    def down(module: str) -> tuple[str, ...]:
        below = max((down(other) for other in graph[module]), key=len, default=())
        return (module, *below)

    return list(max((down(module) for module in graph), key=len))


def cycle(graph: Mapping[str, frozenset[str]]) -> list[str]:
    """Modules of one import cycle; empty if there is none."""
    finished: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module in finished:
            return []
        path.append(module)
        for other in sorted(graph[module]):
            if ring := visit(other):
                return ring
        finished.add(path.pop())
        return []

    return next((ring for module in graph if (ring := visit(module))), [])


def _name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports_of(name: str, tree: ast.Module, strings: bool) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            candidates = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
            targets = [next((one for one in (full, node.module) if one in modules()), "") for full in candidates[:-1]]
        elif isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif strings and isinstance(node, ast.Constant) and isinstance(node.value, str):
            targets = [node.value]
        else:
            continue
        yield from (one for one in targets if one in modules() and one != name and "." in one)
