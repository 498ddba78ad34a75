"""Options of `trainworks deploy inventory`, and what the steps of `trainworks deploy` print."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trainworks.cli.options import option_errors
from trainworks.cli.output import show
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from trainworks.deploy.playbook import PlaybookRun, TaskResult
    from trainworks.deploy.rollout import BatchStep
    from trainworks.deploy.verification import ClusterVerification

Redfish = Annotated[
    str | None, typer.Option("--redfish", metavar="URL,...", help="With `inventory`: BMCs, in place of a CSV.")
]
BmcUser = Annotated[
    str | None, typer.Option("--user", help="With `inventory`: user of the BMCs, or of those in the CSV.")
]
PasswordFile = Annotated[
    Path | None, typer.Option("--password-file", help="Its password, of mode 600; else TRAINWORKS_BMC_PASSWORD.")
]
Authority = Annotated[Path | None, typer.Option("--ca", help="Certificate that signed those of the BMCs.")]


def print_inventory(
    hosts: Path | None, redfish: str | None, user: str | None, password: Path | None, ca: Path | None
) -> NoReturn:
    """Print the groups on stdout and a line for each BMC without a report on stderr; the latter exits with 1.

    Raises:
        UsageError: an option is missing, or is not valid.
    """
    from trainworks.api.proving.node_inventory import bmc_login, take_inventory

    if (hosts is None) == (redfish is None):
        raise UsageError("the hosts are in a CSV or behind BMCs", hint="name either a CSV or `--redfish URL,...`")
    if redfish is not None and user is None:
        raise UsageError("BMCs ask for a user", place="--user", hint="name it: `--user NAME`")
    with option_errors():
        login = None if user is None else bmc_login(user, password, ca)
        found = take_inventory(hosts, [each.strip() for each in (redfish or "").split(",") if each.strip()], login)
    typer.echo(found.text, nl=False)
    for line in found.unanswered:
        say(line, err=True)
    raise typer.Exit(int(bool(found.unanswered)))


def verified(
    stack_file: Path,
    verify: Callable[..., ClusterVerification],
    limit: str | None,
    bench: Path | None,
    runs: Path,
    *,
    full: bool,
    as_json: bool,
    html: Path | None,
    pdf: Path | None,
) -> int:
    """Show what differs, with `bench` the acceptance of the cluster, too; the exit code."""
    if bench is None:
        found = verify(limit=limit)
        show(found, as_json=as_json, html=html, pdf=pdf)
        return int(found.failed)
    from trainworks.api.bench import accept_cluster

    with option_errors(positional=dict.fromkeys(("run_file", "train", "cluster", "expect"), "--bench")):
        accepted = accept_cluster(
            stack_file,
            bench,
            verify,
            full=full,
            folder=runs,
            progress=lambda line: say(line, err=True),
        )
    show(accepted, as_json=as_json, html=html, pdf=pdf)
    return int(accepted.outcome != "accepted")


def show_run(done: PlaybookRun, *, as_json: bool) -> None:
    """Counts of each host; as JSON with every result that changed or failed."""
    if as_json:
        typer.echo(json.dumps({"changed": done.changed, "failed": done.failed, **asdict(done)}, indent=2))
        return
    for host in done.hosts:
        counts = f"ok {host.ok}  changed {host.changed}  unreachable {host.unreachable}  failed {host.failed}"
        typer.echo(f"{host.host}  {counts}")
    if done.stopped:
        typer.echo(f"stopped  {done.stopped}")


def print_result(result: TaskResult) -> None:
    """One line for a result that changed or failed."""
    typer.echo(f"{result.outcome}  {result.host}  {result.task}: {result.detail}")


def print_step(step: BatchStep) -> None:
    """One line for a step of a batch."""
    typer.echo(f"{step.step}  {','.join(step.hosts)}" + f": {step.detail}" * bool(step.detail))
