"""`trainworks hooks`, `autoscale` and `schema`: files for schedulers and editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trainworks.cli.files import ToFolder, print_or_write
from trainworks.cli.options import RunFilePath
from trainworks.errors import UsageError


def hooks_command(
    accelerators: Annotated[
        int, typer.Option("--accelerators", min=0, help="Number of accelerators that nvidia-smi must list.")
    ] = 0,
    mounted: Annotated[list[str] | None, typer.Option("--mounted", help="Folder that must be mounted.")] = None,
    free: Annotated[
        list[str] | None, typer.Option("--free", metavar="FOLDER=GIB", help="Minimum free space of a folder.")
    ] = None,
    every_s: Annotated[int, typer.Option("--every", min=10, help="Seconds between two checks.")] = 300,
    folder: Annotated[str, typer.Option("--folder", help="Folder of the scripts on every node.")] = "/etc/slurm",
    to: ToFolder = None,
) -> None:
    """A prolog and a HealthCheckProgram for administrators that drain a node after a failed check, and the lines for
    slurm.conf. A job on such a node is requeued and starts on another one.
    """
    from trainworks.deploy.slurm_hooks import NodeCheck, health_check, prolog, slurm_conf_lines

    least = list(map(_free, free or []))
    if twice := [path for path, _ in least if [other for other, _ in least].count(path) > 1]:
        raise UsageError(f"`--free` gives `{twice[0]}` twice", hint=f"keep one `--free {twice[0]}=GIB`")
    check = NodeCheck(accelerators=accelerators, free_gb=dict(least), mounted=tuple(map(_path, mounted or [])))
    if check == NodeCheck(free_gb={}):
        raise UsageError("nothing is to be checked", hint="trainworks hooks --accelerators 8 --mounted /shared")
    conf = slurm_conf_lines(_path(folder), every_s=every_s)
    print_or_write({"prolog.sh": prolog(check), "health_check.sh": health_check(check), "hooks.conf": conf}, to)


def _free(text: str) -> tuple[str, int]:
    folder, equals, amount = text.rpartition("=")
    if not equals or not amount.isdecimal():
        raise UsageError(f"`--free {text}` does not name a folder and GiB", hint="write it like `--free /tmp=20`")
    return _path(folder), int(amount)


def _path(text: str) -> str:
    if not text.startswith("/") or not text.isprintable():
        raise UsageError(f"`{text}` is not an absolute path", hint="write it like `/shared`")
    return text


def autoscale_command(
    run_file: RunFilePath,
    to: ToFolder = None,
) -> None:
    """Slurm's power saving with its two programs, or Kueue's admission check, from `cluster.autoscale`.

    SkyPilot's autostop is part of the task: `trainworks submit --dry-run --as skypilot`.
    """
    print_or_write(_files(run_file), to)


def _files(path: Path) -> dict[str, str]:
    from trainworks.api.inputs import load_run
    from trainworks.deploy.kueue import kueue_files
    from trainworks.deploy.slurm_power import slurm_power_files

    cluster, writers = load_run(path)[0].cluster, {"slurm": slurm_power_files, "kubernetes": kueue_files}
    if cluster.autoscale is None:
        raise UsageError(f"`{path}` has no `cluster.autoscale`", hint="docs/guides/idle-and-elastic.md shows one")
    if cluster.engine not in writers:
        known = " or ".join(f"`engine: {name}`" for name in writers)
        raise UsageError(f"`engine: {cluster.engine}` starts and stops no nodes by itself", hint=f"take {known}")
    return writers[cluster.engine](cluster.autoscale)


def schema_command() -> None:
    """Editors with JSON Schema support use it to complete and check run files."""
    from trainworks.config.run_file import RunFile

    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | RunFile.model_json_schema()
    typer.echo(json.dumps(schema, indent=2))
