"""Channels of JSON messages between the nodes of one job, which prove to each other that they know its token.

The token itself is never sent. Messages are neither encrypted nor signed: they are as safe as the cluster network, over
which the ranks communicate as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import secrets
import socket
import struct
from typing import Any, Literal, final

from trainworks.errors import EnvironmentProblem
from trainworks.host.clock import Clock

_LOG = logging.getLogger(__name__)

Message = dict[str, Any]
_Side = Literal["asks", "answers"]

_HANDSHAKE_S = 10.0
_RETRY_S = 0.5
_LARGEST_MESSAGE = 1 << 20
_LENGTH = struct.Struct("!I")
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 3, socket.TCP_KEEPCNT: 3}
"""A peer that disappears is noticed after 10 s of silence and three unanswered probes."""


@final
class Channel:
    """Sends and receives JSON objects, each with its length in front, so that nothing is read ahead of `poll`."""

    def __init__(self, peer: socket.socket) -> None:
        self._socket = peer
        peer.settimeout(_HANDSHAKE_S)

    def fileno(self) -> int:
        """File descriptor for `poll` and `select`: readable once `receive` has a message, or the end of them."""
        return self._socket.fileno()

    def send(self, message: Message) -> bool:
        """Send a message; False if the peer is gone."""
        data = json.dumps(message).encode()
        try:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except OSError:
            return False
        return True

    def receive(self) -> Message | None:
        """Receive the next message; None once the peer or the network is gone."""
        try:
            (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
            message = json.loads(self._read(length)) if length <= _LARGEST_MESSAGE else None
        except (OSError, ValueError, RecursionError):  # also from a stranger before the handshake
            return None
        return message if isinstance(message, dict) else None

    def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            if not (chunk := self._socket.recv(length - len(data))):
                raise ConnectionError("the peer has closed the connection")
            data += chunk
        return data

    def authenticate(self, token: str, side: _Side) -> bool:
        """Exchange proofs of the token: hashes over the other side's random number.

        The connecting side proves it first, so that a stranger who connects learns nothing.

        Raises:
            OSError: the peer was gone before it sent anything, as a server is that ends now.
        """
        nonce = secrets.token_hex(32)
        self.send({"nonce": nonce})
        if not self._socket.recv(1, socket.MSG_PEEK):
            raise ConnectionError("the peer has closed the connection")
        other_nonce = str((self.receive() or {}).get("nonce"))
        other: _Side = "answers" if side == "asks" else "asks"
        if side == "asks":
            self.send({"proof": _proof(token, side, other_nonce)})
        proof = str((self.receive() or {}).get("proof"))
        if other_nonce == nonce or not hmac.compare_digest(proof.encode(), _proof(token, other, nonce).encode()):
            return False
        if side == "answers":
            self.send({"proof": _proof(token, side, other_nonce)})
        self._socket.settimeout(None)
        return True

    def close(self) -> None:
        """Close the connection; the peer receives the end of messages."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _proof(token: str, side: _Side, nonce: str) -> str:
    return hmac.new(token.encode(), f"{side}:{nonce}".encode(), hashlib.sha256).hexdigest()


def connect(host: str, port: int, token: str) -> Channel:
    """Connect to a node of the job.

    Raises:
        OSError: the node does not listen yet, or DNS does not know its name yet.
        EnvironmentProblem: the peer does not know the token.
    """
    return _authenticated(socket.create_connection((host, port), timeout=_HANDSHAKE_S), token, "asks")


def connect_when_ready(host: str, port: int, token: str, patience_s: float, clock: Clock) -> Channel | None:
    """Connect to a node once it listens; None after `patience_s`.

    Raises:
        EnvironmentProblem: the peer does not know the token.
    """
    deadline = clock.now() + patience_s
    while True:
        try:
            return connect(host, port, token)
        except OSError as error:
            _LOG.debug("%s:%d does not answer: %s", host, port, error)
            if clock.now() > deadline:
                return None
            clock.sleep(_RETRY_S)


def accept(peer: socket.socket, token: str) -> Channel:
    """Accept a node that has connected.

    Raises:
        EnvironmentProblem: the peer does not know the token.
    """
    return _authenticated(peer, token, "answers")


def _authenticated(peer: socket.socket, token: str, side: _Side) -> Channel:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        peer.setsockopt(socket.IPPROTO_TCP, option, value)
    address, channel = peer.getpeername()[0], Channel(peer)
    is_ours = False
    try:
        is_ours = channel.authenticate(token, side)
    finally:
        if not is_ours:
            channel.close()
    if not is_ours:
        raise EnvironmentProblem(f"`{address}` does not belong to this job")
    return channel
