"""Ends of processes: die with a parent, end descendants, wait for a process that is not a child."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from contextlib import suppress

import psutil

from trainworks.host.process_state import is_alive

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_TAKES_S = 5.0
_POLL_S = 0.01


def die_with_parent(number: signal.Signals, parent_pid: int | None = None) -> None:
    """Let the kernel signal this process when its parent ends; at once if the parent is gone.

    Args:
        number: the signal to receive.
        parent_pid: expected parent, to detect one that died before this call.
    """
    _prctl(_PR_SET_PDEATHSIG, int(number))
    if parent_pid is not None and os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def die_with(pid: int) -> None:
    """Kill this process when process `pid` ends, which need not be its parent.

    A thread waits on a pidfd, at no cost.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return

    def wait_and_die() -> None:
        select.select([handle], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait_and_die, name="die-with-agent", daemon=True).start()


def end_by_signal(number: int) -> None:
    """End this process by a signal, so that its parent sees the number."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def kill(pid: int) -> None:
    """Kill a process, if it still exists."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_for_end(pid: int) -> None:
    """Wait until a process ends, which need not be a child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([handle], [], [])
    os.close(handle)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that none escapes `end_descendants`."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def end_descendants(grace_s: float) -> int:
    """Terminate every descendant of this process and kill the rest after `grace_s`; returns the number of kills."""
    descendants = psutil.Process().children(recursive=True)
    for process in descendants:
        _signal_quietly(process, signal.SIGTERM)
    _wait_until_gone(descendants, grace_s)
    stubborn = [process for process in psutil.Process().children(recursive=True) if is_alive(process)]
    for process in stubborn:
        _signal_quietly(process, signal.SIGKILL)
    _wait_until_gone(stubborn, _KILL_TAKES_S)
    return len(stubborn)


def _wait_until_gone(processes: list[psutil.Process], timeout_s: float) -> None:
    """Wait without reaping, so that the exit codes of children stay available."""
    deadline = time.monotonic() + timeout_s
    while any(is_alive(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _signal_quietly(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass
