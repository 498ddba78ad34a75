"""Where a server of this machine listens, and the secrets that admit its readers."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from trainworks.errors import ArgumentError, EnvironmentProblem, PortInUseError
from trainworks.host.network import listening_socket

SHORTEST_TOKEN = 16
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]]*)):(?P<port>\d{1,5})")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a server listens."""

    host: str
    port: int
    """0: a free one."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


EXPORTER_ADDRESS = ListenAddress("127.0.0.1", 9855)
"""Where the exporter listens by default, so where Prometheus on the same machine finds it."""
EXPORTER_PORTS = {"trainworks": EXPORTER_ADDRESS.port, "node": 9100}
"""Scrape job -> port of its exporter on every node."""


def parse_address(text: str) -> ListenAddress:
    """Parse `HOST:PORT`; an empty host means all interfaces.

    Raises:
        ArgumentError: the text is not an address.

    >>> parse_address("[::1]:9855")
    ListenAddress(host='::1', port=9855)
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ArgumentError(f"`{text}` is not HOST:PORT", argument="listen", hint="write it like `127.0.0.1:9855`")
    return ListenAddress(match["v6"] or match["host"] or "::", int(match["port"]))


def open_socket(address: ListenAddress) -> socket.socket:
    """A socket that listens; connections wait until they are accepted.

    Raises:
        PortInUseError: another program listens there.
        EnvironmentProblem: the address is not one of this machine.
    """
    try:
        return listening_socket(address.host, address.port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            hint = f"choose another: `--listen {ListenAddress(address.host, address.port + 1)}`"
            raise PortInUseError(f"port {address.port} is in use", place="--listen", hint=hint) from None
        reason = error.strerror or error
        raise EnvironmentProblem(f"cannot listen on `{address}`: {reason}", place="--listen") from None


def read_secret(file: Path, *, argument: str) -> str:
    """The text of a file that only its owner may read; `argument` of the caller names it, for errors.

    Raises:
        ArgumentError: the file is missing or no text, or other users can read it.
    """
    try:
        mode, text = file.stat().st_mode, file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ArgumentError(f"cannot read `{file}`: {reason}", argument=argument) from None
    if mode & 0o077:
        message = f"other users can read the secrets in `{file}`"
        raise ArgumentError(message, argument=argument, hint=f"chmod 600 {file}")
    return text


def is_token(text: str) -> bool:
    """True for at least 16 printable ASCII characters."""
    return len(text) >= SHORTEST_TOKEN and text.isascii() and text.isprintable()


def listen_address(text: str, secrets: Path | None, *, hint: str) -> ListenAddress:
    """The address `HOST:PORT`, if only those are admitted who should be.

    An empty host means all interfaces, port 0 a free one. The file `secrets` says who may read: None admits all who can
    connect. `hint` is how to give one.

    Raises:
        ArgumentError: the text is not an address, or other machines could connect without a secret.
    """
    address = parse_address(text)
    if not address.is_loopback and secrets is None:
        raise ArgumentError(f"`{text}` admits other machines without a token", argument="listen", hint=hint)
    return address
