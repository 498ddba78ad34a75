"""A job as a managed job of SkyPilot: its task, where it may run, and what happens when its nodes are taken away.

Source: the task YAML of SkyPilot 0.14.
"""

from __future__ import annotations

import hashlib
from typing import Any

from trainworks.config.engines import SkyPilot
from trainworks.errors import UsageError
from trainworks.jobs.formats import skypilot
from trainworks.jobs.formats.manifest import dns_name, to_yaml
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.program import Program
from trainworks.record.run_dir import RunDir

__all__ = ["mark_of", "render", "secrets_of"]

_MIDDLE = 50
_PER_PRIORITY = 20
"""SkyPilot counts from -1000 to 1000."""


def mark_of(run_dir: RunDir) -> str:
    """The managed job's name: a run that was submitted is found by it. Run ids repeat, folders do not."""
    folder = hashlib.sha256(str(run_dir.path.absolute()).encode()).hexdigest()[:12]
    return f"{dns_name(run_dir.run_id)}-{folder}"


def secrets_of(program: Program) -> list[str]:
    """Variables without a value: SkyPilot gets them from the shell, and does not show them."""
    return [name for name, value in program.envs.items() if value is None]


def render(spec: JobSpec, program: Program, options: SkyPilot, name: str) -> str:
    """The task.

    Args:
        spec: of the job.
        program: what its nodes run.
        options: what the run file says about SkyPilot.
        name: of the managed job.

    Raises:
        UsageError: the job asks for something that SkyPilot does not do.
    """
    if options.use_spot and not spec.preemptible:
        hint = "leave `use_spot` out, or `job.preemptible`"
        raise UsageError(
            "`cluster.skypilot.use_spot` rents nodes that are taken away: the job is preemptible", hint=hint
        )
    task = skypilot.task(spec, program)
    envs = {key: value for key, value in program.envs.items() if value is not None}
    keys: dict[str, Any] = {
        "name": name,
        "num_nodes": task["num_nodes"],
        "resources": _resources(spec, options, task["resources"] or {}),
        "workdir": task["workdir"],
        "envs": envs or None,
        "secrets": dict.fromkeys(secrets_of(program)) or None,
        "file_mounts": dict(options.file_mounts) or None,
        "setup": task["setup"],
        "run": task["run"],
    }
    return to_yaml({key: value for key, value in keys.items() if value is not None})


def _resources(spec: JobSpec, options: SkyPilot, node: dict[str, str]) -> dict[str, Any]:
    recovery = {
        "strategy": options.recovery.upper(),
        "max_restarts_on_errors": spec.max_restarts or None,
    }
    wanted: dict[str, Any] = {
        **node,
        "instance_type": options.instance_type,
        "use_spot": options.use_spot or None,
        "max_hourly_cost": options.max_hourly_cost,
        "image_id": options.image,
        "disk_size": options.disk_size,
        "priority": _PER_PRIORITY * (spec.priority - _MIDDLE) or None,
        "job_recovery": {key: value for key, value in recovery.items() if value is not None},
        **_places(options),
    }
    return {key: value for key, value in wanted.items() if value is not None}


def _places(options: SkyPilot) -> dict[str, Any]:
    if len(options.infra) < 2:
        return {"infra": next(iter(options.infra), None)}
    return {"ordered" if options.ordered else "any_of": [{"infra": place} for place in options.infra]}
