"""`trainworks exporter`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainworks.api.observing.listening import EXPORTER_ADDRESS
from trainworks.cli.options import RunsOption, option_errors, runs_folder, warn
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

_LISTEN = str(EXPORTER_ADDRESS)


def command(
    runs: RunsOption = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=f"[default: {_LISTEN}]")] = None,
    textfile: Annotated[
        Path | None, typer.Option(metavar="FILE.prom", help="Write a file for node_exporter instead of listening.")
    ] = None,
    every_s: Annotated[int, typer.Option("--every", min=1, help="With --textfile: seconds between two writes.")] = 30,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics, or write the file once.")] = False,
    collect: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Some of `runs,queue,gpus,fabric,health`. [default: all; with --textfile all but `fabric`]",
        ),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Token that every request must have.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate, as PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Key of the certificate, as PEM.")] = None,
) -> None:
    """Reads records of runs and never asks a worker. A run has metrics while it runs, and for ten minutes after.

    Only this machine can connect, unless `--listen` says otherwise; then `--token-file` must be given.
    """
    from trainworks.api.observing.exporter import COLLECTORS, NodeMetrics, metrics_server, write_metrics

    if textfile and (listen or token_file or tls_cert or tls_key):
        raise UsageError("`--textfile` does not listen", hint="start two, or leave out `--listen` and its options")
    with option_errors():
        usual = COLLECTORS if textfile is None else [name for name in COLLECTORS if name != "fabric"]
        wanted = usual if collect is None else [name.strip() for name in collect.split(",")]
        metrics = NodeMetrics(wanted, runs_folder(runs), notify=warn)
        if textfile is not None:
            with option_errors("--textfile", textfile):
                write_metrics(metrics, textfile, every_s=None if once else every_s)
            return
        if once:
            typer.echo(metrics.text(), nl=False)
            return
        server = metrics_server(metrics, listen or _LISTEN, token_file=token_file, tls_cert=tls_cert, tls_key=tls_key)
    if token_file and not tls_cert:
        warn("the token travels unencrypted: add `--tls-cert`")
    host = (listen or _LISTEN).rpartition(":")[0] or "localhost"
    say(f"metrics at http{'s' if tls_cert else ''}://{host}:{server.port}/metrics", err=True)
    server.serve_forever()
