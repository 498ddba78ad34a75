"""A TrainJob as a run file: its `trainer`, on the pods of its runtime with the patches of the job.

Trainworks does not read the runtime of the cluster, so the image and the command must be in the job.

Source: Kubeflow Trainer's API `trainer.kubeflow.org/v1alpha1` (2.3), with `podTemplateOverrides` of 2.1.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from trainworks.config.manifests.jobset import hold
from trainworks.config.manifests.own_job import OwnJob
from trainworks.config.manifests.pod import PodPlace, read_template
from trainworks.config.manifests.reading import Handler, ManifestReading, at, time_limit
from trainworks.config.pod_patch import POD_CONTAINER, patched
from trainworks.config.source import FieldPath

_OTHER_LAUNCHERS = ("mpi", "mlx", "flux", "deepspeed", "xgboost")
"""Runtimes whose own launcher starts the ranks."""


def read_trainjob(reading: ManifestReading, spec: Any, key: FieldPath, own: OwnJob) -> None:
    """Read the `spec` of a TrainJob."""
    on_objects = "it is about the objects of Kubeflow"
    handlers: dict[str, Handler] = {
        "runtimeRef": partial(_runtime, reading),
        "trainer": None,
        "suspend": partial(hold, reading),
        "activeDeadlineSeconds": partial(time_limit, reading),
        "runtimePatches": None,
        **dict.fromkeys(("podTemplateOverrides", "podSpecOverrides"), None),
        "managedBy": "JobSet's controller runs the job",
        "labels": on_objects,
        "annotations": on_objects,
        "initializer": lambda _, place: reading.refuse(
            place, "Trainworks downloads no data and no model before a job", "download them in the command"
        ),
    }
    reading.each(spec, key, handlers)
    trainer, place = at(spec, "trainer"), (*key, "trainer")
    if trainer is None:
        reading.refuse(key, "there is no `trainer`", "add `trainer` with `image` and `command`")
        return
    for name in ("image", "command"):
        if not at(trainer, name):
            message = f"`{name}` is that of the runtime, and Trainworks does not read the runtimes of a cluster"
            reading.refuse(place, message, f"set `trainer.{name}`")
    _read_trainer(reading, trainer, place, spec, key, own)


def _runtime(reading: ManifestReading, reference: Any, key: FieldPath) -> None:
    name = str(at(reference, "name"))
    if launcher := next((one for one in _OTHER_LAUNCHERS if one in name), None):
        message = (
            f"the runtime `{name}` starts the ranks with a launcher of {launcher}, which Trainworks does not provide"
        )
        reading.refuse((*key, "name"), message, "use a runtime of torch or jax")
    elif "jax" in name:
        reading.put(("framework",), "jax", (*key, "name"))
    elif "torch" not in name:
        reading.note((*key, "name"), "the nodes get the variables of torchrun, and nothing of this runtime")


def _read_trainer(
    reading: ManifestReading, trainer: Any, key: FieldPath, spec: Any, at_spec: FieldPath, own: OwnJob
) -> None:
    envs = {} if own.run or reading.data.get("framework") == "jax" else {"PET_NPROC_PER_NODE": "auto"}

    def processes(value: Any, _: FieldPath) -> None:
        if envs:
            envs["PET_NPROC_PER_NODE"] = str(value)

    def nodes(value: Any, place: FieldPath) -> None:
        reading.put(("num_nodes",), value, place)

    same = dict.fromkeys(("image", "command", "args", "env", "resourcesPerNode"))
    reading.put(("num_nodes",), 1, key)
    reading.each(trainer, key, {**same, "numNodes": nodes, "numProcPerNode": processes})
    names = {"resourcesPerNode": "resources"}
    container = {names.get(name, name): trainer[name] for name in same if isinstance(trainer, dict) and name in trainer}
    template: dict[str, Any] = {"spec": {"containers": [{"name": POD_CONTAINER, **container}]}}
    at_container = (*key, "spec", "containers", 0)
    reading.source.renamed = [((*at_container, "resources"), (*key, "resourcesPerNode")), (at_container, key)]
    for patch, place in _patches(reading, spec, at_spec):
        if "containers" in reading.mapping(at(patch, "spec"), (*place, "spec")):
            others = [one for one in patch["spec"]["containers"] or [] if at(one, "name") != POD_CONTAINER]
            if others or not all(isinstance(one, dict) for one in patch["spec"]["containers"]):
                reading.refuse((*place, "spec", "containers"), f"only the container `{POD_CONTAINER}` trains")
                continue
        template = patched(template, patch)
        reading.source.renamed += [((*key, part), (*place, part)) for part in ("spec", "metadata")]
    if at(trainer, "command") and at(trainer, "image"):
        read_template(reading, template, key, PodPlace(own=own, envs=envs))


def _patches(reading: ManifestReading, spec: Any, key: FieldPath) -> list[tuple[dict[str, Any], FieldPath]]:
    """Patches of the template of the pods that train, each with its place."""
    found: list[tuple[dict[str, Any], FieldPath]] = []
    for patch, place in reading.entries(at(spec, "runtimePatches"), (*key, "runtimePatches")):
        inner = (*place, "trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        if at(patch, "trainingRuntimeSpec", "template", "metadata") is not None:
            reading.note((*inner[:-2], "metadata"), "it is about the JobSet of Kubeflow")
        jobs = at(patch, "trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        for job, at_job in reading.entries(jobs, inner):
            template = at(job, "template", "spec", "template")
            found += _for_nodes(reading, job.get("name"), template, (*at_job, "template", "spec", "template"))
    for name in ("podTemplateOverrides", "podSpecOverrides"):
        for override, place in reading.entries(at(spec, name), (*key, name)):
            targets = [at(one, "name") for one, _ in reading.entries(override.pop("targetJobs", None), place)]
            template = override if name == "podTemplateOverrides" else {"spec": override}
            found += _for_nodes(reading, POD_CONTAINER if POD_CONTAINER in targets else targets, template, place)
    return found


def _for_nodes(
    reading: ManifestReading, job: Any, template: Any, place: FieldPath
) -> list[tuple[dict[str, Any], FieldPath]]:
    if job != POD_CONTAINER:
        reading.note(place, f"it is about pods other than `{POD_CONTAINER}`")
        return []
    return [(dict(template), place)] if isinstance(template, dict) else []
