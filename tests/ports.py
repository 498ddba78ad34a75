"""Ports for programs that a test starts."""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack, suppress

from trainworks.errors import PortInUseError
from trainworks.host.network import listen

_FIRST, _NUMBER = 10_000, 22_000
_WORKERS = 8
"""Processes of pytest-xdist that have ports of their own."""


def free_port(count: int = 1) -> int:
    """The first of so many free ports in a row.

    The kernel gives none of them to a connection, because a program may listen long after it was told its port. Nor
    does a test in another process of pytest-xdist get one of them meanwhile.
    """
    share = _NUMBER // _WORKERS
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    lowest = _FIRST + worker * share
    while True:
        first = lowest + secrets.randbelow(share - count + 1)  # `random` is seeded by some tests
        with ExitStack() as held, suppress(PortInUseError):
            for port in range(first, first + count):
                held.enter_context(listen(port, "0.0.0.0"))
            return first
