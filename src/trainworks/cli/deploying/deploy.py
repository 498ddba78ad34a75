"""`trainworks deploy`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trainworks.cli.admin.file_set import print_or_write
from trainworks.cli.options import AsJson, option_errors
from trainworks.cli.output import show
from trainworks.errors import UsageError


class DeployStep(StrEnum):
    """What to do with a stack file."""

    CHECK = "check"
    RENDER = "render"


def command(
    step: Annotated[DeployStep, typer.Argument(metavar="check|render", help="What to do.", show_default=False)],
    stack_file: Annotated[Path, typer.Argument(metavar="STACK_FILE", help="YAML stack file.")],
    into: Annotated[
        Path | None, typer.Option("--into", metavar="FOLDER", help="With `render`: folder of the Ansible project.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """`check` judges whether the releases of a stack fit together and are supported; it exits with 1 on an error.

    `render` writes an Ansible project: the configuration of Slurm, file systems, users, environments and monitoring.
    """
    from trainworks.api.deploying.stack import check_stack, render_stack

    if step is DeployStep.RENDER:
        if into is None:
            raise UsageError("`render` writes a project", hint="name its folder: `--into FOLDER`")
        files = render_stack(stack_file)
        with option_errors("--into", into):
            print_or_write(files, into)
        return
    report = check_stack(stack_file)
    show(report, as_json=as_json)
    if any(finding.severity == "error" for finding in report.findings):
        raise typer.Exit(1)
