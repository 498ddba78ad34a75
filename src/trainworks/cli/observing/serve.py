"""`trainworks serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainworks.cli.options import RunsOption, option_errors, runs_folder, warn
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say


def serve_command(
    runs: RunsOption = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Port 0 for a free one.")] = "127.0.0.1:8765",
    access: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Tokens with roles, and a proxy that signs users in.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate, as PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Key of the certificate, as PEM.")] = None,
) -> None:
    """Jobs, runs, nodes and costs as live pages and as a REST API (/api/v1/openapi.json).

    Prints an address with a token, which is new at every start; `--access` replaces it, and is required to listen on
    another address than this machine's own. Jobs that are submitted here run as the user who started the server.
    """
    from trainworks.serve.start import serve

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
            announce=lambda address: say(address, err=True),
        )
