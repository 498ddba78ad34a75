"""Use of this process's cores by other programs, which disturbs what is measured meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from trainworks.host.processor import own_cores

STAT = Path("/proc/stat")


def _own_s() -> float:
    """Processor time of this process and of the children that it has waited for."""
    used = os.times()
    return time.process_time() + used.children_user + used.children_system


class OtherLoad:
    """Watches the cores that this process may use, from its creation on.

    `own_s` returns the processor time so far that does not count as that of other programs; `stat` has the kernel's
    statistics, see proc(5).
    """

    def __init__(self, stat: Path = STAT, own_s: Callable[[], float] = _own_s) -> None:
        self._stat = stat
        self._own_s = own_s
        self._cores = own_cores()
        self._started = (time.monotonic(), self._busy_s(), own_s())

    def times(self) -> tuple[float, float] | None:
        """Seconds of these cores that other programs used, and all seconds; None where the kernel does not say."""
        then, busy_s, own_s = self._started
        now_busy_s = self._busy_s()
        if busy_s is None or now_busy_s is None:
            return None
        cores_s = len(self._cores) * (time.monotonic() - then)
        return min(cores_s, max(0.0, now_busy_s - busy_s - (self._own_s() - own_s))), cores_s

    def share(self) -> float | None:
        """Share of the cores' time that other programs used, 0 to 1; None where the kernel does not say."""
        times = self.times()
        return None if times is None else times[0] / times[1]

    def _busy_s(self) -> float | None:
        """Seconds for which these cores were not idle, since boot."""
        try:
            lines = self._stat.read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        names = {f"cpu{core}" for core in self._cores}
        fields = [line.split() for line in lines]
        rows = [list(map(int, values[:8])) for name, *values in fields if name in names]
        if len(rows) < len(names):
            return None
        return sum(sum(row) - row[3] - row[4] for row in rows) / os.sysconf("SC_CLK_TCK")  # less idle and iowait
