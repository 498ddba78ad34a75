"""What a scheduler is asked to start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainworks.config.command import Framework
from trainworks.config.engines import Idle
from trainworks.config.run_file import RunFile
from trainworks.jobs.job_spec import JobSpec, spec_of
from trainworks.record.resolved import Processes, ResolvedRun

__all__ = ["JobRequest", "job_request", "max_restarts", "spec_of_run"]

_RESTARTS_OF_A_WORKLOAD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One job, in no scheduler's language."""

    run_id: str
    kind: Literal["training", "command"]
    processes: Processes
    max_restarts: int
    rendezvous_port: int
    """Port that the ranks meet at; 0 takes a free one."""
    framework: Framework | None = None
    """Of a command; torch when None."""
    grace_s: float = 120.0
    """From the request to end until the end."""
    longest_pause_s: float = 0.0
    """Predicted time in which a workload may not look up: one logging interval."""
    idle: Idle = field(default_factory=Idle)


def job_request(resolved: ResolvedRun) -> JobRequest:
    """The job of a resolved run."""
    plan = resolved.plan
    return JobRequest(
        run_id=resolved.run_id,
        kind="training" if resolved.run_file.workload else "command",
        processes=resolved.processes,
        max_restarts=max_restarts(resolved.run_file),
        rendezvous_port=resolved.run_file.cluster.rendezvous_port,
        framework=resolved.run_file.framework,
        grace_s=resolved.run_file.job.grace,
        idle=resolved.run_file.job.idle,
        longest_pause_s=plan.log_every_steps * plan.step_time.total_s if plan else 0.0,
    )


def spec_of_run(resolved: ResolvedRun) -> JobSpec:
    """What a queue is asked for a resolved run; another machine's in the words of the run file."""
    here = resolved.run_file.cluster.engine == "local"
    return spec_of(
        resolved.run_file,
        run_id=resolved.run_id,
        working_folder=resolved.working_folder,
        max_restarts=max_restarts(resolved.run_file),
        processes=resolved.processes if here else None,
    )


def max_restarts(run_file: RunFile) -> int:
    """Automatic restarts: as written; else 3 for a workload, and none for a command, which may not be repeatable."""
    if run_file.recover.max_restarts is not None:
        return run_file.recover.max_restarts
    return _RESTARTS_OF_A_WORKLOAD if run_file.workload else 0
