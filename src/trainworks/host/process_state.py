"""Identity and state of processes that need not be children, from /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil


def identity(pid: int | None = None) -> tuple[int, float]:
    """Process id and start in seconds since boot; the pair is unique, while ids are reused. This process by default.

    Setting the clock does not change this time, unlike the creation time of psutil.
    """
    pid = os.getpid() if pid is None else pid
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    ticks = int(stat.rpartition(")")[2].split()[19])
    return pid, ticks / os.sysconf("SC_CLK_TCK")


def owner(pid: int) -> int | None:
    """User id of a process; None if it is gone."""
    try:
        return int(psutil.Process(pid).uids().real)
    except psutil.NoSuchProcess:
        return None


def state(pid: int) -> str:
    """Kernel state of a process: R running, S sleeping, D uninterruptible, T stopped, Z zombie; X if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "X"
    return stat.rpartition(")")[2].split()[0]


def is_running(pid: int, started_at: float) -> bool:
    """True if the process with this start still runs and is not a zombie."""
    try:
        return abs(identity(pid)[1] - started_at) < 0.1 and is_alive(psutil.Process(pid))
    except (OSError, psutil.NoSuchProcess):
        return False


def is_alive(process: psutil.Process) -> bool:
    """True if a process runs and is not a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def processes_with(variables: Mapping[str, str]) -> list[psutil.Process]:
    """All other processes that were started with these environment variables."""
    found = (one for one in psutil.process_iter() if one.pid != os.getpid())
    return [one for one in found if is_alive(one) and _has(one, variables)]


def variable_of(processes: Iterable[psutil.Process], name: str) -> set[str]:
    """Values of an environment variable in these processes; unreadable ones are skipped."""
    found = set()
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            found.add(one.environ().get(name))
    return {value for value in found if value is not None}


def _has(one: psutil.Process, variables: Mapping[str, str]) -> bool:
    try:
        return variables.items() <= one.environ().items()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
