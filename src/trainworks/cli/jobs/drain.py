"""`trainworks drain`."""

from __future__ import annotations

from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import OnCluster
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say


def command(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A name that `trainworks nodes` prints.")],
    reason: Annotated[str | None, typer.Option("--reason", help="Shown to users whose jobs wait for the node.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Let jobs start there again.")] = False,
    cluster: OnCluster = None,
) -> None:
    """Running jobs continue; no other job starts."""
    if undo:
        from trainworks.api.nodes import undrain

        undrain(node, cluster=cluster)
        say(f"{node} takes jobs again")
        return
    if not reason:
        raise UsageError("cannot drain a node without a reason", hint='trainworks drain NODE --reason "fan broken"')
    trainworks.drain(node, reason, cluster=cluster)
    say(f"{node} takes no more jobs: {reason}")
