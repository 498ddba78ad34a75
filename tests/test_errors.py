"""Errors: one drawn tree, and one way to print them."""

from __future__ import annotations

import inspect
import re

import pytest

from trainworks import errors
from trainworks.errors import (
    DiskFullError,
    EnvironmentProblem,
    LayoutError,
    MissingExtraError,
    RunFailedError,
    RunFileError,
    TrainworksError,
    UsageError,
)

CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, Exception) and kind.__module__ == errors.__name__
}


def drawn_tree() -> dict[str, tuple[int, int | None]]:
    """Name -> depth and exit code, as the module's docstring draws it."""
    rows = re.findall(r"^([│├└─ ]*)(\w+) +(?:exit (\d))?", inspect.getdoc(errors) or "", re.MULTILINE)
    tree = {name: (len(branch) // 4, int(code) if code else None) for branch, name, code in rows}
    return {name: row for name, row in tree.items() if name.endswith(("Error", "Problem"))}


def test_the_drawn_tree_holds_every_class() -> None:
    assert set(drawn_tree()) == set(CLASSES)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_class_stands_in_the_drawn_tree_below_its_parent(name: str) -> None:
    tree = list(drawn_tree().items())
    index = [row[0] for row in tree].index(name)
    depth = tree[index][1][0]
    parent = next((above for above, row in reversed(tree[:index]) if row[0] == depth - 1), "Exception")
    assert CLASSES[name].__base__.__name__ == parent


@pytest.mark.parametrize("name", [name for name, (_, code) in drawn_tree().items() if code is not None])
def test_the_drawn_exit_code_is_the_class_s(name: str) -> None:
    assert CLASSES[name].exit_code == drawn_tree()[name][1]


def test_all_names_are_exported_in_order() -> None:
    assert errors.__all__ == sorted([*CLASSES, "suggest"])


def test_every_class_says_when_it_is_raised() -> None:
    assert all(inspect.getdoc(kind) for kind in CLASSES.values())


def test_an_error_prints_message_place_and_hint(golden) -> None:
    layout = LayoutError("tp (3) does not divide", field="tp")
    examples = [
        TrainworksError("only a message"),
        UsageError("a message", place="run.yaml:3  layout.tp"),
        UsageError("a message", hint="the next step"),
        UsageError("a message", place="run.yaml:3  layout.tp", hint="the next step"),
        RunFileError([UsageError("first", place="run.yaml:1"), layout]),
        MissingExtraError("torch", "train"),
        DiskFullError("no space left"),
        RunFailedError("run demo-1 failed: out of memory", place="logs/rank-0.log"),
    ]
    blocks = [f"# {type(error).__name__}, exit {error.exit_code}\n{error.render()}\n" for error in examples]
    golden("errors.txt", "\n".join(blocks))


def test_a_run_file_error_is_its_first_problem_to_whoever_asks_for_one() -> None:
    error = RunFileError([UsageError("first", hint="do this"), UsageError("second")])
    assert (error.message, error.hint) == ("first", "do this")


def test_an_environment_problem_is_no_usage_error() -> None:
    assert not issubclass(EnvironmentProblem, UsageError)
