"""Start the server: address, access and the libraries of the extra `server`."""

from __future__ import annotations

import socket
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from trainworks.errors import MissingExtraError
from trainworks.host.listening import ListenAddress, listen_address, open_socket
from trainworks.serve.access import new_access, read_access
from trainworks.serve.site import Site

_HINT = "add `--access FILE`, or stay on 127.0.0.1 and forward the port: ssh -L 8765:127.0.0.1:8765 HOST"


def serve(
    runs: Path,
    *,
    submit_to: Path | None = None,
    listen: str = "127.0.0.1:8765",
    access: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve pages and the REST API until a signal ends the process.

    Runs in the folder `runs` were started without a queue; those that are submitted here go to `submit_to`, instead of
    the folder of their run file. It listens on `HOST:PORT`, where port 0 takes a free one. `access` is a file of tokens
    and roles; without it there is one token, which the announced address contains. The certificate, for TLS, and its
    key are PEM files.

    Raises:
        ArgumentError: other machines could connect without an access file, or it is invalid.
        MissingExtraError: the libraries of the server are not installed.
        PortInUseError: another program listens there.
    """
    wanted = listen_address(listen, access, hint=_HINT)
    allowed = read_access(access) if access else new_access()
    try:
        app = import_module("trainworks.serve.app")
    except ModuleNotFoundError as missing:
        raise MissingExtraError(missing.name or "fastapi", "server") from None
    listening = open_socket(wanted)  # before the address is announced, so that it can be opened at once
    address = ListenAddress(wanted.host, listening.getsockname()[1])
    url = f"http{'s' if certificate else ''}://{address}/"
    announce(url if access else f"{url}?token={allowed.tokens['admin']}")
    application = app.create_app(
        Site(runs, submit_to),
        allowed,
        port=address.port,
        is_encrypted=certificate is not None,
        hosts=(address.host, socket.gethostname()),
    )
    app.serve_forever(application, listening, certificate=certificate, key=key)
