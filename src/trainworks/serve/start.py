"""Start the server: address, access and the libraries of the extra `server`."""

from __future__ import annotations

import socket
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

from trainworks.api.jobs import current_user
from trainworks.errors import EnvironmentProblem, MissingExtraError
from trainworks.host.listening import ListenAddress, listen_address, open_socket
from trainworks.serve.access import OwnAccess, new_access, read_access
from trainworks.serve.site import Site
from trainworks.serve.team_folder import MemberToken, TeamFolder
from trainworks.system import user_id

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
        EnvironmentProblem: a page for a team would run as root.
    """
    wanted = listen_address(listen, access, hint=_HINT)
    allowed = read_access(access) if access else new_access()
    if allowed.team is not None and user_id() == 0:
        hint = "start it as a user of its own: it needs no rights, each member's server does its work"
        raise EnvironmentProblem("a page for a team does not run as root", hint=hint)
    app = _application()
    listening = open_socket(wanted)  # before the address is announced, so that it can be opened at once
    address = ListenAddress(wanted.host, listening.getsockname()[1])
    hosts = (address.host, socket.gethostname())
    scheme = "https" if certificate else "http"
    url = f"{scheme}://{address}/"
    if allowed.team is not None:
        is_any = address.host in ("0.0.0.0", "::")  # noqa: S104, a comparison
        host = allowed.hosts[0] if allowed.hosts else socket.gethostname() if is_any else address.host
        public = ListenAddress(host, address.port)
        url = f"{(allowed.team.address or f'{scheme}://{public}').rstrip('/')}/"
        TeamFolder(allowed.team.folder, "access").publish(url)
    announce(url if access else f"{url}?token={allowed.tokens['admin']}")
    application = app.create_app(
        Site(runs, submit_to), allowed, port=address.port, is_encrypted=certificate is not None, hosts=hosts
    )
    app.serve_forever(application, listening, certificate=certificate, key=key)


def serve_member(
    runs: Path, folder: Path, *, submit_to: Path | None = None, announce: Callable[[str], None] = print
) -> None:
    """Serve this user's part of the page that a team shares, until a signal ends the process.

    It listens on a socket in `folder`, where the shared page passes on what arrives with this user's token. The token
    stays the same at every start; the announced address contains it. `runs` and `submit_to` are those of `serve`.

    Raises:
        ArgumentError: `folder` is missing, or one user could take another's place in it.
        NotOwnerError: another user has taken this user's place in it.
        EnvironmentProblem: the user is root, or has joined already; or this machine does not run Linux.
        MissingExtraError: the libraries of the server are not installed.
    """
    team = TeamFolder(folder.absolute())
    listening = team.listen()
    token = MemberToken.own()
    app = _application()
    address = team.address()
    announce(f"{address}?token={token}" if address else f"the page has not started yet; your token for it: {token}")
    allowed = OwnAccess(tokens={"admin": token.secret}, user=current_user())
    application = app.create_app(Site(runs, submit_to), allowed, port=0, is_encrypted=False)
    app.serve_forever(application, listening, certificate=None, key=None)


def _application() -> ModuleType:
    try:
        return import_module("trainworks.serve.app")
    except ModuleNotFoundError as missing:
        raise MissingExtraError(missing.name or "fastapi", "server") from None
