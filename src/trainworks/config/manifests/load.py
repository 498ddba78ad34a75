"""Read a manifest of Kubernetes as a run file: a JobSet, a TrainJob or a PyTorchJob, alone or among other objects.

What the backend has a field for goes there, other fields of the pods into `cluster.kubernetes.patch`; each key without
effect is named, and what a run cannot be is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainworks.config.load import name_from, parse_run_file, problems_of
from trainworks.config.manifests.jobset import read_jobset
from trainworks.config.manifests.own_job import JOB, SUBMITTED, OwnJob, own_job
from trainworks.config.manifests.pytorchjob import read_pytorchjob
from trainworks.config.manifests.reading import Handler, ManifestReading, ManifestSource, at
from trainworks.config.manifests.trainjob import read_trainjob
from trainworks.config.run_file import RunFile
from trainworks.config.source import FieldPath, Source, read_text, split_documents
from trainworks.errors import RunFileError, UsageError

KINDS = {
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
    "PyTorchJob": "kubeflow.org/v1",
}
"""Version of the API that is read, by kind."""
_QUEUE = "kueue.x-k8s.io/queue-name"
_OWN_OBJECTS = "Trainworks labels its own objects"
_OWN_LABELS = ("app.kubernetes.io/managed-by", "app.kubernetes.io/instance")


def is_manifest(text: str) -> bool:
    """Recognise objects of Kubernetes by `apiVersion` and `kind`, which no run file has."""
    keys = ("apiVersion", "kind")
    return all(re.search(rf"""^["']?{key}["']?[ \t]*:""", text, re.MULTILINE) for key in keys)


def load_run_description(path: Path) -> tuple[RunFile, Source]:
    """Read and check a run file, or a manifest of Kubernetes.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: every problem in it, each with its line.
    """
    return parse_run_description(read_text(path), name=str(path))


def parse_run_description(text: str, *, name: str) -> tuple[RunFile, Source]:
    """Check the text of a run file, or of a manifest of Kubernetes.

    Raises:
        RunFileError: every problem in it, each with its line.
    """
    return parse_manifest(text, name=name) if is_manifest(text) else parse_run_file(text, name=name)


def parse_manifest(text: str, *, name: str) -> tuple[RunFile, ManifestSource]:
    """Check the text of a manifest.

    Raises:
        RunFileError: every problem in it, each with its line.
    """
    source, manifest = _the_job(text, name)
    reading = ManifestReading(source)
    _read_metadata(reading, manifest.get("metadata"), Path(name).stem)
    own = own_job(reading.mapping(manifest.get("metadata"), ("metadata",)))
    _READERS[manifest["kind"]](reading, manifest.get("spec"), own)
    for key in manifest.keys() - {"apiVersion", "kind", "metadata", "spec", "status"}:
        reading.refuse((key,), f"unknown key `{key}`", "the keys are `metadata` and `spec`")
    if reading.problems:
        raise RunFileError(reading.problems)
    try:
        return RunFile.model_validate(reading.data), source
    except ValidationError as error:
        raise RunFileError(list(problems_of(error, reading.data, source))) from None


def _the_job(text: str, name: str) -> tuple[ManifestSource, dict[str, Any]]:
    """The one document that is a job; the others are named."""
    documents = [(source, source.parse()) for source in (ManifestSource(name, part) for part in split_documents(text))]
    objects = [(source, value) for source, value in documents if value is not None]
    jobs = [(source, value) for source, value in objects if at(value, "kind") in KINDS]
    if len(jobs) != 1:
        raise RunFileError([_not_one_job(jobs, objects, name)])
    source, job = jobs[0]
    if job.get("apiVersion") != KINDS[job["kind"]]:
        message = f"`{job['kind']}` of `{job.get('apiVersion')}` is not read"
        hint = f"write it for `{KINDS[job['kind']]}`"
        raise RunFileError([UsageError(message, place=source.place_of(("apiVersion",)), hint=hint)])
    for other, value in objects:
        if other is not source:
            place = other.place_of(("kind",))
            source.unused.append(f"{place}: `{at(value, 'kind')}` is not created: use `kubectl apply`")
    return source, job


def _not_one_job(
    jobs: list[tuple[ManifestSource, Any]], objects: list[tuple[ManifestSource, Any]], name: str
) -> UsageError:
    if jobs:
        return UsageError(
            f"the file has {len(jobs)} jobs",
            place=jobs[1][0].place_of(("kind",)),
            hint="write each job to a file of its own",
        )
    source, value = objects[0] if objects else (ManifestSource(name, ""), None)
    hint = f"Trainworks reads {', '.join(KINDS)}"
    return UsageError(
        f"`{at(value, 'kind')}` is not a job that can be read", place=source.place_of(("kind",)), hint=hint
    )


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
        if label == _QUEUE:
            reading.kubernetes("queue", text, (*key, label))
        elif label not in _OWN_LABELS:
            reading.note((*key, label), _OWN_OBJECTS)


def _annotations(reading: ManifestReading, value: Any, key: FieldPath) -> None:
    for name in reading.mapping(value, key):
        if name == SUBMITTED:
            hint = "write the job for `kubectl apply` with `trainworks submit --dry-run --as jobset`"
            reading.refuse((*key, name), "the manifest is that of a job which Trainworks has submitted", hint)
        elif name != JOB:
            reading.note((*key, name), _OWN_OBJECTS)


def _job_set(reading: ManifestReading, spec: Any, own: OwnJob) -> None:
    read_jobset(reading, spec, ("spec",), own)


def _pytorch_job(reading: ManifestReading, spec: Any, own: OwnJob) -> None:
    read_pytorchjob(reading, spec, ("spec",), re.escape(reading.data["name"]))


def _train_job(reading: ManifestReading, spec: Any, own: OwnJob) -> None:
    read_trainjob(reading, spec, ("spec",), own)


_READERS: Mapping[str, Callable[[ManifestReading, Any, OwnJob], None]] = {
    "JobSet": _job_set,
    "PyTorchJob": _pytorch_job,
    "TrainJob": _train_job,
}
