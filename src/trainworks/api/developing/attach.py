"""Commands, shells and ports in a running job."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from trainworks.api.run_handle import Run
from trainworks.backends.local.attached import AttachedBackend
from trainworks.errors import EnvironmentProblem, PortInUseError, UsageError
from trainworks.host import process
from trainworks.host.network import listen
from trainworks.jobs.state import JobState

SHELL = ("/bin/bash", "-i")
_POLL_S = 0.5
_END_S = 2.0
"""Longest wait for a bridge that was asked to end."""


def run_in_job(run: Run, command: Sequence[str], *, node: int = 0) -> int:
    """Run a command beside the ranks of a running job, with their environment; returns its exit code.

    It has the input and output of this process, a terminal if they are one, and ends with the job at the latest.

    Raises:
        UsageError: the run is not running, has no such node, or its backend cannot do this.
        EnvironmentProblem: a program of the backend is not installed here.
    """
    return _attached(_enter(run, command, node=node, terminal=sys.stdin.isatty() and sys.stdout.isatty()))


def forward_port(
    run: Run, port: int, local_port: int | None = None, *, node: int = 0, on_ready: Callable[[int], object]
) -> int:
    """Forward connections to a port of this machine's loopback to a port of a node's loopback, until the run ends.

    `local_port` is the same number when None, and a free one when 0; `on_ready` receives it. It accepts connections
    then, or when the backend's own program says so.

    Returns:
        0 after the end of the run; the exit code of the backend's own program.

    Raises: as `run_in_job`; and an EnvironmentProblem if the local port is in use.
    """
    bridge = _enter(run, ("-m", "trainworks.agent.bridge", str(port)), node=node, terminal=False)
    try:
        door = listen(port if local_port is None else local_port, "127.0.0.1")
    except PortInUseError as taken:
        taken.hint = "choose another one: LOCAL:PORT, or 0:PORT"
        raise
    with door:
        local = door.getsockname()[1]
        job = run.job
        own = job.forward(port, local, node=node) if job is not None else None
        if own is None:
            on_ready(local)
            return _accept(run, door, bridge)
    on_ready(local)
    return _attached(own)


def _enter(run: Run, command: Sequence[str], *, node: int, terminal: bool) -> list[str]:
    job = run.job
    state = run.state if job is None else job.refresh()
    if state is not JobState.RUNNING:
        then = "start it again: trainworks resume" if state.is_final else "wait until it runs: trainworks status"
        raise UsageError(f"run {run.id} is {state}", hint=f"{then} {run.id}")
    if job is not None:
        return job.enter(command, node=node, terminal=terminal)
    return AttachedBackend(run.resolved).enter(run.run_dir, str(run.path), command, node=node, terminal=terminal)


def _attached(command: Sequence[str]) -> int:
    try:
        return process.attach(command)
    except FileNotFoundError:
        raise EnvironmentProblem(f"`{command[0]}` is not installed here") from None


def _accept(run: Run, door: socket.socket, bridge: Sequence[str]) -> int:
    """Start one bridge for each connection, until the run has ended."""
    bridges: list[process.Child] = []
    door.settimeout(_POLL_S)
    try:
        while not run.state.is_final:
            bridges = [one for one in bridges if one.exit_code() is None]
            with suppress(TimeoutError):
                connection, _ = door.accept()
                with connection:
                    connection.setblocking(True)
                    bridges.append(process.spawn_on(connection, bridge))
    except FileNotFoundError:
        raise EnvironmentProblem(f"`{bridge[0]}` is not installed here") from None
    finally:
        for one in bridges:
            one.end(_END_S)
    return 0
