"""`trainworks hooks`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainworks.cli.admin.file_set import ToFolder, print_or_write
from trainworks.errors import UsageError


def command(
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
    """For administrators: a prolog and a HealthCheckProgram that drain a node after a failed check, and the lines for
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
