"""Addresses of the nodes of a job, and listening sockets, on the loopback address by default."""

from __future__ import annotations

import os
import socket

from trainworks.errors import PortInUseError

LOOPBACK = "127.0.0.1"


def is_loopback(address: str) -> bool:
    """True for an address of the machine itself."""
    return address.startswith("127.") or address in ("localhost", "::1")


def node_addresses() -> list[str]:
    """Addresses of all nodes of the job that this process belongs to, in order; empty outside of a job."""
    return os.environ.get("SKYPILOT_NODE_IPS", "").split()


def listen(port: int = 0, address: str = LOOPBACK) -> socket.socket:
    """Open a listening socket; port 0 selects a free one. Keeping the socket open reserves the port.

    Raises:
        PortInUseError: another process listens on that port, or it needs privileges.
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
            hint="set `cluster.rendezvous_port` to a free port, or to 0 for a free one",
        ) from None
    return server


def greeting(address: str, port: int, *, timeout_s: float = 2.0, most_bytes: int = 256) -> bytes:
    """First bytes that a server sends by itself; empty if it does not answer."""
    try:
        with socket.create_connection((address, port), timeout=timeout_s) as connection:
            return connection.recv(most_bytes)
    except OSError:
        return b""
