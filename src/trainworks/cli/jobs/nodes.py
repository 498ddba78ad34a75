"""`trainworks nodes` and `drain`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import AsJson, OnCluster
from trainworks.cli.output import show_facts
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say


def nodes_command(cluster: OnCluster = None, as_json: AsJson = False) -> None:
    """Free and used resources of every node, and why a node is drained or down."""
    from trainworks.report.overview import nodes_document

    nodes = trainworks.nodes(cluster)
    show_facts([asdict(node) for node in nodes], lambda: nodes_document(nodes), as_json=as_json)


def drain_command(
    node: Annotated[
        str,
        typer.Argument(metavar="NODE", help="A name of `trainworks nodes`; NODE:2, or NODE:UUID, is an accelerator."),
    ],
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
