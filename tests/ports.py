"""Ports for programs that a test starts."""

from __future__ import annotations

import os
import random
from contextlib import ExitStack, suppress
from functools import cache

from trainworks.errors import PortInUseError
from trainworks.host.network import listen

_FIRST, _LAST = 10_000, 32_000
_MOST_PROCESSES = 8
"""Processes of pytest-xdist with ports of their own."""


def free_port(count: int = 1) -> int:
    """The first of so many free ports in a row.

    The kernel gives none of them to a connection, because a program may listen long after it was told its port. Until
    then no other test is told it: the processes of a test session share no ports, and each comes back to one of its own
    when it has handed out all others.
    """
    ports = _ports()
    while True:
        first = ports.take(count)
        with ExitStack() as held, suppress(PortInUseError):
            for port in range(first, first + count):
                held.enter_context(listen(port, "0.0.0.0"))
            return first


class _Ports:
    """Those of a process, in their order from a random one on: a session that was killed may have left programs.

    The seed is the system's, because a test may seed Python's generator in every process alike.
    """

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._next = random.SystemRandom().randrange(first, last)

    def take(self, count: int) -> int:
        if self._next + count > self._last:
            self._next = self._first
        first, self._next = self._next, self._next + count
        return first


@cache
def _ports() -> _Ports:
    size = (_LAST - _FIRST) // _MOST_PROCESSES
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _MOST_PROCESSES
    return _Ports(_FIRST + number * size, _FIRST + (number + 1) * size)
