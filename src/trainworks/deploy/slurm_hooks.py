"""Scripts that an administrator may give to Slurm: a node that fails its check gets no job.

A prolog that fails drains its node and puts the job back; a HealthCheckProgram looks at nodes all the time. Both are
plain shell, because slurmd runs them as root, with next to no environment, before anything of Trainworks is there.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

__all__ = ["NodeCheck", "health_check", "prolog", "slurm_conf_lines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """What a node must have before it gets a job."""

    accelerators: int = 0
    """That `nvidia-smi` must list; 0 where there are none."""
    free_gb: dict[str, int] | None = None
    """Least free space, by folder."""
    mounted: tuple[str, ...] = ()
    """Folders that must be mount points: the shared file system."""
    timeout_s: int = 20
    """For the whole check: a driver that hangs fails it."""


def prolog(check: NodeCheck) -> str:
    """`Prolog=`: a bad node is drained with a reason, and its job is put back (exit 1)."""
    return _script("Prolog: a node that fails its check gets no job", check, ["exit 1"])


def health_check(check: NodeCheck) -> str:
    """`HealthCheckProgram=`: a bad node is drained with a reason; the exit code means nothing to Slurm."""
    return _script("HealthCheckProgram: looks after nodes that wait for jobs", check, ["exit 0"])


def slurm_conf_lines(folder: str, *, every_s: int = 300) -> str:
    """What slurm.conf says about the two scripts.

    Args:
        folder: where they lie, on every node.
        every_s: time between two health checks.
    """
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
        'scontrol update NodeName="$node" State=DRAIN Reason="trainworks: ${reason//$\'\\n\'/ }"',
        *after_a_failure,
    ]
    return "\n".join(lines) + "\n"


def _checks(check: NodeCheck) -> list[str]:
    """One line each, which says what is wrong and ends the check."""
    lines = [_must(f"mountpoint -q {shlex.quote(place)}", f"{place} is not mounted") for place in check.mounted]
    for folder, least_gb in (check.free_gb or {}).items():
        free = f"$(df --output=avail --block-size=1G {shlex.quote(folder)} | tail -n 1)"
        lines.append(_must(f'[ "{free}" -ge {least_gb} ]', f"{folder} has less than {least_gb} GiB free"))
    if check.accelerators:
        listed = "$(nvidia-smi --query-gpu=uuid --format=csv,noheader | wc -l)"
        lines.append(_must(f'[ "{listed}" -eq {check.accelerators} ]', f"not {check.accelerators} accelerators"))
    return lines


def _must(condition: str, otherwise: str) -> str:
    return f"{condition} || {{ echo {shlex.quote(otherwise)}; exit 1; }}"
