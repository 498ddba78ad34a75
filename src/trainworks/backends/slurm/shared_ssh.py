"""Commands over ssh that share one connection, by OpenSSH's multiplexing."""

from __future__ import annotations

import hashlib
import math
import os
import re
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import final

from trainworks.errors import EnvironmentProblem
from trainworks.host import process

PERSIST_S = 60
"""Time that a connection without commands stays open."""
_ASK_S = 10.0
"""Time limit of a question to the local ssh, which asks no other machine."""
_LONGEST_SOCKET = 107 - 17
"""Longest path: ssh first binds the socket under a name that is 17 characters longer, see unix(7) and mux.c."""
_PLAIN = re.compile(r"[A-Za-z0-9/._+-]+")
"""Paths that ssh reads as they are, without quotes and `%`."""
_NOT_SET = "0"


@final
class SharedSsh:
    """Makes ssh commands for one destination; the first one opens a connection that the next ones share.

    The connection closes 60 s after its last command, or when the other side is silent for 15 s. If the user's ssh
    configuration has a `ControlPath` for the destination, it alone decides whether commands share a connection. They do
    not share one either if no private folder can hold the socket.

    Args:
        destination: as ssh names it.
        run: runs a command; `host.process.run`.
        env: variables of this shell.
    """

    def __init__(self, destination: str, run: Callable[..., process.Output], env: Mapping[str, str]) -> None:
        self._destination = destination
        self._run = run
        self._env = dict(env)

    def command(self, remote: str, *, connect_s: float, terminal: bool = False) -> list[str]:
        """Argument vector that runs a line of shell there; it never asks for a password.

        Args:
            remote: the line.
            connect_s: longest time until the other side greets; rounded up to seconds.
            terminal: whether the line gets a terminal there.
        """
        batch = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={math.ceil(connect_s)}"]
        return ["ssh", *(["-t"] if terminal else []), *batch, *self._options, self._destination, remote]

    def is_open(self) -> bool:
        """Whether a process listens on the socket; it does so too while the network is gone."""
        if self._socket is None:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as door:
            try:
                door.connect(str(self._socket))
            except BlockingIOError:
                return True
            except OSError:
                return False
        return True

    def drop(self) -> None:
        """Let the next command open a new connection; commands on the old one continue."""
        if self._socket is None:
            return
        with suppress(EnvironmentProblem, OSError):
            command = ["ssh", *self._options, "-O", "stop", self._destination]
            self._run(command, timeout_s=1.0, env=self._env, stdin=None, keeps_stderr=True)
        self._socket.unlink(missing_ok=True)

    @cached_property
    def _settings(self) -> dict[str, str]:
        """What the user's configuration says of the destination, by lower-case keyword; empty if ssh cannot tell."""
        try:
            said = self._run(["ssh", "-G", self._destination], timeout_s=_ASK_S, env=self._env, stdin=None)
        except (EnvironmentProblem, OSError):
            return {}
        return dict(line.partition(" ")[::2] for line in said.stdout.splitlines()) if said.exit_code == 0 else {}

    @cached_property
    def _socket(self) -> Path | None:
        """Socket of the shared connection; one for each destination and configuration of it."""
        folder = _private_folder(self._env) if self._settings and "controlpath" not in self._settings else None
        if folder is None:
            return None
        identity = f"{self._destination}\0{sorted(self._settings.items())}"
        file = folder / hashlib.sha256(identity.encode()).hexdigest()[:16]
        return file if len(str(file)) <= _LONGEST_SOCKET and _PLAIN.fullmatch(str(file)) else None

    @cached_property
    def _options(self) -> list[str]:
        if self._socket is None:
            return []
        shared = ["ControlMaster=auto", f"ControlPath={self._socket}", f"ControlPersist={PERSIST_S}"]
        if self._settings.get("serveraliveinterval", _NOT_SET) == _NOT_SET:
            shared += ["ServerAliveInterval=5", "ServerAliveCountMax=3"]
        return [word for option in shared for word in ("-o", option)]


def _private_folder(env: Mapping[str, str]) -> Path | None:
    """A folder on this machine that is this user's alone; None if another user took its name."""
    runtime = env.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime and os.access(runtime, os.W_OK) else Path("/tmp")  # noqa: S108, checked below
    folder = base / f"trainworks-ssh-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
    except OSError:
        return None
    is_private = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077
    return folder if is_private else None
