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


def prolog(check: NodeCheck, *, scratch: str | None = None) -> str:
    """Script for `Prolog=`: writes the reason to the system log and fails (exit 1), so that Slurm drains the node.

    Args:
        check: of the node.
        scratch: folder of local scratch, where a job on a good node gets a folder of its own; None without one.
    """
    log = 'logger --tag trainworks-prolog -- "$node: $reason"'
    then: list[str] = []
    if scratch is not None:
        jobs = shlex.quote(f"{scratch}/jobs")
        then = [f'install -d -m 0711 {jobs} && install -d -m 0700 -o "$SLURM_JOB_UID" {jobs}/"$SLURM_JOB_ID"']
    said = ['echo "$reason"', log, "exit 1"]  # slurmd writes what a prolog prints to its own log
    return _script("Prolog: fail on a bad node, which Slurm then drains", check, said, then)


def task_prolog(scratch: str) -> str:
    """Script for `TaskProlog=`: temporary files of a job go to its folder on local scratch."""
    folder = shlex.quote(f"{scratch}/jobs")
    lines = [
        "#!/bin/bash",
        "# TaskProlog: Slurm sets what this prints; /tmp is the system's drive, and data loaders fill it",
        f'[ -d {folder}/"$SLURM_JOB_ID" ] && echo export TMPDIR={folder}/"$SLURM_JOB_ID"',
        "exit 0",
    ]
    return "\n".join(lines) + "\n"


def health_check(check: NodeCheck) -> str:
    """Script for `HealthCheckProgram=`: drains a bad node with a reason; Slurm ignores the exit code."""
    drain = 'scontrol update NodeName="$node" State=DRAIN Reason="trainworks: ${reason//$\'\\n\'/ }"'
    return _script("HealthCheckProgram: drain nodes that fail their check", check, [drain, "exit 0"])


def epilog(check: NodeCheck, *, scratch: str | None = None) -> str:
    """Script for `Epilog=`: removes what a job left, and fails (exit 1) where its GPUs are still in use.

    A user's files in `/dev/shm` go with the last job of the user on the node, since jobs of one user share them. The
    folder of a job on scratch is `SCRATCH/jobs/NUMBER`.

    Args:
        check: of the node; GPUs are looked at where it counts them.
        scratch: folder of local scratch; None without one.
    """
    lines = [
        "#!/bin/bash",
        "# Epilog: remove what a job left, and fail on a node that keeps it, which Slurm then drains",
        "export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "node=${SLURMD_NODENAME:-$(hostname -s)}",
        "[[ $SLURM_JOB_ID =~ ^[0-9]+$ && $SLURM_JOB_UID =~ ^[0-9]+$ ]] || exit 0",
    ]
    if scratch is not None:
        lines.append(f'rm -rf --one-file-system -- {shlex.quote(f"{scratch}/jobs")}/"$SLURM_JOB_ID"')
    lines += [
        "# processes of the user belong to another job of the same user; NCCL and data loaders leave segments behind",
        'if ((SLURM_JOB_UID >= 1000)) && ! pgrep -u "$SLURM_JOB_UID" > /dev/null; then',
        '    find /dev/shm -mindepth 1 -maxdepth 1 -user "$SLURM_JOB_UID" -exec rm -rf --one-file-system -- {} +',
        "fi",
    ]
    if check.accelerators:
        lines += [
            "# a process that hangs in the driver keeps its memory, and the next job on that GPU fails",
            'used() { nvidia-smi --query-compute-apps=pid --format=csv,noheader -i "$SLURM_JOB_GPUS"; }',
            "for second in 1 2 3 4 5; do",
            '    [[ -n ${SLURM_JOB_GPUS:-} && -n $(timeout 20 bash -c "$(declare -f used); used") ]] || exit 0',
            "    sleep 1",
            "done",
            'logger --tag trainworks-epilog -- "$node: GPUs $SLURM_JOB_GPUS are in use after job $SLURM_JOB_ID"',
            "exit 1",
        ]
    return "\n".join(lines) + "\n"


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


def _script(title: str, check: NodeCheck, after_a_failure: list[str], on_a_good_node: list[str] | None = None) -> str:
    good = f"{{ {'; '.join([*on_a_good_node, 'exit 0'])}; }}" if on_a_good_node else "exit 0"
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
        f"reason=$(timeout --kill-after=2 {check.timeout_s} bash -c check 2>&1) && {good}",
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
