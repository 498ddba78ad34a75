"""Where the servers of this program listen: on this machine alone, or for other machines that have a secret."""

from __future__ import annotations

from pathlib import Path

from trainworks.errors import ArgumentError
from trainworks.host.listening import (
    EXPORTER_ADDRESS,
    SHORTEST_TOKEN,
    ListenAddress,
    is_token,
    open_socket,
    parse_address,
    read_secret,
)

__all__ = [
    "EXPORTER_ADDRESS",
    "SHORTEST_TOKEN",
    "ListenAddress",
    "is_token",
    "listen_address",
    "open_socket",
    "read_secret",
]


def listen_address(text: str, secrets: Path | None, *, hint: str) -> ListenAddress:
    """The address `HOST:PORT`, if only those are admitted who should be.

    Args:
        text: the address; an empty host means all interfaces, port 0 a free one.
        secrets: file that says who may read; None admits all who can connect.
        hint: how to give such a file.

    Raises:
        ArgumentError: the text is not an address, or other machines could connect without a secret.
    """
    address = parse_address(text)
    if not address.is_loopback and secrets is None:
        raise ArgumentError(f"`{text}` admits other machines without a token", argument="listen", hint=hint)
    return address
