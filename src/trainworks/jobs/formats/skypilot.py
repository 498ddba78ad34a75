"""The writer of SkyPilot tasks: exported ones, which read back as the same run file, and managed jobs.

A job with roles is a job group: a header, and a task for each role, which all start together. SkyPilot gives its nodes
the names `ROLE-INDEX.GROUP`, on Kubernetes alone. Source: the task YAML and the job groups of SkyPilot 0.14.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trainworks.config.autoscale import Autoscale
from trainworks.config.command import AnyOf, AtLeast, Resources, amount_text, split_mig
from trainworks.config.engines import SkyPilot
from trainworks.config.manifests.reading import drop_none
from trainworks.config.skypilot_task import ROLE_INDEX
from trainworks.errors import UsageError
from trainworks.jobs.environment import role_variable, variables_of_roles
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
    if spec.roles:

        def task(role: JobSpec, own: Program, rented: SkyPilot, name: str) -> dict[str, object]:
            restarts = {"max_restarts_on_errors": role.max_restarts} if role.max_restarts else {}
            return _task(role, own, name, _resources(role, own, rented, {"job_recovery": restarts}), rented)

        return _group(spec, program, options, re.sub("[^A-Za-z0-9_-]", "-", ascii_name(spec.name)), task)
    resources = {**_resources(spec, program, options, {}), **elastic.autostop(autoscale)}
    return to_yaml(_task(spec, program, ascii_name(spec.name), resources, options))


def render_managed_job(spec: JobSpec, program: Program, options: SkyPilot, name: str) -> str:
    """Render the task of a managed job: where it may run, and how it recovers when its nodes are preempted.

    Raises:
        UsageError: the job needs something that SkyPilot cannot do.
    """
    if spec.roles:
        connected = options.model_copy(update={"group": {"inter_connection": True} | options.group})
        _check_connected(program, connected)
        return _group(spec, program, connected, name, _managed_task)
    return to_yaml(_managed_task(spec, program, options, name))


def _managed_task(spec: JobSpec, program: Program, options: SkyPilot, name: str) -> dict[str, object]:
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
    recovery = drop_none({"strategy": options.recovery.upper(), **restarts})
    priority = _PRIORITY_SCALE * (spec.priority - _DEFAULT_PRIORITY) or None
    resources = _resources(spec, program, options, {"priority": priority, "job_recovery": recovery})
    return _task(spec, program, name, resources, options, secret_names(program))


def secret_names(program: Program) -> list[str]:
    """Variables without a value, of all roles: SkyPilot reads them from the shell and hides them."""
    programs = program.roles.values() or [program]
    return list(dict.fromkeys(name for one in programs for name, value in one.envs.items() if value is None))


_KUBERNETES = ("k8s", "kubernetes")
_Task = Callable[[JobSpec, Program, SkyPilot, str], dict[str, object]]


def _group(spec: JobSpec, program: Program, options: SkyPilot, name: str, task_of: _Task) -> str:
    """A job group: its header and the task of each role.

    Raises:
        UsageError: the roles need something that a job group cannot do.
    """
    if waiting := next((role for role in spec.roles if role.depends_on), None):
        message = f"a job group of SkyPilot starts all roles at once, and `{waiting.name}` depends on another"
        raise UsageError(message, hint=f"remove `roles.{waiting.name}.depends_on`, and let its command wait")
    if spec.max_restarts:
        hint = "set `roles.NAME.restarts` instead: SkyPilot starts each role again by itself"
        raise UsageError("a job group of SkyPilot does not support `recover.max_restarts`", hint=hint)
    deciding = [role.name for role in spec.roles if role.decides]
    hosts = {role.name: [f"{role.name}-{node}.{name}" for node in range(role.nodes)] for role in spec.roles}
    known = variables_of_roles(hosts)
    without = set(map(role_variable, hosts)) if options.group.get("inter_connection") is False else set()
    primary = {"primary_tasks": deciding} if len(deciding) < len(spec.roles) else {}
    documents: list[Mapping[str, object]] = [{"name": name, "execution": "parallel", **primary, **options.group}]
    for role in spec.roles:
        program_of_role = program.roles[role.name]
        variables = {key: value for key, value in known[role.name].items() if key not in without}
        own = dataclasses.replace(program_of_role, envs={**program_of_role.envs, **variables})
        one = dataclasses.replace(
            spec, min_nodes=role.nodes, max_nodes=role.nodes, node=role.node, roles=(), max_restarts=role.restarts
        )
        task = task_of(one, own, own.skypilot or options, role.name)
        documents.append({**task, "run": f"{ROLE_INDEX}{task['run']}"})
    return "---\n".join(map(to_yaml, documents))


def _check_connected(program: Program, options: SkyPilot) -> None:
    """Refuse roles that could not find each other: SkyPilot names the nodes of a group on Kubernetes alone."""
    if options.group["inter_connection"] is False:
        return
    for role, own in program.roles.items():
        places = (own.skypilot or options).infra
        if places and not any(place.partition("/")[0].lower() in _KUBERNETES for place in places):
            raise UsageError(
                f"SkyPilot connects roles on Kubernetes alone, and `infra` of `{role}` is {', '.join(places)}",
                hint="set `infra: [k8s]`; if no role calls another, `skypilot.group: {inter_connection: false}`",
            )


def _resources(
    spec: JobSpec, program: Program, options: SkyPilot, of_job: Mapping[str, object]
) -> Mapping[str, object]:
    """`resources` of a task; where its options have a `job_recovery`, too, their keys count."""
    recovery, written = of_job.get("job_recovery"), options.resources.get("job_recovery")
    both = {**recovery, **written} if isinstance(recovery, dict) and isinstance(written, dict) else written or recovery
    own = {**_node_resources(spec, program), **_rented(options), **of_job, **options.resources}
    return own | {"job_recovery": both or None}


def _task(
    spec: JobSpec,
    program: Program,
    name: str,
    resources: Mapping[str, object],
    options: SkyPilot,
    secrets: Iterable[str] = (),
) -> dict[str, object]:
    """A task; `secrets` are hidden besides those of the options."""
    hidden = [name for name in dict.fromkeys((*options.secrets, *secrets)) if name in program.envs]
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
    return drop_none(task)


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
