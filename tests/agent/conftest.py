"""Supervisors that run inside the test's own process."""

from __future__ import annotations

import psutil
import pytest


@pytest.fixture(autouse=True)
def spare_the_helpers_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor ends every descendant of its process, here pytest's, whose fork server other tests still need."""
    children = psutil.Process.children
    others = set(psutil.Process().children(recursive=True))

    def born_since(process: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
        return [child for child in children(process, recursive) if child not in others]

    monkeypatch.setattr(psutil.Process, "children", born_since)
