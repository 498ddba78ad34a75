"""A port that a test was told is not told to another test before the first one's program listens."""

from __future__ import annotations

import random

import pytest

from tests import ports
from tests.ports import free_port


def test_no_port_is_told_twice_whatever_a_test_does_to_the_random_numbers() -> None:
    found = []
    for _ in range(50):
        random.seed(0)
        first = free_port(2)
        found += [first, first + 1]
    assert len(set(found)) == len(found)


def test_processes_of_a_session_share_no_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[set[int]] = []
    for name in ("gw0", "gw1", "gw2"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", name)
        its = ports._ports.__wrapped__()
        found.append({its.take(1) for _ in range(10_000)})
    assert len(set.union(*found)) == sum(map(len, found))
