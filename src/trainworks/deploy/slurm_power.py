"""Slurm power saving: lines of slurm.conf for nodes that start on demand, and the two programs that slurmctld calls.

slurmctld starts a program with a list of nodes and ignores its exit code. Each program therefore reports per node: a
node that its command could not start or stop becomes DOWN with the reason, and Slurm requeues its job.

Sources: slurm.conf(5) and the power saving guide of Slurm 22.05; `SuspendExcStates` in slurm.conf(5) of 23.02.
"""

from __future__ import annotations

import math
from typing import Literal

from trainworks.catalog.software import version_key
from trainworks.config.autoscale import Autoscale
from trainworks.deploy.hardware import gres_devices, gres_of
from trainworks.deploy.templating import render
from trainworks.errors import UsageError

_START_S, _STOP_S, _DOWN_AFTER_S = 600.0, 120.0, 600.0
"""Defaults for clouds, which take minutes; Slurm's 60 s and 30 s suit machines that only sleep."""
_SUSPEND_EXC_STATES = (23, 2)
"""First release of Slurm that can leave drained nodes on."""
_PARALLEL = 32
"""Number of commands that run in parallel."""


def slurm_power_files(autoscale: Autoscale) -> dict[str, str]:
    """Name and text of every file: two programs, and lines for slurm.conf and gres.conf.

    Raises:
        UsageError: the block has no `slurm` entry.
    """
    slurm = autoscale.slurm
    if slurm is None:
        raise UsageError(
            "`cluster.autoscale.slurm` is missing: the nodes, and the commands that start and stop one",
            hint="write `slurm: {nodes: 'cloud[1-16]', node: {...}, start: ..., stop: ...}` below `autoscale`",
        )
    files = {
        "resume.sh": resume_program(autoscale),
        "suspend.sh": suspend_program(autoscale),
        "power.conf": slurm_conf_lines(autoscale),
    }
    found = slurm.node.accelerators
    gres = "".join(f"NodeName={slurm.nodes} {line}\n" for line in gres_devices(found)) if found else ""
    return files | ({"power_gres.conf": gres} if gres else {})


def slurm_conf_lines(autoscale: Autoscale) -> str:
    """All lines for slurm.conf; `SuspendTime` is set per partition, so that other nodes keep running."""
    assert autoscale.slurm is not None
    slurm, node = autoscale.slurm, autoscale.slurm.node
    words = [
        f"NodeName={slurm.nodes}",
        f"CPUs={node.cores}",
        f"RealMemory={node.memory // 2**20}",
        *([f"Gres={gres_of(node.accelerators)}"] if node.accelerators else []),
        *([f"Feature={','.join(node.features)}"] if node.features else []),
        "State=CLOUD",
    ]
    comments = [
        "# Nodes with their names in DNS need `cloud_dns` in SlurmctldParameters, and no address from `start`.",
        "# Before Slurm 23.02, sinfo shows powered-down nodes only with `PrivateData=cloud`.",
    ]
    types = ["GresTypes=gpu"] if node.accelerators else []
    lines = [*comments, *types, *power_lines(autoscale), " ".join(words), partition_line(autoscale)]
    return "\n".join(lines) + "\n"


def power_lines(autoscale: Autoscale, release: str = "") -> list[str]:
    """Lines for the programs and their limits; a node that does not start in time is stopped again.

    Where the `release` of Slurm is known and can do so, a node that is drained stays on: an apply or an operator works
    there.
    """
    assert autoscale.slurm is not None
    slurm = autoscale.slurm
    excluded = [f"{slurm.nodes}:{autoscale.keep}"] if autoscale.keep else []
    excluded += [slurm.keep_nodes] if slurm.keep_nodes else []
    return [
        f"ResumeProgram={slurm.folder}/resume.sh",
        f"SuspendProgram={slurm.folder}/suspend.sh",
        f"ResumeFailProgram={slurm.folder}/suspend.sh",
        f"ResumeTimeout={_start_s(autoscale)}",
        f"SuspendTimeout={_stop_s(autoscale)}",
        f"ResumeRate={slurm.starts_per_minute}",
        f"SuspendRate={slurm.stops_per_minute}",
        *([f"SuspendExcNodes={','.join(excluded)}"] if excluded else []),
        *(["SuspendExcStates=DRAIN"] if release and version_key(release) >= _SUSPEND_EXC_STATES else []),
    ]


def partition_line(autoscale: Autoscale) -> str:
    """Line for the partition of the on-demand nodes."""
    assert autoscale.slurm is not None
    idle_s = math.ceil(autoscale.down_after or _DOWN_AFTER_S)
    name = f"PartitionName={autoscale.slurm.partition} Nodes={autoscale.slurm.nodes}"
    return f"{name} MaxTime=INFINITE State=UP SuspendTime={idle_s}"


def _start_s(autoscale: Autoscale) -> int:
    return math.ceil(autoscale.start_timeout or _START_S)


def _stop_s(autoscale: Autoscale) -> int:
    return math.ceil(autoscale.stop_timeout or _STOP_S)


def resume_program(autoscale: Autoscale) -> str:
    """Program for `ResumeProgram=`: starts nodes, and passes the addresses that the command prints to Slurm."""
    return _program("start", autoscale, _start_s(autoscale))


def suspend_program(autoscale: Autoscale) -> str:
    """Program for `SuspendProgram=` and `ResumeFailProgram=`: stops nodes."""
    return _program("stop", autoscale, _stop_s(autoscale))


def _program(verb: Literal["start", "stop"], autoscale: Autoscale, limit_s: int) -> str:
    """Plain bash: slurmctld runs it as SlurmUser, with a nearly empty environment."""
    slurm = autoscale.slurm
    assert slurm is not None
    command = slurm.start if verb == "start" else slurm.stop
    return render("slurm/power.sh", verb=verb, command=command, limit_s=limit_s, log=slurm.log, parallel=_PARALLEL)
