"""Start the server: address, access and the libraries of the extra `server`."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from trainworks.errors import EnvironmentProblem, MissingExtraError, PortInUseError
from trainworks.serve.access import check_address, new_access, read_access
from trainworks.serve.site import Site

_BACKLOG = 1024
"""Connections that wait to be accepted."""


def serve(
    runs: Path,
    *,
    submit_to: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    access: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve pages and the REST API until a signal ends the process.

    Args:
        runs: folder of runs that were started without a queue.
        submit_to: folder for runs that are submitted here, instead of that of their run file.
        host: address to listen on.
        port: 0 chooses one.
        access: file of tokens and roles; None makes one token, which the announced address contains.
        certificate: for TLS, as PEM.
        key: of the certificate.
        announce: receives the address.

    Raises:
        UsageError: other machines could connect without an access file.
        ArgumentError: the access file is invalid.
        MissingExtraError: the libraries of the server are not installed.
        PortInUseError: another program listens there.
    """
    check_address(host, access)
    allowed = read_access(access) if access else new_access()
    try:
        app = import_module("trainworks.serve.app")
    except ModuleNotFoundError as missing:
        raise MissingExtraError(missing.name or "fastapi", "server") from None
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    address = f"http{'s' if certificate else ''}://{shown}:{port}/"
    announce(address if access else f"{address}?token={allowed.tokens['admin']}")
    application = app.create_app(Site(runs, submit_to), allowed, port=port, is_encrypted=certificate is not None)
    app.serve_forever(application, listening, certificate=certificate, key=key)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)  # the address that is announced can be opened at once
    except (OSError, OverflowError) as error:
        listening.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise PortInUseError(f"port {port} is in use", place="--port", hint="choose another, or 0") from None
        raise EnvironmentProblem(f"cannot listen on `{host}`: {error}", place="--host") from None
    return listening
