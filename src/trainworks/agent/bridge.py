"""`python -m trainworks.agent.bridge PORT`: connect stdin and stdout to a TCP port of this machine's loopback."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress

_CHUNK_BYTES = 1 << 16
_REFUSED = 1


def bridge(port: int, reads_from: int, writes_to: int) -> None:
    """Copy bytes both ways between files and a TCP port of `localhost`, by IPv4 or IPv6, until the server closes its
    side.

    The server gets the bytes of `reads_from`, whose end closes this side; `writes_to` gets the bytes of the server.

    Raises:
        OSError: nothing listens on the port.
    """
    with socket.create_connection(("localhost", port)) as server:
        threading.Thread(target=_send, args=(reads_from, server), daemon=True).start()
        while data := server.recv(_CHUNK_BYTES):
            while data:
                data = data[os.write(writes_to, data) :]


def _send(reads_from: int, server: socket.socket) -> None:
    with suppress(OSError):
        while data := os.read(reads_from, _CHUNK_BYTES):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)


def main(port: str) -> int:
    """Bridge the standard streams of this process."""
    try:
        bridge(int(port), 0, 1)
    except ConnectionRefusedError:
        sys.stderr.write(f"nothing listens on port {port} of {socket.gethostname()}\n")
        return _REFUSED
    except OSError:  # one side is gone
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
