"""Slurm prolog and health check scripts, for nodes that fail a check.

Slurm drains the node of a prolog that fails, and requeues the job; a prolog must not call Slurm's commands. For a
HealthCheckProgram, which checks nodes periodically, Slurm does nothing by itself: the script drains the node. Both are
plain shell: slurmd runs them as root, with a nearly empty environment, before Trainworks is available.

Source: https://slurm.schedmd.com/prolog_epilog.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainworks.deploy.templating import render


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """Requirements that a node must meet before it gets a job."""

    accelerators: int = 0
    """Number of GPUs that `nvidia-smi` must list, or the driver of AMD show; 0 disables the check."""
    vendor: Literal["nvidia", "amd"] = "nvidia"
    """Maker of the GPUs."""
    free_gb: dict[str, int] | None = None
    """Minimum free space in GiB, by folder."""
    mounted: tuple[str, ...] = ()
    """Folders that must be mount points, such as the shared file system."""
    timeout_s: int = 20
    """Time limit of the whole check, so that a hanging driver fails it."""


def prolog(check: NodeCheck, *, scratch: str | None = None, makes_homes: bool = False) -> str:
    """Script for `Prolog=`: writes the reason to the system log and fails (exit 1), so that Slurm drains the node.

    A job on a good node gets a folder of its own in `scratch`, that of local scratch, and with `makes_homes` its user
    the home folder that the node lacks: a job passes no PAM that would make it.

    Source: slurm.conf(5) and mkhomedir_helper(8).
    """
    return render("slurm/prolog.sh", check=check, scratch=scratch, makes_homes=makes_homes)


def task_prolog(*scratch: str) -> str:
    """Script for `TaskProlog=`: temporary files of a job go to its folder on the local scratch that the node has."""
    return render("slurm/task_prolog.sh", folders=[f"{each}/jobs" for each in scratch])


def health_check(check: NodeCheck) -> str:
    """Script for `HealthCheckProgram=`: drains a bad node with a reason; Slurm ignores the exit code."""
    return render("slurm/health_check.sh", check=check)


def epilog(check: NodeCheck, *, scratch: str | None = None) -> str:
    """Script for `Epilog=`: removes what a job left, and fails (exit 1) where its GPUs are still in use.

    A user's files in `/dev/shm` go with the last job of the user on the node, since jobs of one user share them. The
    folder of a job on scratch is `SCRATCH/jobs/NUMBER`. GPUs of NVIDIA are looked at where the check counts them.
    """
    return render("slurm/epilog.sh", check=check, scratch=scratch)


def slurm_conf_lines(folder: str, *, every_s: int = 300, contain: bool = False) -> str:
    """Lines of slurm.conf that install the two scripts; with `contain`, a step of each job takes up logins over ssh."""
    return render("slurm/hooks.conf", folder=folder, every_s=every_s, contain=contain)
