"""`python -m trainworks.backends.ssh.link keep|run ORDERS`: stands here for what runs on hosts, and keeps it alive.

It sends a sign of life over each connection of ssh; what runs there ends when these stop. `keep` holds the shares of a
job on its hosts until the other side of its input closes, which the supervisor of the job and its agents hold open.
`run` stands for one command on one host: it ends as that does and with the process that started it, and passes SIGTERM
on.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from trainworks.backends.ssh.node import BEAT_S, ENDED, PROGRAM, KeepAnswer, Lines, RunOrder
from trainworks.host import process
from trainworks.jobs.environment import FORWARDED_VARIABLES
from trainworks.record.exit_code import LINK_LOST

if TYPE_CHECKING:
    from trainworks.config.engines import Ssh

_CONNECT_S = 10
_CLOSES_S = 15.0
"""Longest wait for the end of what runs on a host, after its connection is closed."""


def ssh_command(options: Ssh, host: str, words: Sequence[str], *flags: str) -> list[str]:
    """Argument vector that runs a command on a host; it never asks for a password.

    ssh joins the words to a text for a shell there, which splits it again into these words.
    """
    user, _, place = host.rpartition("@")
    name, _, port = place.partition(":")
    settings = {
        "BatchMode": "yes",
        "ConnectTimeout": _CONNECT_S,
        "ServerAliveInterval": 5,
        "ServerAliveCountMax": 3,
        "ControlPath": "none",
    }
    return [
        "ssh",
        *(["-F", options.config] if options.config else []),
        *(word for name, value in settings.items() for word in ("-o", f"{name}={value}")),
        *(["-l", user] if user else []),
        *(["-p", port] if port else []),
        *flags,
        "--",
        name,
        *([shlex.join(words)] if words else []),
    ]


def on_host(options: Ssh, host: str, *arguments: str) -> list[str]:
    """Argument vector that runs the program of `node` on a host."""
    words = process.python_module(PROGRAM, *arguments, python=options.python)
    return ssh_command(options, host, words, "-o", "ClearAllForwardings=yes", "-T")


@dataclass(frozen=True, slots=True)
class Order:
    """What to run on a host: the command of ssh, and the first line of its input."""

    host: str
    command: list[str]
    message: str
    """JSON."""


@final
class HostSession:
    """A connection of ssh to a program on a host, which it keeps alive.

    The errors of ssh go to a file, or to stderr of this process.
    """

    def __init__(self, host: str, command: Sequence[str], *, errors: Path | None = None) -> None:
        self.host = host
        self._here, there = socket.socketpair()
        self._here.setblocking(False)
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which ssh inherits: a request to stop is not for it
        with there:
            self.child = process.spawn_on(there, command, errors=errors)
        signal.signal(signal.SIGTERM, before)
        self._lines = Lines(self._here.fileno())

    def fileno(self) -> int:
        """The open file, for `select`."""
        return self._here.fileno()

    def read(self) -> list[str] | None:
        """Lines of the program that have come; None at its end."""
        return self._lines.read()

    def send(self, line: str = "") -> None:
        """Send a line; an empty one is a sign of life. Nothing if the program has ended."""
        with suppress(OSError):
            self._here.send(f"{line}\n".encode())

    def close(self, *, patience_s: float = 0.0) -> None:
        """End the connection; the program gets `patience_s` to end."""
        with suppress(OSError):
            self._here.shutdown(socket.SHUT_WR)
        if self.child.wait(patience_s) is None:
            self.child.signal_group(signal.SIGKILL)
            self.child.wait()
        self._here.close()


def keep(orders: Sequence[Order]) -> int:
    """Hold shares of hosts; says what each host answers, and at the end of a connection that it holds nothing."""
    control, sessions = Lines(0), [HostSession(order.host, order.command) for order in orders]
    for session, order in zip(sessions, orders, strict=True):
        session.send(order.message)
    is_held = True
    while is_held:
        watched: list[Any] = [control, *sessions]
        ready, _, _ = select.select(watched, [], [], BEAT_S)
        is_held = control not in ready or control.read() is not None
        for session in list(sessions):
            heard = session.read() if session in ready else []
            for line in (line for line in heard or [] if line.startswith("{")):  # a shell may greet
                answer = KeepAnswer.model_validate_json(line).model_copy(update={"host": session.host})
                is_held = is_held and _answer(answer)
            if heard is None:
                sessions.remove(session)
                session.close()
                is_held = is_held and _answer(KeepAnswer(host=session.host))
            session.send()
    for session in sessions:
        session.close(patience_s=_CLOSES_S)
    return 0


def _answer(message: KeepAnswer) -> bool:
    """Say something to the other side; False if that has gone."""
    try:
        os.write(1, message.model_dump_json().encode() + b"\n")
    except OSError:
        return False
    return True


def run(order: Order) -> int:
    """Run a command on a host, and end as it does; by `LINK_LOST` if the connection ends first."""
    process.die_with_parent(signal.SIGKILL)
    signals, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno())
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # the wake-up socket reports it
    message = RunOrder.model_validate_json(order.message)
    env = {name: os.environ[name] for name in FORWARDED_VARIABLES if name in os.environ} | message.env
    session = HostSession(order.host, order.command)
    session.send(message.model_copy(update={"env": env}).model_dump_json())
    before, watched = "", list[Any]([session, signals])
    while True:
        ready, _, _ = select.select(watched, [], [], BEAT_S)
        session.send()
        for number in signals.recv(64) if signals in ready else ():
            session.send(str(number))
        if (heard := session.read() if session in ready else []) is None:
            sys.stderr.write(f"lost the connection to {order.host}\n")
            process.end_by_signal(-LINK_LOST)
        for line in heard or []:
            if line.startswith(ENDED):
                sys.stdout.flush()
                return _end_as(session, int(line.removeprefix(ENDED)))
            sys.stdout.write(f"{before}{line}")
            before = "\n"
        sys.stdout.flush()


def _end_as(session: HostSession, code: int) -> int:
    session.close(patience_s=1.0)
    if code < 0:
        process.end_by_signal(-code)
    return code


def main(what: str, text: str) -> int:
    """Keep shares of hosts, or run a command on one; the orders are JSON."""
    orders = [Order(*order) for order in json.loads(text)]
    return keep(orders) if what == "keep" else run(orders[0])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
