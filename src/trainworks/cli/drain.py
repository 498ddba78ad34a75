"""`trainworks drain`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainworks.cli.jobs import OnCluster, backend_on
from trainworks.errors import UsageError
from trainworks.report.printable import say

__all__ = ["command"]


def command(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Node name, as printed by `trainworks nodes`.")],
    reason: Annotated[
        str | None, typer.Option("--reason", help="Reason, shown to users whose jobs wait for the node.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Return the node to service.")] = False,
    cluster: OnCluster = None,
) -> None:
    """Running jobs continue."""
    backend = backend_on(cluster)
    if undo:
        backend.undrain(node)
        say(f"{node} takes jobs again")
        return
    if not reason:
        raise UsageError("nobody will know why the node is drained", hint='trainworks drain NODE --reason "fan broken"')
    backend.drain(node, reason)
    say(f"{node} takes no more jobs: {reason}")
