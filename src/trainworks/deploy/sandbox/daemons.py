"""Daemons of a sandbox: known by their pid files, ended without a trace."""

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

__all__ = ["end", "kill", "pid_of", "start", "wait_until"]

_LOOK_S = 0.05


def pid_of(pid_file: Path, program: str) -> int | None:
    """The process that a pid file names, if it still runs that program."""
    with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
        pid = int(pid_file.read_text(encoding="utf-8"))
        if process.state(pid) not in "XZ" and psutil.Process(pid).name() == program:
            return pid
    return None


def start(command: list[str], *, log: Path, env: dict[str, str]) -> None:
    """Start a program that goes to the background by itself.

    Raises:
        EnvironmentProblem: it ended badly, in its own words.
    """
    child = process.spawn(command, log=log, env=env, new_session=True)
    code = child.wait(timeout_s=30)
    if code != 0:
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise EnvironmentProblem(f"`{command[0]}` did not start: {said[-1] if said else code}", hint=f"see {log}")


def end(pid_file: Path, program: str, clock: Clock, *, timeout_s: float = 10) -> None:
    """End the process that a pid file names, at once if it does not obey."""
    if (pid := pid_of(pid_file, program)) is not None:
        os.kill(pid, signal.SIGTERM)
        deadline = clock.now() + timeout_s
        while pid_of(pid_file, program) == pid and clock.now() < deadline:
            clock.sleep(_LOOK_S)
        kill([pid])
    pid_file.unlink(missing_ok=True)


def kill(pids: Iterable[int]) -> None:
    """End processes at once; those that are gone already are left alone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], clock: Clock, what: str, *, timeout_s: float, log: Path) -> None:
    """Wait for a daemon.

    Raises:
        EnvironmentProblem: it took too long.
    """
    deadline = clock.now() + timeout_s
    while not condition():
        if clock.now() > deadline:
            raise EnvironmentProblem(f"{what} did not happen within {timeout_s:.0f} s", hint=f"see {log}")
        clock.sleep(_LOOK_S)
