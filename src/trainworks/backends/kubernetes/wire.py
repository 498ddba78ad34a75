"""One connection between two pods of a job: lines of JSON, after both have shown that they know the job's token.

The token itself is never sent. What follows is neither encrypted nor signed: it is as safe as the cluster's own network
between pods, over which the ranks talk as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Iterator
from typing import Any, Literal, final

from trainworks.errors import EnvironmentProblem

__all__ = ["Connection", "accept", "connect"]

Side = Literal["asks", "answers"]
Message = dict[str, Any]

_HANDSHAKE_S = 10.0
_LONGEST_LINE = 1 << 20
_SILENT_AFTER_S = 10
"""A peer that is gone without a word is noticed after this time and three unanswered probes."""
_PROBE_S = 3
_PROBES = 3


@final
class Connection:
    """Messages to and from another pod; the end of either side, or of the network, is the end of messages."""

    def __init__(self, peer: socket.socket) -> None:
        self._socket = peer
        self._buffer = b""

    def fileno(self) -> int:
        """For poll: readable means that `receive` has something to do."""
        return self._socket.fileno()

    def send(self, message: Message) -> bool:
        """False if nobody is there any more."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> Message | None:
        """The next message; None when there will be none."""
        while b"\n" not in self._buffer:
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                return None
            if not data or len(self._buffer) > _LONGEST_LINE:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return _message(line)

    def received(self) -> Iterator[Message | None]:
        """The next message, and those that came together with it: nobody would be told of them again."""
        yield self.receive()
        while b"\n" in self._buffer:
            yield self.receive()

    def close(self) -> None:
        """The other side reads an end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _message(line: bytes) -> Message | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def connect(host: str, port: int, token: str) -> Connection:
    """To a pod that listens.

    Raises:
        OSError: nobody listens there yet, or DNS does not know the name yet.
        EnvironmentProblem: whoever listens there does not know the token.
    """
    connection = _prepared(socket.create_connection((host, port), timeout=_HANDSHAKE_S))
    return _trusted(connection, token, "asks", f"{host}:{port}")


def accept(peer: socket.socket, token: str) -> Connection:
    """From a pod that has connected.

    Raises:
        EnvironmentProblem: it does not know the token.
    """
    peer.settimeout(_HANDSHAKE_S)
    return _trusted(_prepared(peer), token, "answers", str(peer.getpeername()[0]))


def _prepared(peer: socket.socket) -> Connection:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_AFTER_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    return Connection(peer)


def _trusted(connection: Connection, token: str, side: Side, peer: str) -> Connection:
    """Both sides prove, by a hash over the other's random number, that they know the token.

    Whoever asks proves it first: a stranger that connects learns nothing.
    """
    other: Side = "answers" if side == "asks" else "asks"
    own = secrets.token_hex(32)
    connection.send({"number": own})
    number = (connection.receive() or {}).get("number")
    if side == "asks":
        connection.send({"proof": _proof(token, side, str(number))})
    proof = (connection.receive() or {}).get("proof")
    if number == own or not hmac.compare_digest(str(proof), _proof(token, other, own)):
        connection.close()
        raise EnvironmentProblem(f"`{peer}` does not belong to this job")
    if side == "answers":
        connection.send({"proof": _proof(token, side, str(number))})
    connection._socket.settimeout(None)
    return connection


def _proof(token: str, side: Side, number: str) -> str:
    return hmac.new(token.encode(), f"{side}:{number}".encode(), hashlib.sha256).hexdigest()
