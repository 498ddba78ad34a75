"""The writer of SkyPilot tasks: exported ones, which read back as the same run file, and managed jobs.

Source: the task YAML of SkyPilot 0.14.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainworks.config.autoscale import Autoscale
from trainworks.config.command import AnyOf, AtLeast, Resources, amount_text, split_mig
from trainworks.config.engines import SkyPilot
from trainworks.config.manifests.reading import drop_none
from trainworks.errors import UsageError
from trainworks.jobs.formats import elastic
from trainworks.jobs.formats.manifest import ascii_name, to_yaml
from trainworks.jobs.formats.shell import check_exportable, node_program
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.program import Program
from trainworks.record.exit_code import ExitCode

_LANGUAGE = "a SkyPilot task"
_SET_BY_SKYPILOT = frozenset(("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NUM_GPUS_PER_NODE"))
_DEFAULT_PRIORITY = 50
_PRIORITY_SCALE = 20
"""SkyPilot's priorities range from -1000 to 1000."""


def render(spec: JobSpec, program: Program, options: SkyPilot | None = None, autoscale: Autoscale | None = None) -> str:
    """Render the task, with what a task that was read had beside; `autoscale` sets SkyPilot's autostop.

    Raises:
        UsageError: the job needs something that a task cannot express.
    """
    unsupported = {
        "job.priority": spec.priority != _DEFAULT_PRIORITY,
        "job.time_limit": spec.time_limit_s is not None,
        "job.exclude": bool(spec.exclude),
        "job.depends_on": bool(spec.depends_on),
        "job.hold": spec.hold,
        "job.min_nodes": spec.min_nodes != spec.max_nodes,
        "recover.max_restarts": spec.max_restarts > 0,
    }
    if field := next((name for name, is_set in unsupported.items() if is_set), None):
        raise UsageError(f"{_LANGUAGE} does not support `{field}`", hint=f"remove `{field}`")
    options = options or SkyPilot()
    resources = {
        **_node_resources(spec, program),
        **_rented(options),
        **options.resources,
        **elastic.autostop(autoscale),
    }
    return _render(spec, program, ascii_name(spec.name), resources, options, options.secrets)


def render_managed_job(spec: JobSpec, program: Program, options: SkyPilot, name: str) -> str:
    """Render the task of a managed job: where it may run, and how it recovers when its nodes are preempted.

    Raises:
        UsageError: the job needs something that SkyPilot cannot do.
    """
    if options.use_spot and not spec.preemptible:
        raise UsageError(
            "`cluster.skypilot.use_spot` rents preemptible nodes, but `job.preemptible` is false",
            hint="remove `use_spot`, or `job.preemptible`",
        )
    # a workload starts its ranks again itself, and ends so only to get other nodes
    restarts = (
        {"recover_on_exit_codes": [int(ExitCode.PEER_LOST)]}
        if program.is_workload
        else {"max_restarts_on_errors": spec.max_restarts or None}
    )
    recovery = {"strategy": options.recovery.upper(), **restarts}
    resources = {
        **_node_resources(spec, program),
        **_rented(options),
        "priority": _PRIORITY_SCALE * (spec.priority - _DEFAULT_PRIORITY) or None,
        "job_recovery": drop_none(recovery),
        **options.resources,
    }
    return _render(spec, program, name, resources, options, (*options.secrets, *secret_names(program)))


def secret_names(program: Program) -> list[str]:
    """Variables without a value: SkyPilot reads them from the shell and hides them."""
    return [name for name, value in program.envs.items() if value is None]


def _render(
    spec: JobSpec,
    program: Program,
    name: str,
    resources: Mapping[str, object],
    options: SkyPilot,
    secrets: Iterable[str],
) -> str:
    hidden = [name for name in dict.fromkeys(secrets) if name in program.envs]
    task: dict[str, object] = {
        "name": name,
        "num_nodes": spec.max_nodes,
        "resources": drop_none(resources) or None,
        "workdir": program.working_folder,
        "envs": {name: value for name, value in program.envs.items() if name not in hidden} or None,
        "secrets": {name: program.envs[name] for name in hidden} or None,
        "file_mounts": {**options.file_mounts, **options.mounts} or None,
        **options.task,
        "setup": program.setup,
        "run": _run_script(spec, program),
    }
    return to_yaml(drop_none(task))


def _node_resources(spec: JobSpec, program: Program) -> Mapping[str, object]:
    """Resources of one node as the run file has them, or lower limits for what it leaves to the number of ranks."""
    check_exportable(program, _LANGUAGE)
    node, written = spec.node, program.resources or Resources()
    if node.accelerators and node.accelerator is None:
        raise UsageError(f"{_LANGUAGE} needs the accelerator type", hint="write it like `H100:8`")
    cores = written.cpus or (AtLeast(node.cores) if node.cores and node.cores > 1 else None)
    memory = written.memory or (AtLeast(node.memory_bytes / 1e9) if node.memory_bytes else None)
    return {
        "accelerators": _accelerators(node, written),
        "cpus": amount_text(cores) if cores else None,
        "memory": amount_text(memory) if memory else None,
    }


def _accelerators(node: NodeResources, written: Resources) -> Any:
    """One kind, a list in the order of preference, or a mapping of which any will do."""
    from trainworks.catalog.prices import skypilot_name  # noqa: PLC0415  # the catalogue takes a tenth of a second

    derived = [f"{node.accelerator}:{node.accelerators}"] if node.accelerators else []
    kinds: Sequence[object] = written.accelerators or derived
    if parts := [str(kind) for kind in kinds if split_mig(str(kind))[1]]:
        hint = "request whole accelerators, or a share of one that jobs of a cluster divide, like `A100:0.5`"
        raise UsageError(f"{_LANGUAGE} has no parts by MIG, got `{parts[0]}`", hint=hint)
    named = [str(kind).rpartition(":") for kind in kinds]
    texts = [f"{skypilot_name(name)}:{count}" for name, _, count in named]
    if len(texts) < 2:
        return next(iter(texts), None)
    return dict.fromkeys(texts) if isinstance(kinds, AnyOf) else texts


def _rented(options: SkyPilot) -> Mapping[str, object]:
    places: dict[str, object] = {"infra": next(iter(options.infra), None)}
    if len(options.infra) > 1:
        places = {"ordered" if options.ordered else "any_of": [{"infra": place} for place in options.infra]}
    return {
        "instance_type": options.instance_type,
        "use_spot": options.use_spot or None,
        "max_hourly_cost": options.max_hourly_cost,
        "image_id": options.image,
        "disk_size": options.disk_size,
        **places,
    }


def _run_script(spec: JobSpec, program: Program) -> str:
    """Bash that runs once per node; a script that starts per node anyway stays as it is."""
    if program.starts == "per_node" and program.framework is None and program.script is not None:
        return program.script
    program = dataclasses.replace(program, setup=None)  # SkyPilot runs it
    lines = [
        "set -euo pipefail",
        "export NODE_RANK=$SKYPILOT_NODE_RANK",
        'export MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)',
        node_program(program, spec, addresses=None, known=_SET_BY_SKYPILOT),
    ]
    return "\n".join(lines)
