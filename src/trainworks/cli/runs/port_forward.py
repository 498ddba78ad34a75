"""`trainworks port-forward`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainworks.cli.attaching import NodeIndex, RunArgument
from trainworks.cli.options import RunsOption, find
from trainworks.report.rendering.printable import say


def command(
    run: RunArgument,
    port: Annotated[int, typer.Argument(metavar="PORT", min=1, max=65535, help="Port on the node.")],
    local: Annotated[
        int | None,
        typer.Option("--local", metavar="PORT", min=0, max=65535, help="Port here; 0 for a free one. [default: PORT]"),
    ] = None,
    node: NodeIndex = 0,
    runs: RunsOption = None,
) -> None:
    """Connections to the port of this machine reach a server on the node that listens on loopback, until Ctrl-C."""
    from trainworks.api.developing.attach import forward_port

    found = find(run, runs)

    def ready(here: int) -> None:
        say(f"http://127.0.0.1:{here} is port {port} of node {node} of {found.id}; Ctrl-C ends this", err=True)

    raise typer.Exit(forward_port(found, port, local, node=node, on_ready=ready))
