"""`trainworks autoscale`."""

from __future__ import annotations

from pathlib import Path

from trainworks.cli.admin.file_set import ToFolder, print_or_write
from trainworks.cli.options import RunFilePath
from trainworks.errors import UsageError


def command(
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
