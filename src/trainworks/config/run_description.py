"""The one reader of every kind of file that describes runs.

| kind                           | recognised by                                    | tasks   |
|--------------------------------|--------------------------------------------------|---------|
| batch script of Slurm          | `.sbatch`, `.slurm`, or `#!` and `#SBATCH`       | one     |
| manifest of Kubernetes         | `apiVersion` and `kind`                          | one     |
| pipeline of SkyPilot           | several documents of YAML                        | several |
| job group of SkyPilot          | `execution: parallel` in the first of several    | one     |
| run file, or task of SkyPilot  | any other YAML                                   | one     |

Of a manifest, what the backend has a field for goes there, other fields of the pods into `cluster.kubernetes.patch`;
each key without effect is named, and what a run cannot be is refused.

Source: the task YAML of SkyPilot 0.14; the first document of a pipeline may be a header with its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainworks.config.load import (
    NO_SETTINGS,
    Settings,
    note_engine,
    parse_run_file,
    problems_of,
    with_settings,
)
from trainworks.config.manifests.job_group import HEADER, Task, is_job_group, read_job_group
from trainworks.config.manifests.kinds import read_job, read_jobset, read_pytorchjob, read_trainjob
from trainworks.config.manifests.leader_workers import read_leader_worker_set
from trainworks.config.manifests.own_job import JOB, SUBMITTED, OwnJob, own_job
from trainworks.config.manifests.pod import OWN_LABELS
from trainworks.config.manifests.reading import Handler, ManifestReading, ManifestSource, at
from trainworks.config.run_file import RunFile
from trainworks.config.slurm.sbatch import is_batch_script, load_batch_script
from trainworks.config.source import FieldPath, Source, read_text, split_documents
from trainworks.config.spec import name_from
from trainworks.errors import RunFileError, TrainworksError, UsageError


def is_run_description(text: str) -> bool:
    """Whether an argument is the path of a file that describes runs, and not a name."""
    return text.endswith((".yaml", ".yml")) or is_batch_script(Path(text))


def load_tasks(path: Path, settings: Settings = NO_SETTINGS) -> list[tuple[RunFile, Source]]:
    """Read and check a file of any kind, each task with the settings; the source of a batch script is a `BatchSource`.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: every problem in it, each with its line.
    """
    if is_batch_script(path):
        run_file, source = load_batch_script(path)
        return [(with_settings(run_file, settings, source), source)]
    text = read_text(path)
    if text.startswith("#!"):
        message = "a script that is neither a batch script nor a run file: no `#SBATCH` is before its first command"
        hint = f"write `run: bash {path.name}` into a run file, or start it: `trainworks run -- bash {path.name}`"
        raise RunFileError([UsageError(message, place=f"{path}:1", hint=hint)])
    return parse_tasks(text, name=str(path), settings=settings)


def parse_tasks(text: str, *, name: str, settings: Settings = NO_SETTINGS) -> list[tuple[RunFile, Source]]:
    """Check the text of a run file, of a manifest, of a job group or of a pipeline, whose tasks are in their order.

    Raises:
        RunFileError: every problem in it, each with its line.
    """
    parts = [] if is_manifest(text) else list(split_documents(text))
    if len(parts) < 2:
        return [(parse_run_file if parts else parse_manifest)(text, name=name, settings=settings)]
    sources = [Source(name, part) for part in parts]
    documents = [(source, found) for source in sources if (found := source.parse()) is not None]
    first = documents[0][1] if len(documents) > 1 else None
    if isinstance(first, dict) and is_job_group(first):
        return [_parse_job_group(documents[0], documents[1:], name=name, settings=settings)]
    header = documents[0] if isinstance(first, dict) and first.keys() <= set(HEADER) else None
    tasks = [source for source, _ in documents[1 if header else 0 :]]
    return _parse_pipeline(header, tasks or sources[:1], name=name, settings=settings)


def _parse_pipeline(
    header: Task | None, tasks: Sequence[Source], *, name: str, settings: Settings
) -> list[tuple[RunFile, Source]]:
    if header is not None:
        _check_order(*header)
    read, problems = list[tuple[RunFile, Source]](), list[TrainworksError]()
    for source in tasks:
        try:
            read.append(parse_run_file(source.text, name=name, settings=settings))
        except RunFileError as error:
            problems += error.problems
    if problems:
        raise RunFileError(problems)
    if any(run_file.workload is not None for run_file, _ in read) and len(read) > 1:
        raise RunFileError([UsageError("the tasks of a pipeline are commands", place=name, hint="give each a `run`")])
    if header is not None:
        places = [header[0].place((key,)) for key in header[1]]
        read[0][1].unused += [f"{place} has no effect: each task is a job with a name of its own" for place in places]
    return read


def _check_order(source: Source, header: Mapping[str, object]) -> None:
    """Refuse keys of a job group in the header of a pipeline."""
    others = [key for key in header if key not in ("name", "execution")]
    if header.get("execution", "serial") != "serial":
        message, key = f"`execution: {header['execution']}` is not known", "execution"
    elif others:
        message, key = f"`{others[0]}` is for a job group, whose tasks run at the same time", others[0]
    else:
        return
    hint = "write `execution: parallel` for a job group, and leave it out for a pipeline"
    raise RunFileError([UsageError(message, place=source.place((key,)), hint=hint)])


def _parse_job_group(
    header: Task, documents: list[tuple[Source, Any]], *, name: str, settings: Settings
) -> tuple[RunFile, Source]:
    """A job group as one run file with roles."""
    whole = Source(name, "")
    tasks = [(source, task) for source, task in documents if isinstance(task, dict)]
    data, moves, problems = read_job_group(header, tasks, whole)
    if problems:
        raise RunFileError(problems)
    data["name"] = name_from(data["name"])
    try:
        run_file = with_settings(RunFile.model_validate(data), settings, whole)
    except ValidationError as error:
        raise RunFileError(list(problems_of(error, data, whole))) from None
    note_engine(run_file, whole, moves)
    return run_file, whole


KINDS = {
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "Job": "batch/v1",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
    "PyTorchJob": "kubeflow.org/v1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
}
"""Version of the API that is read, by kind."""
_OWN_OBJECTS = "Trainworks labels its own objects"
_QUEUE_LABELS = {"kueue.x-k8s.io/queue-name": "queue", "kueue.x-k8s.io/priority-class": "queue_priority"}
"""Field of `cluster.kubernetes` by the label of Kueue."""
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"


def is_manifest(text: str) -> bool:
    """Recognise objects of Kubernetes by `apiVersion` and `kind`, which no run file has."""
    return all(re.search(rf"""^["']?{key}["']?[ \t]*:""", text, re.MULTILINE) for key in ("apiVersion", "kind"))


def parse_manifest(text: str, *, name: str, settings: Settings = NO_SETTINGS) -> tuple[RunFile, Source]:
    """Check the text of a manifest, with other values where there are settings.

    Raises:
        RunFileError: every problem in it, each with its line.
    """
    documents = [(source, source.parse()) for source in (ManifestSource(name, part) for part in split_documents(text))]
    objects = [(source, value) for source, value in documents if value is not None]
    jobs = [(source, value) for source, value in objects if at(value, "kind") in KINDS]
    # a Job beside the one that trains prepares something
    jobs = [(source, value) for source, value in jobs if value["kind"] != "Job"] or jobs
    if len(jobs) != 1:
        raise RunFileError([_not_one_job(jobs, objects, name)])
    source, manifest = jobs[0]
    if manifest.get("apiVersion") != KINDS[manifest["kind"]]:
        message = f"`{manifest['kind']}` of `{manifest.get('apiVersion')}` is not read"
        hint = f"write it for `{KINDS[manifest['kind']]}`"
        raise RunFileError([UsageError(message, place=source.place_of(("apiVersion",)), hint=hint)])
    for other, value in objects:
        if other is not source:
            place = other.place_of(("kind",))
            source.unused.append(f"{place}: `{at(value, 'kind')}` is not created: use `kubectl apply`")
    reading = ManifestReading(source)
    _read_metadata(reading, manifest.get("metadata"), Path(name).stem)
    own = own_job(reading.mapping(manifest.get("metadata"), ("metadata",)))
    _READERS[manifest["kind"]](reading, manifest.get("spec"), ("spec",), own)
    for key in manifest.keys() - {"apiVersion", "kind", "metadata", "spec", "status"}:
        reading.refuse((key,), f"unknown key `{key}`", "the keys are `metadata` and `spec`")
    if reading.problems:
        raise RunFileError(reading.problems)
    try:
        return with_settings(RunFile.model_validate(reading.data), settings, source), source
    except ValidationError as error:
        raise RunFileError(list(problems_of(error, reading.data, source))) from None


def _not_one_job(
    jobs: list[tuple[ManifestSource, Any]], objects: list[tuple[ManifestSource, Any]], name: str
) -> UsageError:
    source, value = (jobs[1:] or objects or [(ManifestSource(name, ""), None)])[0]
    message, hint = f"`{at(value, 'kind')}` is not a job that can be read", f"Trainworks reads {', '.join(KINDS)}"
    if jobs:
        message, hint = f"the file has {len(jobs)} jobs", "write each job to a file of its own"
    return UsageError(message, place=source.place_of(("kind",)), hint=hint)


def _read_metadata(reading: ManifestReading, metadata: Any, stem: str) -> None:
    key: FieldPath = ("metadata",)
    name = at(metadata, "name") or str(at(metadata, "generateName") or stem).rstrip("-")
    reading.put(("name",), name_from(str(name)), ("metadata", "name"))
    handlers: dict[str, Handler] = {
        "name": None,
        "generateName": None,
        "namespace": reading.putter("cluster", "kubernetes", "namespace"),
        "labels": partial(_labels, reading),
        "annotations": partial(_annotations, reading),
        **dict.fromkeys(("creationTimestamp", "generation", "resourceVersion", "uid", "selfLink", "managedFields")),
        "finalizers": _OWN_OBJECTS,
        "ownerReferences": _OWN_OBJECTS,
    }
    reading.each(metadata, key, handlers)


def _labels(reading: ManifestReading, value: Any, key: FieldPath) -> None:
    for label, text in reading.mapping(value, key).items():
        if label in _QUEUE_LABELS:
            reading.kubernetes(_QUEUE_LABELS[label], text, (*key, label))
        elif label not in OWN_LABELS:
            reading.note((*key, label), _OWN_OBJECTS)


def _annotations(reading: ManifestReading, value: Any, key: FieldPath) -> None:
    for name in reading.mapping(value, key):
        if name == SUBMITTED:
            hint = "write the job for `kubectl apply` with `trainworks submit --dry-run --as jobset`"
            reading.refuse((*key, name), "the manifest is that of a job which Trainworks has submitted", hint)
        elif name != JOB:
            together = "`cluster.kubernetes.topology` places the pods together, with Kueue"
            reading.note((*key, name), together if name == _EXCLUSIVE else _OWN_OBJECTS)


_READERS: Mapping[str, Callable[[ManifestReading, Any, FieldPath, OwnJob], None]] = {
    "Job": read_job,
    "JobSet": read_jobset,
    "LeaderWorkerSet": read_leader_worker_set,
    "PyTorchJob": read_pytorchjob,
    "TrainJob": read_trainjob,
}
