"""Sockets: bound to the loopback address unless told otherwise."""

from __future__ import annotations

import socket

from trainworks.errors import PortInUseError

__all__ = ["LOOPBACK", "is_loopback", "listen"]

LOOPBACK = "127.0.0.1"


def is_loopback(address: str) -> bool:
    """Whether an address leads back to the machine that uses it."""
    return address.startswith("127.") or address in ("localhost", "::1")


def listen(port: int = 0, address: str = LOOPBACK) -> socket.socket:
    """A listening socket; port 0 takes a free one. Whoever holds it owns the port: nobody can race for it.

    Raises:
        PortInUseError: somebody else listens on that port, or it needs privileges.
    """
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((address, port))
        server.listen(2048)
    except OSError as error:
        server.close()
        raise PortInUseError(
            f"cannot listen on {address}:{port}: {error.strerror}",
            hint="set `cluster.rendezvous_port` to a free port, or to 0 for any",
        ) from None
    return server
