"""Addresses of the nodes of a job, listening sockets, on the loopback address by default, and files of the web."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from trainworks.errors import EnvironmentProblem, PortInUseError

LOOPBACK = "127.0.0.1"
_BACKLOG = 2048
"""Connections that wait to be accepted."""


class Machines(Protocol):
    """Nodes of a job, and a way to start processes on them."""

    @property
    def addresses(self) -> Sequence[str]:
        """Addresses of the nodes; the first one is this machine's."""

    def command(self, node: int, command: list[str]) -> list[str]:
        """An argument vector for this machine that runs `command` on a node, and ends as it does."""


def is_loopback(address: str) -> bool:
    """True for an address of the machine itself."""
    return address.startswith("127.") or address in ("localhost", "::1")


def is_known(name: str) -> bool:
    """Whether a host name has an address."""
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


def node_addresses() -> list[str]:
    """Addresses of all nodes of the job that this process belongs to, in order; empty outside of a job."""
    return os.environ.get("SKYPILOT_NODE_IPS", "").split()


def listen(port: int = 0, address: str = LOOPBACK) -> socket.socket:
    """Open a listening socket; port 0 selects a free one. Keeping the socket open reserves the port.

    Raises:
        PortInUseError: another process listens on that port, or it needs privileges.
    """
    try:
        return listening_socket(address, port)
    except OSError as error:
        raise PortInUseError(
            f"cannot listen on {address}:{port}: {error.strerror}",
            hint="set `cluster.rendezvous_port` to a free port, or to 0 for a free one",
        ) from None


def free_ports(address: str, wanted: Sequence[int]) -> list[int]:
    """Ports that are free now, all at once; a wanted port of 0 is any.

    Raises: as `listen`.
    """
    with ExitStack() as listeners:
        return [listeners.enter_context(listen(port, address)).getsockname()[1] for port in wanted]


def listening_socket(address: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        OSError: the port is taken, or the address is not one of this machine.
    """
    server = reserve(address, port)
    try:
        server.listen(_BACKLOG)
    except OSError:
        server.close()
        raise
    return server


def reserve(address: str = LOOPBACK, port: int = 0) -> socket.socket:
    """A socket with a port that no other program gets while it is open; the only place that takes a port.

    It does not listen, so that a program that gets the port and sets SO_REUSEADDR, as servers do, can listen there.

    Raises:
        OSError: the port is taken, or the address is not one of this machine.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


def is_free(port: int) -> bool:
    """Whether a program can listen on a port at every address of this machine."""
    try:
        listening_socket("0.0.0.0", port).close()  # noqa: S104, for a moment
    except OSError:
        return False
    return True


def greeting(address: str, port: int, *, timeout_s: float = 2.0, most_bytes: int = 256) -> bytes:
    """First bytes that a server sends by itself; empty if it does not answer."""
    try:
        with socket.create_connection((address, port), timeout=timeout_s) as connection:
            return connection.recv(most_bytes)
    except OSError:
        return b""


def download(url: str, *, most_bytes: int, within_s: float = 30.0) -> bytes:
    """The content behind an address with `https`, also after redirects, which must be to `https`, too.

    Raises:
        EnvironmentProblem: no answer in time, an answer that is an error, or more bytes than these.
    """
    import http.client  # noqa: PLC0415  # few processes download
    import urllib.request as web  # noqa: PLC0415

    opener = web.OpenerDirector()  # knows no other protocol: no file, no plain http
    handlers = (web.ProxyHandler, web.HTTPSHandler, web.UnknownHandler, web.HTTPRedirectHandler)
    for handler in (*handlers, web.HTTPDefaultErrorHandler, web.HTTPErrorProcessor):
        opener.add_handler(handler())
    try:
        with opener.open(url, timeout=within_s) as reply:
            content: bytes = reply.read(most_bytes + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise EnvironmentProblem(f"cannot download `{url}`: {error}", hint="see whether a browser can") from None
    if len(content) > most_bytes:
        raise EnvironmentProblem(f"`{url}` has more than {most_bytes:,} bytes", hint="name a smaller file")
    return content
