"""`trainworks describe`."""

from __future__ import annotations

import json
import time

import typer

import trainworks
from trainworks.cli.options import AsJson, JobArgument, warn
from trainworks.cli.output import show_document


def command(job: JobArgument, as_json: AsJson = False) -> None:
    """After a failure it shows the first failing rank, its host and the end of its log."""
    from trainworks.report import jobs as view

    found, attempts = trainworks.describe(job, notify=warn)
    row = found.row
    if as_json:
        typer.echo(json.dumps(view.facts(row) | {"attempts": list(map(view.facts, attempts))}, indent=2))
        return
    price = found.usd_per_accelerator_hour if attempts else None
    failure = found.first_failure() if row.cause and row.state.is_final else []
    show_document(view.detail_document(row, attempts, price=price, failure=failure, now=time.time()))
