"""Public job files by their facts: each is written anew with the fields that it has, read, and read again as written.

`data/public_jobs.jsonl` has a line for each file: where it is, when it was read, the fields that it has (`written`) and
what they mean (`means`), which another reader worked out than that of Trainworks, or why it is no run (`refused`).
Commands, values of variables, names of people and comments of the files are not in it, and variables of templates are
`filled` in. `zpoint/skypilot` is a copy of `skypilot-org/skypilot`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainworks.api.run_request import job_in_format, read_run_file
from trainworks.backends.slurm.render import render
from trainworks.config.run_description import KINDS, parse_tasks
from trainworks.config.run_file import RunFile
from trainworks.config.slurm.sbatch import BatchSource, parse_batch_script
from trainworks.config.source import Source
from trainworks.errors import RunFileError, UsageError
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.spec_of_run import spec_of
from trainworks.record.run_dir import RunDir

Facts = Mapping[str, Any]
LINES = (Path(__file__).parent / "data/public_jobs.jsonl").read_text(encoding="utf-8").splitlines()
FILES: list[Facts] = [json.loads(line) for line in LINES]
READ = [file for file in FILES if "means" in file]


def name_of(file: Facts) -> str:
    return f"{file['repository']}/{file['path']}"


def kept(values: Facts) -> dict[str, Any]:
    """The fields that a file has."""
    return {key: value for key, value in values.items() if value not in (None, [], {}, False)}


def batch_script(written: Facts) -> str:
    options = (f"#SBATCH --{name}" + (f'="{value}"' if value else "") for name, value in written.items())
    return "\n".join(["#!/bin/bash", *options, "true", ""])


def task(written: Facts) -> str:
    names = {key: dict.fromkeys(written.get(key, ()), "1") for key in ("envs", "secrets")}
    mounts = dict.fromkeys(written.get("file_mounts", ()), "s3://bucket")
    return yaml.safe_dump({**written, "run": "true"} | kept({**names, "file_mounts": mounts}), sort_keys=False)


def job_group(written: Facts) -> str:
    return "---\n".join([yaml.safe_dump(written["header"], sort_keys=False), *map(task, written["tasks"])])


def pod(group: Facts) -> Facts:
    texts = [{"name": name, "value": "1"} for name in group.get("envs", ())]
    field = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container = {
        "name": "main",
        "image": group.get("image"),
        "command": ["run", group["command"]] if "command" in group else None,
        "args": ["more"] if group.get("args") else None,
        "env": texts + [{"name": name} | field for name in group.get("references", ())],
        "resources": kept({part: group.get(part) for part in ("requests", "limits")}),
        "workingDir": group.get("workdir"),
    }
    spec = {
        "containers": [kept(container)],
        "nodeSelector": group.get("selector"),
        "priorityClassName": group.get("priority"),
        "terminationGracePeriodSeconds": group.get("grace"),
    }
    return {"spec": kept(spec)}


def of_group(group: Facts) -> dict[str, Any]:
    """The `spec` of a Job."""
    names = {"pods": "parallelism", "completions": "completions", "mode": "completionMode", "backoff": "backoffLimit"}
    names |= {"deadline": "activeDeadlineSeconds", "ttl": "ttlSecondsAfterFinished", "suspend": "suspend"}
    return {key: group[name] for name, key in names.items() if name in group} | {"template": pod(group)}


def specification(kind: str, written: Facts) -> dict[str, Any]:
    """The `spec` of a manifest."""
    groups = written["groups"]
    if kind == "Job":
        return of_group(groups[0])
    if kind == "JobSet":
        replicated = [
            {"name": one["name"], "replicas": one.get("replicas", 1), "template": {"spec": of_group(one)}}
            | kept({"dependsOn": [{"name": name, "status": status} for name, status in one.get("after", ())]})
            for one in groups
        ]
        policy = {"maxRestarts": written["restarts"]} if "restarts" in written else None
        success = {"operator": "All", "targetReplicatedJobs": written["deciding"]} if "deciding" in written else None
        spec = {"failurePolicy": policy, "successPolicy": success, "ttlSecondsAfterFinished": written.get("ttl")}
        return kept(spec | {"volumeClaimPolicies": written.get("claims")}) | {"replicatedJobs": replicated}
    if kind == "PyTorchJob":
        replicas = {one["name"]: {"replicas": one["pods"], "template": pod(one)} for one in groups}
        policy = {"backoffLimit": written.get("restarts"), "activeDeadlineSeconds": written.get("deadline")}
        spec = {
            "nprocPerNode": written.get("nproc"),
            "elasticPolicy": written.get("elastic"),
            "runPolicy": kept(policy),
        }
        return kept(spec) | {"pytorchReplicaSpecs": replicas}
    if kind == "LeaderWorkerSet":
        templates = {f"{one['name']}Template": pod(one) for one in groups}
        claims: dict[str, Any] = {"volumeClaimTemplates": [{}] if written.get("claims") else None}
        group = {"size": written["size"], **templates, **kept(claims)}
        return {"replicas": written["replicas"], "leaderWorkerTemplate": group}
    container = dict(pod(groups[0])["spec"]["containers"][0])
    same = kept({key: container.get(key) for key in ("image", "command", "args", "env")})
    trainer = {"numNodes": groups[0]["pods"], "resourcesPerNode": container.get("resources"), **same}
    spec = {"suspend": written.get("suspend"), "initializer": written.get("initializer")}
    numbers = {"numProcPerNode": written.get("nproc")}
    return kept(spec) | {"runtimeRef": {"name": written["runtime"]}, "trainer": kept(trainer | numbers)}


def manifest(kind: str, written: Facts) -> str:
    labels = {"kueue.x-k8s.io/queue-name": "queue", "kueue.x-k8s.io/priority-class": "queue_priority"}
    metadata = {key: written.get(key) for key in ("name", "namespace")}
    metadata |= {"labels": kept({label: written.get(key) for label, key in labels.items()})}
    spec = specification(kind, written)
    return yaml.safe_dump({"apiVersion": KINDS[kind], "kind": kind, "metadata": kept(metadata), "spec": spec})


def text_of(file: Facts) -> str:
    """A file with the fields of a public one, and nothing else of it."""
    writers = {"batch script": batch_script, "task": task, "job group": job_group}
    kind, written = file["kind"], file["written"]
    return writers[kind](written) if kind in writers else manifest(kind, written)


def read(text: str) -> tuple[RunFile, Source]:
    return parse_batch_script(text, name="a.sbatch") if text.startswith("#!") else parse_tasks(text, name="a.yaml")[0]


def node_of(run_file: RunFile) -> dict[str, Any]:
    """What a node of a job has."""
    resources, cluster = run_file.resources, run_file.cluster
    patched = cluster.kubernetes.patch.get("spec", {}).get("containers", [{}])[0].get("env", [])
    names = sorted({*run_file.envs, *(one["name"] for one in patched)})
    return kept({
        "accelerators": [str(one) for one in (resources and resources.accelerators) or ()],
        "devices": dict(cluster.kubernetes.devices),
        "cores": resources and resources.cpus,
        "memory_bytes": resources and resources.memory_bytes,
        "image": cluster.kubernetes.image,
        "envs": [name for name in names if not name.startswith(("PET_", "LWS_"))],
    })  # fmt: skip


def rented(role: RunFile) -> dict[str, Any]:
    """What SkyPilot gives the nodes of a role besides."""
    options = role.cluster.skypilot
    return kept({
        "image": (options.image or "").removeprefix("docker:") or None,
        "handed_on": sorted({*options.resources, *options.task}),
        "mounts": sorted({*options.file_mounts, *options.mounts}),
    })  # fmt: skip


def meaning(run_file: RunFile, source: Source) -> dict[str, Any]:
    """What a file is read as."""
    cluster, job = run_file.cluster, run_file.job
    slurm, kubernetes, skypilot = cluster.slurm, cluster.kubernetes, cluster.skypilot
    roles = {
        name: {"nodes": role.nodes} | node_of(own) | rented(own) | kept({"serves": not role.decides})
        for name, role in run_file.roles.items()
        if (own := run_file.of_role(name))
    }
    after = {name: list(role.depends_on) for name, role in run_file.roles.items() if role.depends_on}
    per_node = cluster.processes_per_node
    found = {
        "nodes": run_file.nodes,
        "min_nodes": job.min_nodes,
        "tasks_per_node": per_node if isinstance(per_node, int) and per_node > 1 else None,
        "time_s": job.time_limit,
        "restarts": run_file.max_restarts or None,
        "nproc": run_file.envs.get("PET_NPROC_PER_NODE") if run_file.envs.get("PET_NPROC_PER_NODE") != "auto" else None,
        **{name: getattr(slurm, name) for name in ("partition", "account", "qos", "constraint", "reservation")},
        "passed_on": sorted({option[2:].partition("=")[0] for option in slurm.options}),
        "container": slurm.container.image if slurm.container else None,
        "array": source.array if isinstance(source, BatchSource) else None,
        **{name: getattr(kubernetes, name) for name in ("queue", "queue_priority", "priority_class", "keep")},
        "namespace": kubernetes.namespace if kubernetes.namespace != "default" else None,
        "selector": dict(kubernetes.node_selector),
        "workdir": run_file.workdir,
        **{name: getattr(skypilot, name) for name in ("use_spot", "disk_size", "instance_type")},
        "place": skypilot.infra[0] if skypilot.infra else None,
        "image_of_nodes": None if roles else skypilot.image,  # of roles it is among theirs
        "handed_on": sorted({*skypilot.resources, *skypilot.task}),
        "mounts": sorted({*skypilot.file_mounts, *skypilot.mounts}),
        "secrets": sorted(skypilot.secrets),
        "roles": roles,
        "after": after,
    }
    return kept(found) | ({} if roles else node_of(run_file))


def test_the_files_are_of_every_kind() -> None:
    kinds = [file["kind"] for file in FILES]
    assert len(FILES) >= 150 and {*KINDS, "task", "job group", "batch script"} == set(kinds)
    assert len({name_of(file) for file in FILES}) == len(FILES)


@pytest.mark.parametrize("file", READ, ids=name_of)
def test_a_file_is_read_as_what_it_means(file: Facts) -> None:
    assert meaning(*read(text_of(file))) == file["means"]


@pytest.mark.parametrize("file", [file for file in FILES if "refused" in file], ids=name_of)
def test_what_is_no_run_is_refused_for_its_own_reason(file: Facts) -> None:
    with pytest.raises(RunFileError) as refused:
        read(text_of(file))
    assert any(file["refused"] in problem.message for problem in refused.value.problems)


def of_job(spec: JobSpec) -> tuple[Any, ...]:
    """What Slurm is asked for; memory in whole MiB and time in whole minutes, as its options have them."""
    node = spec.node
    memory = -(-node.memory_bytes // 2**20) if node.memory_bytes else None
    amounts = (node.accelerators, node.accelerator, node.cores, memory)
    minutes = None if spec.time_limit_s is None else math.ceil(spec.time_limit_s / 60)
    return spec.min_nodes, spec.max_nodes, spec.tasks_per_node, minutes, amounts


@pytest.mark.parametrize("file", [file for file in READ if file["kind"] == "batch script"], ids=name_of)
def test_the_script_that_is_submitted_asks_for_the_same(file: Facts) -> None:
    run_file, _ = read(text_of(file))
    spec = spec_of(run_file, run_id="r", working_folder="/")
    options = run_file.cluster.slurm
    again, _ = read(render(spec, options, RunDir(Path("/r")), python="python3"))
    assert of_job(spec_of(again, run_id="r", working_folder="/")) == of_job(spec)
    for name in ("partition", "account", "qos", "constraint", "reservation"):
        assert getattr(again.cluster.slurm, name) == getattr(options, name)
    assert {option.partition("=")[0] for option in options.options} <= set(said(again)) | _READ_AGAIN


_READ_AGAIN = {"--signal", "--requeue", "--ntasks", "--gpus-per-node", "--mem", "--open-mode"}
"""Options that a batch script of Trainworks has in its own words."""


def said(run_file: RunFile) -> Iterator[str]:
    """Names of the options that are passed on to sbatch."""
    return (option.partition("=")[0] for option in run_file.cluster.slurm.options)


OF_KUBERNETES = {
    **{name: (f"kubernetes.{name}",) for name in ("devices", "image", "namespace", "queue", "queue_priority", "keep")},
    "priority_class": ("kubernetes.priority_class",),
    "selector": ("kubernetes.node_selector",),
}
OF_SKYPILOT = {
    **{name: (f"skypilot.{name}",) for name in ("use_spot", "disk_size", "instance_type")},
    "place": ("skypilot.infra",),
    "image_of_nodes": ("skypilot.image",),
    "handed_on": ("skypilot.resources", "skypilot.task"),
    "mounts": ("skypilot.file_mounts", "skypilot.mounts"),
    "secrets": (),  # kept otherwise
}
LOST: dict[str, dict[str, tuple[str, ...]]] = {
    "jobset": OF_SKYPILOT,
    "trainjob": OF_SKYPILOT,
    "skypilot": OF_KUBERNETES,
    "run-file": {},
}
"""Fields that another format has no place for, and the options that a comment of its text names for each."""
REFUSED = {
    "recover.max_restarts": "restarts",
    "job.time_limit": "time_s",
    "cluster.kubernetes.priority_class": "priority_class",
    "cluster.kubernetes.keep": "keep",
    "workdir": "workdir",
    "support `roles`": "roles",
    "accelerator type": "accelerators",
    "cluster.kubernetes.patch": "nodes",  # of which a file says no more here
    "depends on one other": "after",
    "starts all roles at once": "after",
    "unknown accelerator": "accelerators",
    "unknown TPU": "accelerators",
}
"""What an error names, and the field of the file that it is about."""


def on_kubernetes(means: Facts) -> dict[str, Any]:
    """What a job means there: whole accelerators of its first choice, and a core for a node that requests neither."""
    roles = {"roles": {name: on_kubernetes(role) for name, role in means.get("roles", {}).items()}}
    first = re.sub(r":0\..*", ":1", means["accelerators"][0]) if "accelerators" in means else None
    needs_core = not {"accelerators", "cores", "roles"} & means.keys()
    return {**means, **kept({**roles, "accelerators": [first] if first else None, "cores": needs_core * 1.0 or None})}


FORMATS = dict.fromkeys(KINDS, ("jobset", "trainjob", "skypilot", "run-file")) | {
    "task": ("jobset", "skypilot"),
    "job group": ("skypilot", "run-file"),
}


@pytest.mark.parametrize(
    ("file", "language"),
    [pytest.param(file, one, id=f"{name_of(file)}-{one}") for file in READ for one in FORMATS.get(file["kind"], ())],
)
def test_a_job_in_another_format_is_read_back_as_the_same(file: Facts, language: str) -> None:
    means, text = file["means"], text_of(file)
    if language in ("jobset", "trainjob"):
        means = on_kubernetes(means)
        if file["kind"] == "task":
            text += "cluster: {engine: kubernetes, kubernetes: {image: registry/train}}\n"
            means |= {"image": "registry/train"}
    try:
        again = job_in_format(read_run_file(text), language)
    except UsageError as error:
        (field,) = [field for words, field in REFUSED.items() if words in error.message]
        assert field in means
        return
    lost = LOST[language]
    assert meaning(*read(again)) == {key: value for key, value in means.items() if key not in lost}
    for options in filter(None, (lost.get(key) for key in means)):
        assert any(f"# `cluster.{option}` is not kept" in again for option in options)
