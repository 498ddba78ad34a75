"""`trainworks deploy`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trainworks.cli.options import AsJson
from trainworks.cli.output import show


class DeployStep(StrEnum):
    """What to do with a stack file."""

    CHECK = "check"


def command(
    step: Annotated[DeployStep, typer.Argument(metavar="check", help="What to do.", show_default=False)],
    stack_file: Annotated[Path, typer.Argument(metavar="STACK_FILE", help="YAML stack file.")],
    as_json: AsJson = False,
) -> None:
    """`check` judges whether the releases of a stack fit together and are supported; it exits with 1 on an error."""
    from trainworks.api.deploying.stack import check_stack

    report = check_stack(stack_file)
    show(report, as_json=as_json)
    if any(finding.severity == "error" for finding in report.findings):
        raise typer.Exit(1)
