"""Threads of this process, by the name that Linux has for them."""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path

_SETTLED_S = 60.0


def remaining_threads(named: str, expected: int = 0) -> int:
    """The number of threads whose name contains `named`: as soon as it is `expected`, or after a minute.

    Linux wakes the thread that joins another before it takes that one's entry away, so that an ended thread may still
    be listed, or vanish while the list is read.
    """
    until = time.monotonic() + _SETTLED_S
    while (number := threads_named(named)) != expected and time.monotonic() < until:
        time.sleep(0.01)
    return number


def threads_named(named: str) -> int:
    """The number of threads whose name contains `named` now."""
    number = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            number += named in (task / "comm").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):  # it has ended since
            continue
    return number


if __name__ == "__main__":  # a script with its arguments, and then the number of gloo's threads
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.write(f"{remaining_threads('gloo')}\n")
