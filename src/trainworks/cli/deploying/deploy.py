"""`trainworks deploy`."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainworks.cli.admin.file_set import print_or_write
from trainworks.cli.options import AsJson, option_errors
from trainworks.cli.output import show
from trainworks.errors import UsageError

if TYPE_CHECKING:
    from trainworks.deploy.playbook import PlaybookRun, TaskResult


class DeployStep(StrEnum):
    """What to do with a stack file."""

    CHECK = "check"
    RENDER = "render"
    DIFF = "diff"
    APPLY = "apply"


def command(
    step: Annotated[
        DeployStep, typer.Argument(metavar="check|render|diff|apply", help="What to do.", show_default=False)
    ],
    stack_file: Annotated[Path, typer.Argument(metavar="STACK_FILE", help="YAML stack file.")],
    into: Annotated[
        Path | None, typer.Option("--into", metavar="FOLDER", help="Folder of the Ansible project; not for `check`.")
    ] = None,
    limit: Annotated[
        str | None, typer.Option("--limit", metavar="HOSTS", help="With `diff` and `apply`: these hosts alone.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """`check` judges whether the releases of a stack fit together and are supported; it exits with 1 on an error.

    `render` writes an Ansible project: the configuration of Slurm, file systems, users, environments and monitoring.

    `apply` renders, then runs the project over ssh; it exits with 1 when a task failed or a host did not answer. `diff`
    reports what `apply` would change; it exits with 1 on drift as well. With `--json` the results come at the end.
    """
    from trainworks.api.deploying.stack import apply_stack, check_stack, render_stack

    if step is not DeployStep.CHECK and into is None:
        raise UsageError(f"`{step.value}` writes a project", hint="name its folder: `--into FOLDER`")
    if step is DeployStep.RENDER and into is not None:
        files = render_stack(stack_file)
        with option_errors("--into", into):
            print_or_write(files, into)
        return
    if into is not None and step is not DeployStep.CHECK:
        drift, show_result = step is DeployStep.DIFF, _nothing if as_json else _print_result
        with option_errors("--into", into):
            done = apply_stack(stack_file, into, limit=limit, dry_run=drift, on_result=show_result)
        _show_run(done, as_json=as_json)
        if done.failed or (drift and done.changed):
            raise typer.Exit(1)
        return
    report = check_stack(stack_file)
    show(report, as_json=as_json)
    if any(finding.severity == "error" for finding in report.findings):
        raise typer.Exit(1)


def _show_run(done: PlaybookRun, *, as_json: bool) -> None:
    """Counts of each host; as JSON with every result that changed or failed."""
    if as_json:
        typer.echo(json.dumps({"changed": done.changed, "failed": done.failed, **asdict(done)}, indent=2))
        return
    for host in done.hosts:
        counts = f"ok {host.ok}  changed {host.changed}  unreachable {host.unreachable}  failed {host.failed}"
        typer.echo(f"{host.host}  {counts}")


def _nothing(result: TaskResult) -> None:
    """The results come as JSON at the end."""


def _print_result(result: TaskResult) -> None:
    """One line for a result that changed or failed."""
    typer.echo(f"{result.outcome}  {result.host}  {result.task}: {result.detail}")
