"""TW4xx: Kubernetes manifests and containers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers import tree
from trainworks.review.rule import rule

_GPUS = "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/"
_SHARED_MEMORY = "https://github.com/pytorch/pytorch#using-pre-built-images"
_GPU = re.compile(r"(?:nvidia|amd)\.com/gpu")
_POD = """apiVersion: v1
kind: Pod
spec:
  containers:
  - name: train
    resources:
      {}
"""
_JOB = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Worker:
      template:
        spec:
          containers:
          - name: pytorch
            resources: {limits: {nvidia.com/gpu: 8}}
"""
_MOUNT = """            volumeMounts: [{name: shm, mountPath: /dev/shm}]
          volumes: [{name: shm, emptyDir: {medium: Memory}}]
"""


@rule(
    "TW401",
    "GPUs in requests alone",
    "error",
    why="GPUs belong in `limits`: Kubernetes takes the limit as the request, and refuses a request without a limit or "
    "with another one.",
    fix="Move the GPUs to `limits`.",
    source=_GPUS,
    file="pod.yaml",
    bad=_POD.format("requests: {nvidia.com/gpu: 8}"),
    good=_POD.format("limits: {nvidia.com/gpu: 8}"),
)
def request_without_limit(file: ReviewedFile) -> Iterator[Problem]:
    """A request for GPUs that differs from the limit, or has none."""
    for resources in _resources(file):
        limits = tree.entries(tree.get(resources, "limits"))
        for name, (key, value) in tree.entries(tree.get(resources, "requests")).items():
            limit = limits.get(name)
            if _GPU.fullmatch(name) and (limit is None or tree.scalar(limit[1]) != tree.scalar(value)):
                has = "no limit" if limit is None else f"a limit of {tree.scalar(limit[1])}"
                yield Problem(*tree.place(key), f"a request of {tree.scalar(value)} `{name}` with {has}")


@rule(
    "TW402",
    "A part of a GPU",
    "error",
    why="A container requests whole GPUs; Kubernetes refuses a fraction.",
    fix="Request a whole GPU; share one with MIG or time-slicing, which have resources of their own.",
    source=_GPUS,
    file="pod.yaml",
    bad=_POD.format("limits: {nvidia.com/gpu: 0.5}"),
    good=_POD.format("limits: {nvidia.com/gpu: 1}"),
)
def fraction_of_gpu(file: ReviewedFile) -> Iterator[Problem]:
    """A number of GPUs with a fraction."""
    for resources in _resources(file):
        for part in ("limits", "requests"):
            for name, (_, value) in tree.entries(tree.get(resources, part)).items():
                if _GPU.fullmatch(name) and re.fullmatch(r"\d*\.\d*[1-9]\d*", tree.scalar(value) or ""):
                    yield Problem(*tree.place(value), f"{tree.scalar(value)} is not a whole number of GPUs")


@rule(
    "TW403",
    "Too little shared memory for workers",
    "warning",
    why="The workers of PyTorch's data loaders pass data through /dev/shm, whose default size in a container is too "
    "small for them. The job ends with a bus error.",
    fix="Mount a volume `emptyDir: {medium: Memory}` at /dev/shm.",
    source=_SHARED_MEMORY,
    file="job.yaml",
    bad=_JOB,
    good=_JOB + _MOUNT,
)
def pod_without_shared_memory(file: ReviewedFile) -> Iterator[Problem]:
    """A PyTorchJob whose pods have GPUs and nothing mounted at /dev/shm."""
    if file.kind == "yaml" and "/dev/shm" not in file.text and "hostIPC" not in file.text:  # noqa: S108
        for document in file.documents:
            kind = tree.get(document, "kind")
            if kind and tree.scalar(kind) == "PyTorchJob" and _GPU.search(file.text):
                yield Problem(*tree.place(kind), "the pods of this job mount nothing at /dev/shm")


@rule(
    "TW404",
    "Too little shared memory in the container",
    "warning",
    why="PyTorch passes data between processes through shared memory, and the default size in a container is not "
    "enough for data loader workers.",
    fix="Add `--ipc=host`, or `--shm-size=16g`.",
    source=_SHARED_MEMORY,
    file="run.sh",
    bad="docker run --gpus all pytorch/pytorch torchrun --nproc-per-node=8 train.py\n",
    good="docker run --gpus all --ipc=host pytorch/pytorch torchrun --nproc-per-node=8 train.py\n",
)
def container_without_shared_memory(file: ReviewedFile) -> Iterator[Problem]:
    """`docker run` with GPUs and torchrun, without more shared memory."""
    for script in file.scripts:
        for command in script.commands:
            texts = command.texts
            runs = texts[:2] in (["docker", "run"], ["podman", "run"]) and "torchrun" in texts and "--gpus" in texts
            if runs and not any("/dev/shm" in text or re.match(r"--(?:ipc|shm-size)\b", text) for text in texts):  # noqa: S108
                word = command.words[0]
                yield Problem(word.line, word.column, "neither `--ipc=host` nor `--shm-size`")


def _resources(file: ReviewedFile) -> Iterator[yaml.Node]:
    """`resources` of every container of a manifest."""
    if file.kind == "yaml" and _GPU.search(file.text):
        for document in file.documents:
            for mapping in tree.mappings(document):
                if (found := tree.get(mapping, "resources")) is not None and tree.get(mapping, "name") is not None:
                    yield found
