"""The lanes of the suite: what runs while you work, before a commit, in CI and at night.

A lane holds every test of the lanes before it. A test is in the lane that its mark `lane` names. A test without that
mark is in the first lane that its kind allows:

- `quick`: no run, no cluster and no group of ranks.
- `test`: one representative of each law, and one smoke test of each kind of cluster and database.
- `test-all`: every law with all its parameters.
- `nightly`: more seeds, more kills, and all offsets; see `amount`. And cases that repeat parts of others; see `cases`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest


class Lane(Enum):
    """In order of size; the values are the targets of `make`."""

    QUICK = "quick"
    TEST = "test"
    TEST_ALL = "test-all"
    NIGHTLY = "nightly"

    def holds(self, other: Lane) -> bool:
        """Whether the tests of another lane run in this one."""
        lanes = list(Lane)
        return lanes.index(other) <= lanes.index(self)


STARTS_A_CLUSTER = {"slurm", "kubernetes", "ray", "mlflow", "sky", "gpu"}
"""Marks of tests that stay out of `test`."""

STARTS_PROGRAMS = tuple(
    f"tests/{name}/" for name in ("faults", "worker", "cli", "backends", "kubernetes", "deploy", "host", "validation")
)
"""Folders that stay out of `quick`, which does not even import them."""

SAMPLED = (
    "tests/faults/",
    "tests/worker/",
    "tests/validation/test_memory_of_torch.py",
    "tests/backends/test_every_backend.py",
    "tests/cli/test_app.py",
    "tests/cli/test_bad_places.py",
    "tests/cli/test_data.py",
    "tests/cli/test_size.py",
    "tests/jobs/test_store.py",
    "tests/review/test_snippets.py",
    "tests/serve/test_browser.py",
)
"""Files with expensive laws: `test` takes the first value of each parameter."""

_chosen = Lane.TEST_ALL


def amount(*, test: int, test_all: int, nightly: int) -> int:
    """Number of seeds, kills or offsets in the lane that runs; a larger lane has no fewer."""
    assert test <= test_all <= nightly, "a larger lane has no fewer"
    return test if Lane.TEST.holds(_chosen) else test_all if _chosen is Lane.TEST_ALL else nightly


def examples(usual: int) -> int:
    """Number of examples of a law that draws them: ten times as many at night."""
    return amount(test=usual, test_all=usual, nightly=10 * usual)


def cases(values: Iterable[Any], *, at_night: Collection[Any]) -> list[Any]:
    """Values of a parameter; those that run `at_night` alone repeat what the others show together."""
    listed = list(values)
    assert set(at_night) < set(listed), "a case of the night is a case, and not the only one"
    return [pytest.param(value, marks=pytest.mark.lane("nightly")) if value in at_night else value for value in listed]


def lane_of(item: pytest.Item) -> Lane:
    """The smallest lane that runs a test."""
    if mark := item.get_closest_marker("lane"):
        return _named(mark, item.nodeid)
    marks = {mark.name for mark in item.iter_markers()}
    if marks & STARTS_A_CLUSTER or (item.nodeid.startswith(SAMPLED) and not _is_first(item)):
        return Lane.TEST_ALL
    if marks & {"slow", "root"} or item.nodeid.startswith(STARTS_PROGRAMS):
        return Lane.TEST
    return Lane.QUICK


def _named(mark: pytest.Mark, test: str) -> Lane:
    try:
        return Lane(*mark.args)
    except (TypeError, ValueError):
        names = ", ".join(lane.value for lane in Lane)
        raise pytest.UsageError(f"{test}: the mark `lane` takes one name of {names}") from None


def _is_first(item: pytest.Item) -> bool:
    parameters = getattr(item, "callspec", None)
    return parameters is None or not any(parameters.indices.values())


# Hooks of pytest; tests/conftest.py registers this module


def add_option(parser: pytest.Parser) -> None:
    """Add `--lane`."""
    names = [lane.value for lane in Lane]
    parser.addoption("--lane", choices=names, default=Lane.TEST_ALL.value, help="tests that run: see tests/lanes.py")


def choose(config: pytest.Config) -> None:
    """Take the lane of the command line, before a test module asks for an amount."""
    global _chosen  # noqa: PLW0603
    _chosen = Lane(config.getoption("--lane"))
    config.pluginmanager.register(_Selection())


class _Selection:
    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> Any:
        if not collection_path.is_relative_to(config.rootpath):
            return None
        path = f"{collection_path.relative_to(config.rootpath).as_posix()}/"
        return True if _chosen is Lane.QUICK and path.startswith(STARTS_PROGRAMS) else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        lanes = [(item, lane_of(item)) for item in items]
        items[:] = [item for item, lane in lanes if _chosen.holds(lane)]
        config.hook.pytest_deselected(items=[item for item, lane in lanes if not _chosen.holds(lane)])
