"""On-demand nodes of a sandbox: slurmd processes that Slurm's power saving starts and stops.

`deploy.slurm_power` writes the programs, as for any cluster; their command is `trainworks sandbox`.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import trainworks
from trainworks.config.autoscale import Autoscale, CloudNode, SlurmAutoscale
from trainworks.deploy.slurm_power import partition_line, power_lines, resume_program, suspend_program


def programs(nodes: int, cloud: int, down_after_s: int, folder: Path) -> dict[str, str]:
    """Texts of the two programs that slurmctld calls."""
    autoscale = _autoscale(nodes, cloud, down_after_s, folder)
    return {"resume.sh": resume_program(autoscale), "suspend.sh": suspend_program(autoscale)}


def slurm_conf(nodes: int, cloud: int, down_after_s: int, folder: Path) -> list[str]:
    """Lines for the programs and for the partition of these nodes; slurmctld checks every second."""
    autoscale = _autoscale(nodes, cloud, down_after_s, folder)
    settings = ["PrivateData=cloud", "SlurmctldParameters=power_save_interval=1,power_save_min_interval=0"]
    return [*settings, *power_lines(autoscale), partition_line(autoscale)]


def _autoscale(nodes: int, cloud: int, down_after_s: int, folder: Path) -> Autoscale:
    source = Path(trainworks.__file__).parents[1]
    place = f"--folder {shlex.quote(str(folder))}"
    program = f"PYTHONPATH={shlex.quote(str(source))} {shlex.quote(sys.executable)} -m trainworks sandbox slurm"
    slurm = SlurmAutoscale(
        nodes=f"node[{nodes - cloud + 1}-{nodes}]",
        node=CloudNode(cores=1, memory=1),
        start=f'{program} start-node "$NODE" {place} && echo 127.0.1.${{NODE#node}}',
        stop=f'{program} kill-node "$NODE" {place}',
        folder=f"{folder}/etc",
        log=f"{folder}/log/power.log",
    )
    return Autoscale(down_after=float(down_after_s), start_timeout=60.0, stop_timeout=8.0, slurm=slurm)
