"""`python -m trainworks.backends.kubernetes.call SECRETS ADDRESS MODULE ARGUMENT...`: an agent in another pod.

It passes SIGTERM on, and ends as the agent does. A connection that is lost reads as a node that is lost.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from pathlib import Path

from trainworks.backends.kubernetes.pod import TOKEN
from trainworks.backends.kubernetes.render import PORT
from trainworks.backends.kubernetes.wire import Connection, connect
from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.record.exit_code import ExitCode

__all__ = ["OF_THE_AGENT", "main", "patiently"]

OF_THE_AGENT = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "OMP_NUM_THREADS", "TRAINWORKS_RUN_DIR")
"""Variables that travel with a command; all others are the other pod's own."""
_PATIENCE_S = 15.0
"""A pod that has answered before, and does not, is lost."""
_AGAIN_AFTER_S = 0.5


def patiently(host: str, token: str, patience_s: float, clock: Clock) -> Connection | None:
    """A connection to a pod, once it listens; None if it does not in this time.

    Raises:
        EnvironmentProblem: somebody else listens there.
    """
    deadline = clock.now() + patience_s
    while True:
        try:
            return connect(host, PORT, token)
        except OSError:
            if clock.now() > deadline:
                return None
            clock.sleep(_AGAIN_AFTER_S)


def main(secrets: str, address: str, *command: str) -> int:
    """Start the agent, wait for its end."""
    token = (Path(secrets) / TOKEN).read_text(encoding="utf-8")
    heard, hear = socket.socketpair()
    hear.setblocking(False)
    signal.set_wakeup_fd(hear.fileno())
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # the wake-up tells
    try:
        connection = patiently(address, token, _PATIENCE_S, SystemClock())
    except EnvironmentProblem as stranger:
        sys.stderr.write(f"{stranger}\n")
        return ExitCode.ENVIRONMENT
    env = {name: os.environ[name] for name in OF_THE_AGENT if name in os.environ}
    if connection is None or not connection.send({"start": list(command), "env": env}):
        return ExitCode.PEER_LOST
    return _follow(connection, heard)


def _follow(connection: Connection, heard: socket.socket) -> int:
    """Signals there, the end here."""
    while True:
        ready, _, _ = select.select([connection.fileno(), heard.fileno()], [], [])
        if heard.fileno() in ready:
            for number in heard.recv(64):
                connection.send({"signal": number})
        if connection.fileno() in ready and (code := _news(connection)) is not None:
            return code


def _news(connection: Connection) -> int | None:
    """The agent's exit code, if it has ended."""
    for message in connection.received():
        if message is None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # an end by it, while Python exits, would hide the loss
            sys.stderr.write("the connection to this node was lost\n")
            return ExitCode.PEER_LOST
        if message.get("leaving"):
            os.kill(os.getppid(), signal.SIGHUP)  # the supervisor asks all ranks for a clean end, if it has not yet
        if isinstance(code := message.get("exit"), int):
            if code < 0:
                process.end_by_signal(-code)
            return code
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
