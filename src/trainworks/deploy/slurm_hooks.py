"""Slurm prolog and health check scripts, for nodes that fail a check.

Slurm drains the node of a prolog that fails, and requeues the job; a prolog must not call Slurm's commands. For a
HealthCheckProgram, which checks nodes periodically, Slurm does nothing by itself: the script drains the node. Both are
plain shell: slurmd runs them as root, with a nearly empty environment, before Trainworks is available.

Source: https://slurm.schedmd.com/prolog_epilog.html
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """Requirements that a node must meet before it gets a job."""

    accelerators: int = 0
    """Number of GPUs that `nvidia-smi` must list; 0 disables the check."""
    free_gb: dict[str, int] | None = None
    """Minimum free space in GiB, by folder."""
    mounted: tuple[str, ...] = ()
    """Folders that must be mount points, such as the shared file system."""
    timeout_s: int = 20
    """Time limit of the whole check, so that a hanging driver fails it."""


def prolog(check: NodeCheck) -> str:
    """Script for `Prolog=`: writes the reason to the system log and fails (exit 1), so that Slurm drains the node."""
    log = 'logger --tag trainworks-prolog -- "$node: $reason"'
    said = ['echo "$reason"', log, "exit 1"]  # slurmd writes what a prolog prints to its own log
    return _script("Prolog: fail on a bad node, which Slurm then drains", check, said)


def health_check(check: NodeCheck) -> str:
    """Script for `HealthCheckProgram=`: drains a bad node with a reason; Slurm ignores the exit code."""
    drain = 'scontrol update NodeName="$node" State=DRAIN Reason="trainworks: ${reason//$\'\\n\'/ }"'
    return _script("HealthCheckProgram: drain nodes that fail their check", check, [drain, "exit 0"])


def slurm_conf_lines(folder: str, *, every_s: int = 300) -> str:
    """Lines of slurm.conf that install the two scripts."""
    lines = [
        f"Prolog={folder}/prolog.sh",
        "PrologFlags=Alloc",
        f"HealthCheckProgram={folder}/health_check.sh",
        f"HealthCheckInterval={every_s}",
        "HealthCheckNodeState=IDLE",
    ]
    return "\n".join(lines) + "\n"


def _script(title: str, check: NodeCheck, after_a_failure: list[str]) -> str:
    lines = [
        "#!/bin/bash",
        f"# {title}",
        "export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "node=${SLURMD_NODENAME:-$(hostname -s)}",
        "check() {",
        *(f"    {line}" for line in _checks(check)),
        "    true",
        "}",
        "export -f check",
        f"reason=$(timeout --kill-after=2 {check.timeout_s} bash -c check 2>&1) && exit 0",
        f"reason=${{reason:-no answer within {check.timeout_s} s}}",
        *after_a_failure,
    ]
    return "\n".join(lines) + "\n"


def _checks(check: NodeCheck) -> list[str]:
    """One line per requirement, which prints the problem and ends the check."""
    lines = [_require(f"mountpoint -q {shlex.quote(folder)}", f"{folder} is not mounted") for folder in check.mounted]
    for folder, minimum_gb in (check.free_gb or {}).items():
        free = f"$(df --output=avail --block-size=1G {shlex.quote(folder)} | tail -n 1)"
        lines.append(_require(f'[ "{free}" -ge {minimum_gb} ]', f"{folder} has less than {minimum_gb} GiB free"))
    if check.accelerators:
        listed = "$(nvidia-smi --query-gpu=uuid --format=csv,noheader 2> /dev/null | wc -l)"
        lines.append(_require(f'[ "{listed}" -eq {check.accelerators} ]', f"not {check.accelerators} accelerators"))
    return lines


def _require(condition: str, otherwise: str) -> str:
    return f"{condition} || {{ echo {shlex.quote(otherwise)}; exit 1; }}"
