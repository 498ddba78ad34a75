"""`trainworks repair`."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import AsJson, announce, option_errors, refuse_unused
from trainworks.cli.output import show_facts
from trainworks.errors import UsageError


def repair_command(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="A name such as `slurm`, or a run file.")],
    nodes: Annotated[str | None, typer.Option("--nodes", metavar="A,B", help="Check and repair these.")] = None,
    sources: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="FILE", help="JSON of `health`, `bench` or Alertmanager that names nodes."),
    ] = None,
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="Commands and limits of the site.")] = None,
    max_share: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Nodes out for repair at most. [default: 5%, or the policy]")
    ] = None,
    wait: Annotated[
        int | None,
        typer.Option(min=0, metavar="SECONDS", help="Longest wait for jobs and boots; unlimited by default."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    history: Annotated[bool, typer.Option("--history", help="Print every step of every repair.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drains a node, waits for its jobs, resets or reboots it, checks it, and returns it or opens a ticket.

    Without --nodes and --from it takes the nodes that Trainworks or the scheduler drained for a fault. Continues what
    was interrupted. Nodes that others drained are left alone. Exit code 1 if a node is not back.
    """
    from trainworks.report.proving.health import repair_line, repairs_document

    if history:
        refuse_unused("--history", {"--nodes": nodes, "--from": sources, "--yes": yes, "--dry-run": dry_run})
        events = trainworks.repair_history(cluster)
        show_facts([asdict(each) for each in events], lambda: repairs_document(events), as_json=as_json)
        return
    ask = partial(
        trainworks.repair,
        cluster,
        nodes=[name.strip() for name in (nodes or "").split(",") if name.strip()],
        sources=sources or (),
        policy=policy,
        max_share=max_share,
    )
    with option_errors():
        rows = ask(dry_run=True)
        if not dry_run and any(row.step != "left" for row in rows):
            if not yes:
                for row in rows:
                    announce(repair_line(row))
                if not sys.stdin.isatty():
                    raise UsageError("the repair needs a terminal for its confirmation", hint="add `--yes`")
                typer.confirm("repair these nodes?", abort=True)
            rows = ask(wait_s=math.inf if wait is None else wait, on_event=lambda event: announce(repair_line(event)))
    show_facts([asdict(row) for row in rows], lambda: repairs_document(rows), as_json=as_json)
    raise typer.Exit(int(not dry_run and any(row.step != "back" for row in rows)))
