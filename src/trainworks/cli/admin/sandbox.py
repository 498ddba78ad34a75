"""`trainworks sandbox`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from trainworks.cli.options import AsJson
from trainworks.errors import UsageError

if TYPE_CHECKING:
    from trainworks.deploy.sandbox.slurm import SlurmSandbox


SandboxAction = Literal["install", "up", "down", "purge", "status", "env", "kill-node", "start-node"]
_ACTIONS = "|".join(get_args(SandboxAction))


def sandbox_command(
    kind: Annotated[Literal["slurm"], typer.Argument(metavar="slurm", help="Software to start.", show_default=False)],
    action: Annotated[SandboxAction, typer.Argument(metavar=_ACTIONS, help="Action.", show_default=False)],
    node: Annotated[str | None, typer.Argument(metavar="[NODE]", help="Node, for kill-node and start-node.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=200, help="Number of nodes.")] = 4,
    accelerators: Annotated[int, typer.Option("--accelerators", min=0, help="Simulated accelerators per node.")] = 8,
    accounting: Annotated[
        bool, typer.Option("--accounting", help="Start a database for history, quotas and QOS.")
    ] = False,
    cloud: Annotated[int, typer.Option("--cloud", min=0, help="Number of elastic nodes, which start on demand.")] = 0,
    down_after: Annotated[
        int, typer.Option("--down-after", min=1, help="Idle seconds until an elastic node stops.")
    ] = 30,
    port: Annotated[int, typer.Option("--port", min=1024, help="First port to use.")] = 18_800,
    folder: Annotated[Path | None, typer.Option("--folder", help="Folder of the sandbox; use a short path.")] = None,
    as_json: AsJson = False,
) -> None:
    """Needs root and Slurm's packages, which `install` gets from Debian. It changes no files outside its folder.

    `eval "$(trainworks sandbox slurm env)"` sets the environment for Slurm's own programs.
    """
    from trainworks.deploy.sandbox.slurm import SlurmSandbox, install
    from trainworks.deploy.sandbox.slurm_files import SandboxSize

    sandbox = SlurmSandbox(folder.absolute() if folder else None)
    if action == "install":
        install(accounting=accounting)
    elif action == "up":
        size = SandboxSize(nodes=nodes, accelerators=accelerators, accounting=accounting, first_port=port)
        sandbox.up(replace(size, cloud=cloud, down_after_s=down_after))
    elif action == "down":
        sandbox.down()
    elif action == "purge":
        sandbox.purge()
    elif action in ("kill-node", "start-node"):
        _change(sandbox, action, node)
    if action in ("up", "status"):
        status = sandbox.status()
        lines = [f"{name:16} {'up' if runs else 'down'}" for name, runs in status.items()]
        typer.echo(json.dumps(status) if as_json else "\n".join(lines))
    if action == "env":
        typer.echo("\n".join(f"export {name}={value}" for name, value in sandbox.env().items()))


def _change(sandbox: SlurmSandbox, action: SandboxAction, node: str | None) -> None:
    if node is None:
        raise UsageError(f"`{action}` wants a node", hint=f"trainworks sandbox slurm {action} node1")
    if action == "kill-node":
        sandbox.kill_node(node)
    else:
        sandbox.start_node(node)
