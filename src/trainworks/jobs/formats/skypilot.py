"""A job as a task of SkyPilot, in its own words alone; a run file that is such a task comes back as it was.

Source: the task YAML of SkyPilot 0.14.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from trainworks.config.autoscale import Autoscale
from trainworks.errors import UsageError
from trainworks.jobs.formats import elastic
from trainworks.jobs.formats.manifest import to_yaml, without_nothing
from trainworks.jobs.formats.shell import check_can_leave, node_program
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.program import Program

__all__ = ["render", "task"]

_LANGUAGE = "a SkyPilot task"
_SET_BY_SKYPILOT = frozenset(("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NUM_GPUS_PER_NODE"))


def render(spec: JobSpec, program: Program, autoscale: Autoscale | None = None) -> str:
    """The task; its machines go by SkyPilot's own autostop where `autoscale` says after which time.

    Raises:
        UsageError: the job asks for something that a task cannot say.
    """
    _check(spec)
    return to_yaml(without_nothing(task(spec, program, autoscale)))


def task(spec: JobSpec, program: Program, autoscale: Autoscale | None = None) -> dict[str, Any]:
    """The keys of a task, in their order; None for one that says nothing.

    Raises:
        UsageError: no task can start this program, or say what its nodes must have.
    """
    check_can_leave(program, _LANGUAGE)
    if spec.node.accelerators and spec.node.accelerator is None:
        raise UsageError(f"{_LANGUAGE} names the kind of its accelerators", hint="write it like `H100:8`")
    return {
        "name": spec.name,
        "num_nodes": spec.max_nodes,
        "resources": {**_resources(spec.node), **elastic.autostop(autoscale)} or None,
        "workdir": program.working_folder,
        "envs": dict(program.envs) or None,
        "setup": program.setup,
        "run": _run(spec, program),
    }


def _check(spec: JobSpec) -> None:
    wishes = {
        "job.priority": spec.priority != 50,
        "job.time_limit": spec.time_limit_s is not None,
        "job.exclude": bool(spec.exclude),
        "job.depends_on": bool(spec.depends_on),
        "job.hold": spec.hold,
        "job.min_nodes": spec.min_nodes != spec.max_nodes,
        "recover.max_restarts": spec.max_restarts > 0,
    }
    wish = next((name for name, asked in wishes.items() if asked), None)
    if wish is not None:
        raise UsageError(f"{_LANGUAGE} has no `{wish}`", hint=f"leave `{wish}` out")


def _resources(node: NodeResources) -> dict[str, str]:
    """Lower limits, as those of a run file are."""
    wanted = {
        "accelerators": f"{node.accelerator}:{node.accelerators}" if node.accelerators else None,
        "cpus": f"{node.cores:g}+" if node.cores else None,
        "memory": f"{node.memory_bytes / 1e9:.9f}".rstrip("0").rstrip(".") + "+" if node.memory_bytes else None,
    }
    return without_nothing(wanted)


def _run(spec: JobSpec, program: Program) -> str:
    """SkyPilot starts a task once per node in plain bash; what starts so here too is left as it is."""
    if program.starts == "per_node" and program.framework is None and program.script is not None:
        return program.script
    text = node_program(
        dataclasses.replace(program, setup=None),  # SkyPilot sees to it
        spec,
        addresses=None,
        known=_SET_BY_SKYPILOT,
    )
    own = [
        "set -euo pipefail",
        "export NODE_RANK=$SKYPILOT_NODE_RANK",
        'export MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)',
    ]
    return "\n".join([*own, text])
