"""Ports for programs that a test starts."""

from __future__ import annotations

import random
from contextlib import ExitStack, suppress

from trainworks.errors import PortInUseError
from trainworks.host.network import listen


def free_port(count: int = 1) -> int:
    """The first of so many free ports in a row.

    The kernel gives none of them to a connection, because a program may listen long after it was told its port.
    """
    while True:
        first = random.randrange(10_000, 32_000)
        with ExitStack() as held, suppress(PortInUseError):
            for port in range(first, first + count):
                held.enter_context(listen(port, "0.0.0.0"))
            return first
