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
    from trainworks.api.observing.job_details import first_failure_lines
    from trainworks.report import jobs as view

    found, attempts = trainworks.describe(job, notify=warn)
    row, code = found.row, found.kept_code
    if as_json:
        kept = code.model_dump(mode="json") if code else None
        facts = view.facts(row) | {"code": kept, "attempts": list(map(view.facts, attempts))}
        typer.echo(json.dumps(facts, indent=2))
        return
    price = found.usd_per_accelerator_hour if attempts else None
    failure = first_failure_lines(found) if row.cause and row.state.is_final else []
    show_document(view.detail_document(row, attempts, price=price, code=code, failure=failure, now=time.time()))
