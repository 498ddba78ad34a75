"""One module creates process groups and stores, one takes ports, and one makes temporary folders."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.source import modules

_HOME = "trainworks.worker.mesh"
_SUBGROUPS = {"new_group", "new_subgroups", "new_subgroups_by_enumeration", "init_device_mesh", "split_group"}
_CREATE = _SUBGROUPS | {"init_process_group", "TCPStore", "FileStore", "HashStore"}
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


@pytest.mark.parametrize(
    ("calls", "home", "alone"),
    [
        (
            {"bind"},
            "trainworks.host.network",
            {"trainworks.backends.local.dispatcher_process", "trainworks.serve.team_folder"},
        ),
        ({"mkdtemp", "TemporaryDirectory"}, "trainworks.files", {"trainworks.backends.slurm.login_side"}),
    ],
    ids=["ports", "temporary folders"],
)
def test_one_module_takes_ports_and_one_makes_temporary_folders(calls: set[str], home: str, alone: set[str]) -> None:
    """`alone`: sockets at a path; a program that imports the standard library alone."""
    found = {name for name, tree in modules().items() if called_in(tree) & calls}
    assert found - alone == {home}
