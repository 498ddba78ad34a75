"""YAML and JSON as nodes with places. JSON is read as YAML, with its tabs as blanks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_documents(text: str) -> tuple[yaml.Node, ...]:
    """Documents of a file; none if it is not valid, as a template is."""
    try:
        return tuple(node for node in yaml.compose_all(text.replace("\t", " "), Loader=_Loader) if node is not None)
    except (yaml.YAMLError, ValueError):
        return ()


def entries(node: yaml.Node | None) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Key and value nodes of a mapping, by key; empty for anything else."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def get(node: yaml.Node | None, *path: str) -> yaml.Node | None:
    """Value under the keys of a path; None without it."""
    for key in path:
        found = entries(node).get(key)
        if found is None:
            return None
        node = found[1]
    return node


def items(node: yaml.Node | None) -> list[yaml.Node]:
    """Items of a list; empty for anything else."""
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def scalar(node: yaml.Node | None) -> str | None:
    """Text of a scalar; None for anything else."""
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None


def integer(node: yaml.Node | None) -> int | None:
    """A whole number; None for anything else, `auto` among it."""
    text = scalar(node)
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


def is_true(node: yaml.Node | None) -> bool:
    """The scalar says `true`."""
    return (scalar(node) or "").lower() == "true"


def mappings(node: yaml.Node) -> Iterator[yaml.MappingNode]:
    """Every mapping in a document, outermost first; one that aliases repeat comes once."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, yaml.MappingNode):
            yield one
            waiting += [value for _, value in reversed(one.value)]
        elif isinstance(one, yaml.SequenceNode):
            waiting += reversed(one.value)


def place(node: yaml.Node) -> tuple[int, int]:
    """Line and column of a node, from 1."""
    mark = node.start_mark
    return mark.line + 1, mark.column + 1


def indent(lines: Sequence[str], block: yaml.ScalarNode) -> int:
    """Blanks that YAML takes off each line of a `|` block."""
    first = lines[block.start_mark.line + 1] if block.start_mark.line + 1 < len(lines) else ""
    return len(first) - len(first.lstrip())
