"""`trainworks nodes`."""

from __future__ import annotations

import json

import typer

import trainworks
from trainworks.cli.options import AsJson, OnCluster
from trainworks.cli.output import show_document


def command(cluster: OnCluster = None, as_json: AsJson = False) -> None:
    """Free and used resources of every node, and why a node is drained or down."""
    from trainworks.report.jobs import facts, nodes_document

    nodes = trainworks.nodes(cluster)
    if as_json:
        typer.echo(json.dumps([facts(node) for node in nodes], indent=2))
    else:
        show_document(nodes_document(nodes))
