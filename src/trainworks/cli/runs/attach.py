"""`trainworks exec`, `ssh`, `port-forward` and `dev`: work on the nodes of a job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainworks.cli.arguments import RunArgument
from trainworks.cli.launch import DryRun
from trainworks.cli.options import OnCluster, RunsOption, find, option_errors, warn
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from trainworks.api.developing.access import DevAccess


NodeIndex = Annotated[int, typer.Option("--node", min=0, metavar="N", help="Node of the job, counted from 0.")]


def exec_command(
    run: RunArgument,
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Command, after `--`.")],
    node: NodeIndex = 0,
    runs: RunsOption = None,
) -> None:
    """The command gets the environment, accelerators and folder of the node's first rank, and ends with the job."""
    from trainworks.api.developing.attach import run_in_job

    raise typer.Exit(run_in_job(find(run, runs), words, node=node))


def ssh_command(run: RunArgument, node: NodeIndex = 0, runs: RunsOption = None) -> None:
    """A bash with the environment, accelerators and folder of the node's first rank; it ends with the job.

    It needs no ssh server. For VS Code, see `trainworks dev`.
    """
    from trainworks.api.developing.attach import SHELL, run_in_job

    raise typer.Exit(run_in_job(find(run, runs), SHELL, node=node))


def port_forward_command(
    run: RunArgument,
    ports: Annotated[
        str, typer.Argument(metavar="[LOCAL:]PORT", help="Port on the node; LOCAL is the one here, 0 for a free one.")
    ],
    node: NodeIndex = 0,
    runs: RunsOption = None,
) -> None:
    """Connections to the port of this machine reach a server on the node that listens on loopback, until Ctrl-C."""
    from trainworks.api.developing.attach import forward_port

    local, port = _parse(ports)
    found = find(run, runs)

    def ready(here: int) -> None:
        say(f"http://127.0.0.1:{here} is port {port} of node {node} of {found.id}; Ctrl-C ends this", err=True)

    raise typer.Exit(forward_port(found, port, local, node=node, on_ready=ready))


def _parse(ports: str) -> tuple[int | None, int]:
    match = re.fullmatch(r"(?:(\d{1,5}):)?(\d{1,5})", ports)
    local = int(match[1]) if match is not None and match[1] is not None else None
    port = 0 if match is None else int(match[2])
    if not 0 < port < 1 << 16 or (local is not None and local >= 1 << 16):
        raise UsageError(f"`{ports}` is not a port, nor LOCAL:PORT", hint="for example: 6006, or 8080:6006")
    return local, port


def dev_command(
    run_file: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN_FILE]", help="Take cluster, resources, environment and setup from this file."),
    ] = None,
    ssh: Annotated[bool, typer.Option("--ssh", help="Start an ssh server, for a shell or VS Code. [default]")] = False,
    jupyter: Annotated[bool, typer.Option("--jupyter", help="Start JupyterLab.")] = False,
    cluster: OnCluster = None,
    gpus: Annotated[str | None, typer.Option("--gpus", metavar="N|NAME:N", help="GPUs.")] = None,
    cpus: Annotated[str | None, typer.Option("--cpus", metavar="N", help="Cores.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="Memory: `32GB`.")] = None,
    time_limit: Annotated[str | None, typer.Option("--for", metavar="DURATION", help="Longest time: `8h`.")] = None,
    idle: Annotated[
        str | None,
        typer.Option("--idle", metavar="DURATION|never", help="End it after this time without use. [default: 30m]"),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Key that may log in. [default: ~/.ssh/id_*.pub]")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the run.")] = "dev",
    runs: RunsOption = None,
    write_ssh_config: Annotated[
        bool, typer.Option("--write-ssh-config", help="Also write the ssh configuration into ~/.ssh/config.d.")
    ] = False,
    show: Annotated[
        str | None, typer.Option("--show", metavar="RUN", help="Only print how to reach this environment.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Prints an ssh configuration that VS Code reads, or the address of JupyterLab. `trainworks stop` ends it."""
    from trainworks.api.developing.dev import dev_access, prepare_dev, public_keys, start_dev

    if ssh and jupyter:
        raise UsageError("`--ssh` and `--jupyter` exclude each other", hint="start two environments")
    with option_errors(positional={"time_limit": "--for", "run_file": "RUN_FILE"}):
        keys, identity = ([], None) if jupyter else public_keys(key)
        if show is not None:
            run = find(show, runs)
        else:
            prepared = prepare_dev(
                run_file,
                kind="jupyter" if jupyter else "ssh",
                cluster=cluster,
                gpus=gpus,
                cpus=cpus,
                memory=memory,
                time_limit=time_limit,
                idle=idle,
                name=name,
                keys=keys,
                folder=runs,
            )
            if dry_run:
                typer.echo(prepared.rendered(), nl=False)
                return
            run = start_dev(prepared, notify=warn)
    try:
        access = dev_access(run, identity=identity, on_state=lambda state: say(f"{run.id} {state}", err=True))
    except KeyboardInterrupt:
        say(f"the job continues: trainworks dev --show {run.id}, or trainworks stop {run.id}", err=True)
        raise typer.Exit(130) from None
    _print(access, write=write_ssh_config)


def _print(access: DevAccess, *, write: bool) -> None:
    """The configuration or the address on stdout, everything to do with it on stderr."""
    from trainworks.api.developing.access import write_ssh_config

    if access.forward is not None:
        say(f"keep this running in another terminal: {access.forward}", err=True)
    if access.token_command is not None:
        say(f"the token: {access.token_command}", err=True)
    if access.ssh_config is None:
        typer.echo(access.url)
        return
    if write:
        file, missing = write_ssh_config(access)
        say(f"{file}: connect with `ssh {access.alias}`", err=True)
        if missing is not None:
            say(f"note: {missing}", err=True)
    else:
        say(f"connect with: ssh -F {access.ssh_config_file} {access.alias}", err=True)
    typer.echo(access.ssh_config, nl=False)
