"""Every process group of the worker is created in one module and at one moment: all ranks create it together."""

from __future__ import annotations

import ast

from tests.architecture.source import modules

_HOME = "trainworks.worker.mesh"
_CREATE = {"new_group", "new_subgroups", "new_subgroups_by_enumeration", "init_device_mesh", "split_group"}
_OF_THE_MESH = {"_own_group", "_device_mesh"}


def called_in(tree: ast.AST) -> set[str]:
    """Names of the functions that a tree calls."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in calls}


def test_only_the_mesh_creates_process_groups() -> None:
    found = {name: called_in(tree) & _CREATE for name, tree in modules().items()}
    assert [name for name, calls in found.items() if calls] == [_HOME]


def test_the_mesh_creates_no_group_when_a_rank_first_uses_it() -> None:
    functions = [node for node in ast.walk(modules()[_HOME]) if isinstance(node, ast.FunctionDef)]
    at_use = [each for each in functions if each.decorator_list]
    assert at_use
    assert [each.name for each in at_use if called_in(each) & (_CREATE | _OF_THE_MESH)] == []
