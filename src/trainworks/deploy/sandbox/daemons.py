"""Daemons of a sandbox, tracked by pid files."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.host.clock import Clock

_POLL_S = 0.05


def pid_of(pid_file: Path, program: str) -> int | None:
    """Process named in a pid file, if it still runs that program."""
    with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
        pid = int(pid_file.read_text(encoding="utf-8"))
        if process.state(pid) not in "XZ" and psutil.Process(pid).name() == program:
            return pid
    return None


def start(command: list[str], *, log: Path, env: dict[str, str]) -> None:
    """Start a program that daemonizes itself.

    Raises:
        EnvironmentProblem: the program failed; the message is its last line.
    """
    child = process.spawn(command, log=log, env=env, new_session=True)
    code = child.wait(timeout_s=30)
    if code != 0:
        output = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise EnvironmentProblem(f"`{command[0]}` did not start: {output[-1] if output else code}", hint=f"see {log}")


def end(pid_file: Path, program: str, clock: Clock, *, timeout_s: float = 10) -> None:
    """Terminate the process named in a pid file, and kill it after a timeout."""
    if (pid := pid_of(pid_file, program)) is not None:
        os.kill(pid, signal.SIGTERM)
        deadline = clock.now() + timeout_s
        while pid_of(pid_file, program) == pid and clock.now() < deadline:
            clock.sleep(_POLL_S)
        kill([pid])
    pid_file.unlink(missing_ok=True)


def kill(pids: Iterable[int]) -> None:
    """Kill processes; ignore those that have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], clock: Clock, what: str, *, timeout_s: float, log: Path) -> None:
    """Wait for a daemon.

    Raises:
        EnvironmentProblem: the timeout has passed.
    """
    deadline = clock.now() + timeout_s
    while not condition():
        if clock.now() > deadline:
            raise EnvironmentProblem(f"timed out after {timeout_s:.0f} s waiting for {what}", hint=f"see {log}")
        clock.sleep(_POLL_S)
