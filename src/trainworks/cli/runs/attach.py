"""`trainworks exec`, `ssh` and `port-forward`: enter a running job."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from trainworks.cli.options import RunsOption, find
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run id, name of a run (its last one) or folder.")]
NodeIndex = Annotated[int, typer.Option("--node", min=0, metavar="N", help="Node of the job, counted from 0.")]


def exec_command(
    run: RunArgument,
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Command, after `--`.")],
    node: NodeIndex = 0,
    runs: RunsOption = None,
) -> None:
    """The command gets the environment, accelerators and folder of the node's first rank, and ends with the job."""
    from trainworks.api.developing.attach import run_in_job

    raise typer.Exit(run_in_job(find(run, runs), words, node=node))


def ssh_command(run: RunArgument, node: NodeIndex = 0, runs: RunsOption = None) -> None:
    """A bash with the environment, accelerators and folder of the node's first rank; it ends with the job.

    It needs no ssh server. For VS Code, see `trainworks dev`.
    """
    from trainworks.api.developing.attach import SHELL, run_in_job

    raise typer.Exit(run_in_job(find(run, runs), SHELL, node=node))


def port_forward_command(
    run: RunArgument,
    ports: Annotated[
        str, typer.Argument(metavar="[LOCAL:]PORT", help="Port on the node; LOCAL is the one here, 0 for a free one.")
    ],
    node: NodeIndex = 0,
    runs: RunsOption = None,
) -> None:
    """Connections to the port of this machine reach a server on the node that listens on loopback, until Ctrl-C."""
    from trainworks.api.developing.attach import forward_port

    local, port = _parse(ports)
    found = find(run, runs)

    def ready(here: int) -> None:
        say(f"http://127.0.0.1:{here} is port {port} of node {node} of {found.id}; Ctrl-C ends this", err=True)

    raise typer.Exit(forward_port(found, port, local, node=node, on_ready=ready))


def _parse(ports: str) -> tuple[int | None, int]:
    match = re.fullmatch(r"(?:(\d{1,5}):)?(\d{1,5})", ports)
    local = int(match[1]) if match is not None and match[1] is not None else None
    port = 0 if match is None else int(match[2])
    if not 0 < port < 1 << 16 or (local is not None and local >= 1 << 16):
        raise UsageError(f"`{ports}` is not a port, nor LOCAL:PORT", hint="for example: 6006, or 8080:6006")
    return local, port
