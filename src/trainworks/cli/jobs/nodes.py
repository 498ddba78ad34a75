"""`trainworks nodes`."""

from __future__ import annotations

import dataclasses
import json

import typer
from rich.table import Table

from trainworks.api.jobs import nodes
from trainworks.cli.options import AsJson, OnCluster, wide_console

__all__ = ["command"]


def command(cluster: OnCluster = None, as_json: AsJson = False) -> None:
    """Free and used resources of every node, and why a node is drained or down."""
    rows = nodes(cluster)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(node) for node in rows], indent=2))
        return
    table = Table("node", "state", "cores", "accelerators", "jobs", "why", box=None, padding=(0, 2, 0, 0))
    for node in rows:
        accelerators = f"{node.accelerators_taken} of {node.accelerators} {node.accelerator or ''}".strip()
        table.add_row(
            node.name,
            node.state,
            f"{node.cores_taken:g} of {node.cores:g}",
            accelerators if node.accelerators else "",
            ", ".join(node.jobs),
            node.reason or "",
        )
    wide_console().print(table)
