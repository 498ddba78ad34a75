"""Slurm's power saving: what slurm.conf says of nodes that come and go, and the two programs that slurmctld calls.

slurmctld starts a program with a list of nodes and does not look at its exit code. Each program therefore reports by
itself, node by node: one that a command could not start or stop becomes DOWN with the reason, and its job is put back.

Source: slurm.conf(5) and the power saving guide of Slurm 22.05.
"""

from __future__ import annotations

import math
import shlex

from trainworks.config.autoscale import Autoscale, SlurmAutoscale
from trainworks.errors import UsageError

__all__ = ["resume_program", "slurm_power_files", "suspend_program"]

_START_S, _STOP_S, _DOWN_AFTER_S = 600.0, 120.0, 600.0
"""Slurm's own defaults, 60 s and 30 s, are those of a machine that only sleeps; a cloud takes minutes."""
_AT_ONCE = 32
"""Commands that run at a time."""


def slurm_power_files(autoscale: Autoscale) -> dict[str, str]:
    """Name and text of every file: two programs, and lines for slurm.conf and gres.conf.

    Raises:
        UsageError: nothing is said of Slurm.
    """
    slurm = autoscale.slurm
    if slurm is None:
        raise UsageError(
            "`cluster.autoscale.slurm` is missing: which nodes come and go, and the commands that start and stop one",
            hint="write `slurm: {nodes: 'cloud[1-16]', node: {...}, start: ..., stop: ...}` below `autoscale`",
        )
    files = {
        "resume.sh": resume_program(autoscale),
        "suspend.sh": suspend_program(autoscale),
        "power.conf": slurm_conf_lines(autoscale),
    }
    return files | ({"power_gres.conf": _gres(slurm)} if slurm.node.accelerators else {})


def slurm_conf_lines(autoscale: Autoscale) -> str:
    """All lines for slurm.conf. `SuspendTime` stands at the partition: the nodes of others stay."""
    assert autoscale.slurm is not None
    slurm, node = autoscale.slurm, autoscale.slurm.node
    words = [
        f"NodeName={slurm.nodes}",
        f"CPUs={node.cores}",
        f"RealMemory={node.memory // 2**20}",
        *([f"Gres=gpu:{node.accelerators}"] if node.accelerators else []),
        *([f"Feature={','.join(node.features)}"] if node.features else []),
        "State=CLOUD",
    ]
    comments = [
        "# Nodes that are in DNS by their names need `cloud_dns` in SlurmctldParameters, and no address from `start`.",
        "# Before Slurm 23.02, sinfo shows nodes that are down only with `PrivateData=cloud`.",
    ]
    types = ["GresTypes=gpu"] if node.accelerators else []
    lines = [*comments, *types, *power_lines(autoscale), " ".join(words), partition_line(autoscale)]
    return "\n".join(lines) + "\n"


def power_lines(autoscale: Autoscale) -> list[str]:
    """The programs and their limits. The machine of a node that did not come in time is stopped, too."""
    assert autoscale.slurm is not None
    slurm = autoscale.slurm
    kept = [f"{slurm.nodes}:{autoscale.keep}"] if autoscale.keep else []
    kept += [slurm.keep_nodes] if slurm.keep_nodes else []
    return [
        f"ResumeProgram={slurm.folder}/resume.sh",
        f"SuspendProgram={slurm.folder}/suspend.sh",
        f"ResumeFailProgram={slurm.folder}/suspend.sh",
        f"ResumeTimeout={_start_s(autoscale)}",
        f"SuspendTimeout={_stop_s(autoscale)}",
        f"ResumeRate={slurm.starts_per_minute}",
        f"SuspendRate={slurm.stops_per_minute}",
        *([f"SuspendExcNodes={','.join(kept)}"] if kept else []),
    ]


def partition_line(autoscale: Autoscale) -> str:
    """The partition of the nodes that come and go."""
    assert autoscale.slurm is not None
    idle_s = math.ceil(autoscale.down_after or _DOWN_AFTER_S)
    name = f"PartitionName={autoscale.slurm.partition} Nodes={autoscale.slurm.nodes}"
    return f"{name} MaxTime=INFINITE State=UP SuspendTime={idle_s}"


def _start_s(autoscale: Autoscale) -> int:
    return math.ceil(autoscale.start_timeout or _START_S)


def _stop_s(autoscale: Autoscale) -> int:
    return math.ceil(autoscale.stop_timeout or _STOP_S)


def _gres(slurm: SlurmAutoscale) -> str:
    kind, _, number = (slurm.node.accelerators or "").partition(":")
    files = "/dev/nvidia0" if number == "1" else f"/dev/nvidia[0-{int(number) - 1}]"
    return f"NodeName={slurm.nodes} Name=gpu Type={kind} File={files}\n"


def resume_program(autoscale: Autoscale) -> str:
    """`ResumeProgram=`: starts nodes, and tells Slurm the addresses that the command prints."""
    assert autoscale.slurm is not None
    told = [
        "    address=${said##*$'\\n'}",
        '    if [[ -n $address ]] && ! scontrol update NodeName="$NODE" NodeAddr="$address"; then',
        '        down "has an address that Slurm does not take: ${address//[^[:print:]]/?}"',
        "        return",
        "    fi",
    ]
    return _program("ResumeProgram: starts nodes that jobs need", "start", autoscale, _start_s(autoscale), told)


def suspend_program(autoscale: Autoscale) -> str:
    """`SuspendProgram=` and `ResumeFailProgram=`: stops nodes."""
    assert autoscale.slurm is not None
    return _program("SuspendProgram: stops nodes that nobody needs", "stop", autoscale, _stop_s(autoscale), [])


def _program(title: str, verb: str, autoscale: Autoscale, limit_s: int, then: list[str]) -> str:
    """Plain bash: slurmctld starts it as SlurmUser, with next to no environment."""
    slurm = autoscale.slurm
    assert slurm is not None
    command = slurm.start if verb == "start" else slurm.stop
    lines = [
        "#!/bin/bash",
        f"# {title}",
        "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        f"log={shlex.quote(slurm.log)}",
        f"command={shlex.quote(command)}",
        '{ : >> "$log"; } 2> /dev/null && exec >> "$log" 2>&1',
        "",
        'say() { printf \'%s %s %s\\n\' "$(date +%FT%T%z)" "${NODE:--}" "$*"; }',
        "",
        "down() {",
        '    say "$*"',
        '    scontrol update NodeName="$NODE" State=DOWN Reason="trainworks: $*, see $log"',
        "}",
        "",
        "one() {",
        "    export NODE=$1",
        "    local said code address",
        f"    say {verb}",
        f'    said=$(timeout --kill-after=10 {limit_s} bash -c "$command" < /dev/null)',
        "    code=$?",
        "    if ((code)); then",
        f'        down "{verb} ended with code $code"',
        "        return",
        "    fi",
        *then,
        f'    say "{verb} done${{said:+: $said}}"',
        "}",
        "",
        'nodes=$(scontrol show hostnames "$1") || { say "no list of nodes: $1"; exit 1; }',
        "for node in $nodes; do",
        f"    while (($(jobs -pr | wc -l) >= {_AT_ONCE})); do wait -n; done",
        '    one "$node" &',
        "done",
        "wait",
    ]
    return "\n".join(lines) + "\n"
