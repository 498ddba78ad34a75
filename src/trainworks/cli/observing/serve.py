"""`trainworks serve`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from trainworks.cli.options import RunsOption, option_errors, runs_folder, warn
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

_ADDRESS = "127.0.0.1:8765"


def serve_command(
    runs: RunsOption = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Port 0 for a free one.")] = _ADDRESS,
    access: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Tokens with roles, and a proxy that signs users in.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate, as PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Key of the certificate, as PEM.")] = None,
    join: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Serve your part of the page that a team shares there.")
    ] = None,
) -> None:
    """Jobs, runs, nodes and costs as live pages and as a REST API (/api/v1/openapi.json).

    Prints an address with a token, which is new at every start; `--access` replaces it, and is required to listen on
    another address than this machine's own. Jobs that are submitted here run as the user who started the server.

    With `--join` it listens in a folder alone, for the page whose access file names this folder: what you do on that
    page runs as you.
    """
    from trainworks.serve.start import serve, serve_member

    announce = partial(say, err=True)
    if join is not None:
        if access or tls_cert or tls_key or listen != _ADDRESS:
            raise UsageError("`--join` listens in its folder alone: leave out `--listen`, `--access` and `--tls-...`")
        with option_errors():
            serve_member(runs_folder(runs), join, submit_to=runs, announce=announce)
        return

    if (tls_cert is None) != (tls_key is None):
        raise UsageError("`--tls-cert` and `--tls-key` belong together")
    if access and not tls_cert and not listen.startswith(("127.", "localhost:", "[::1]:")):
        warn("tokens travel unencrypted: add `--tls-cert` and `--tls-key`, or let a proxy encrypt")
    with option_errors():
        serve(
            runs_folder(runs),
            submit_to=runs,
            listen=listen,
            access=access,
            certificate=tls_cert,
            key=tls_key,
            announce=announce,
        )
