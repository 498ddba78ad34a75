"""Arguments of the commands that enter a running job."""

from __future__ import annotations

from typing import Annotated

import typer

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run id or folder.")]
NodeIndex = Annotated[int, typer.Option("--node", min=0, metavar="N", help="Node of the job, counted from 0.")]
