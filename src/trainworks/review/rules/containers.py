"""TW4xx: Kubernetes manifests and containers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import yaml

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers import tree
from trainworks.review.rule import rule

_pod_rule = partial(rule, file="pod.yaml", source="https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/")
_SHARED_MEMORY = "https://github.com/pytorch/pytorch#using-pre-built-images"
_GPU = re.compile(r"(?:nvidia|amd)\.com/gpu")
_LEAST_SHARED_BYTES = 2**30
"""`health` asks for as much in /dev/shm."""
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
_BATCH_JOB = """apiVersion: batch/v1
kind: Job
metadata: {{name: train}}
spec:
  template:
    spec:
      restartPolicy: {}
      containers: [{{name: train, image: train}}]
"""
_WORKERS = """apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: train}}
spec:
  template:
    spec:
      restartPolicy: {}
      containers: [{{name: train, image: train}}]
"""
_TRAINING = """apiVersion: {}
kind: {}
metadata: {{name: train}}
spec:
  template:
    spec:{}
      containers:
      - name: train
        image: train
        command: [torchrun, --nproc-per-node=8, train.py]
        resources: {{limits: {{nvidia.com/gpu: 8}}}}
        volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
      volumes: [{{name: shm, emptyDir: {{medium: Memory}}}}]
"""
_LIMITS = """apiVersion: v1
kind: Pod
metadata: {{name: test}}
spec:
  initContainers:
  - {{name: limits, image: busybox, command: [sh, -c, {}]}}
  containers:
  - {{name: test, image: test, command: [sh, -c, {}]}}
"""
_MEETING_JOB = """apiVersion: batch/v1
kind: Job
metadata: {{name: train}}
spec:
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
{}      containers:
      - name: train
        image: train
        env: [{{name: MASTER_ADDR, value: train-0.train}}]
"""
_INDEX_JOB = """apiVersion: batch/v1
kind: Job
metadata: {{name: train}}
spec:
{}  template:
    spec:
      restartPolicy: Never
      containers: [{{name: train, image: train, command: [train, $(JOB_COMPLETION_INDEX)]}}]
"""
_RANK = "env: [{{name: RANK, valueFrom: {{fieldRef: {{fieldPath: {}}}}}}}]"
_POD_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"
_BATCH = ("batch/v1", "Job")
_NAMED_BY_SERVICES = ("PyTorchJob", "TFJob", "MPIJob", "PaddleJob", "XGBoostJob", "JobSet")
"""Kinds whose pods meet at the name of a service."""
_MOUNT = """            volumeMounts: [{name: shm, mountPath: /dev/shm}]
          volumes: [{name: shm, emptyDir: {medium: Memory}}]
"""


@_pod_rule(
    "TW401",
    "GPUs in requests alone",
    why="GPUs belong in `limits`: Kubernetes takes the limit as the request, and refuses a request without a limit or "
    "with another one.",
    fix="Move the GPUs to `limits`.",
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


@_pod_rule(
    "TW402",
    "A part of a GPU",
    why="A container requests whole GPUs; Kubernetes refuses a fraction.",
    fix="Request a whole GPU; share one with MIG or time-slicing, which have resources of their own.",
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
    """A PyTorchJob, or a job or pod that runs torchrun, with GPUs and nothing mounted at /dev/shm."""
    if file.kind == "yaml" and "/dev/shm" not in file.text and "hostIPC" not in file.text:  # noqa: S108
        kinds = ("PyTorchJob", *(("Job", "JobSet", "Pod") if "torchrun" in file.text else ()))
        for document in file.documents:
            kind = tree.get(document, "kind")
            if kind and tree.scalar(kind) in kinds and _GPU.search(file.text):
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
    """`docker run` with GPUs and torchrun, without more shared memory, or with less than 1 GiB of it."""
    for command in file.commands:
        text, word = " ".join(command.texts), command.words[0]
        if not re.match(r"(?:docker|podman) run .*--gpus\b.* torchrun\b", text, re.DOTALL):
            continue
        size = re.search(r" --shm-size[ =]((\d+)([bkmg]?)b?)(?= )", text, re.IGNORECASE)
        if size and int(size[2]) * 1024 ** "bkmg".index(size[3].lower() or "b") < _LEAST_SHARED_BYTES:
            yield word.problem(f"`--shm-size={size[1]}` is less than 1 GiB")
        elif not re.search(r"/dev/shm| --(?:ipc|shm-size)\b", text):  # noqa: S108
            yield word.problem("neither `--ipc=host` nor `--shm-size`")


@rule(
    "TW405",
    "Kubernetes refuses the job",
    why="Only `Never` and `OnFailure` are restart policies of a Job. Without one the policy is `Always`, which the API "
    "server refuses.",
    fix="Set `restartPolicy: Never`; `backoffLimit` says how often the Job tries again.",
    source="https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-template",
    file="job.yaml",
    bad=_BATCH_JOB.format("Always"),
    good=_BATCH_JOB.format("Never"),
)
def refused_job(file: ReviewedFile) -> Iterator[Problem]:
    """A Job whose pods have another policy, or none."""
    for document in file.documents:
        if (tree.scalar(tree.get(document, "apiVersion")), tree.scalar(tree.get(document, "kind"))) == _BATCH:
            pod = tree.get(document, "spec", "template", "spec")
            policy = tree.get(pod, "restartPolicy")
            if pod is not None and tree.scalar(policy) in (None, "Always"):
                has = "has no `restartPolicy`" if policy is None else "is restarted always"
                yield Problem(*tree.place(policy or pod), f"the pod of a Job {has}")


@rule(
    "TW406",
    "The ranks cannot find each other by name",
    why="A pod with `hostNetwork` resolves names as its node does, which does not know the services of the cluster. "
    "The meeting point of the ranks is the name of a service.",
    fix="Set `dnsPolicy: ClusterFirstWithHostNet`.",
    source="https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/#pod-s-dns-policy",
    file="job.yaml",
    bad=_JOB + _MOUNT + "          hostNetwork: true\n",
    good=_JOB + _MOUNT + "          hostNetwork: true\n          dnsPolicy: ClusterFirstWithHostNet\n",
)
def no_name_of_a_service(file: ReviewedFile) -> Iterator[Problem]:
    """A pod of a training job with `hostNetwork`, without a policy or a configuration of its own."""
    for document in file.documents:
        if tree.scalar(tree.get(document, "kind")) in _NAMED_BY_SERVICES:
            for pod in tree.mappings(document):
                host = tree.get(pod, "hostNetwork")
                own = tree.get(pod, "dnsPolicy") or tree.get(pod, "dnsConfig")
                if host is not None and tree.is_true(host) and own is None and tree.get(pod, "containers") is not None:
                    yield Problem(*tree.place(host), "`hostNetwork` without `dnsPolicy: ClusterFirstWithHostNet`")


@rule(
    "TW407",
    "Kubernetes refuses the workload",
    why="`Always` is the only restart policy of a StatefulSet, Deployment, ReplicaSet or DaemonSet; the API server "
    "refuses another. A program that ends would be started again in any case.",
    fix="Run a training as a Job, JobSet or TrainJob, with `restartPolicy: Never`.",
    source="https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#pod-template",
    file="workers.yaml",
    bad=_WORKERS.format("OnFailure"),
    good=_WORKERS.format("Always"),
)
def refused_workload(file: ReviewedFile) -> Iterator[Problem]:
    """Another policy in the template of such a workload."""
    for document in file.documents:
        if tree.scalar(tree.get(document, "kind")) in ("StatefulSet", "Deployment", "ReplicaSet", "DaemonSet"):
            policy = tree.get(document, "spec", "template", "spec", "restartPolicy")
            if policy is not None and tree.scalar(policy) in ("OnFailure", "Never"):
                yield Problem(*tree.place(policy), f"`restartPolicy: {tree.scalar(policy)}` of a workload of services")


@rule(
    "TW408",
    "The name of a pod does not resolve",
    why="The pods of an indexed Job have names of DNS only within a headless service, which `subdomain` names. The "
    "ranks wait for a MASTER_ADDR that nothing answers to.",
    fix="Create a service with `clusterIP: None`, set `subdomain: SERVICE` in the pod, and use `POD.SERVICE`.",
    source="https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/",
    file="job.yaml",
    bad=_MEETING_JOB.format(""),
    good=_MEETING_JOB.format("      subdomain: train\n"),
)
def unresolved_pod(file: ReviewedFile) -> Iterator[Problem]:
    """MASTER_ADDR is the name of the first pod of the Job, and the pods have no subdomain."""
    for document in file.documents:
        name = tree.scalar(tree.get(document, "metadata", "name"))
        if (
            tree.scalar(tree.get(document, "apiVersion")),
            tree.scalar(tree.get(document, "kind")),
        ) != _BATCH or not name:
            continue
        pod = tree.get(document, "spec", "template", "spec")
        for setting in file.settings if tree.get(pod, "subdomain") is None else ():
            if setting.name == "MASTER_ADDR" and re.fullmatch(rf"{re.escape(name)}-0(?:\..*)?", setting.value):
                yield setting.problem(f"`{setting.value}` has no address without `subdomain`")


@rule(
    "TW409",
    "The pods of the Job have no index",
    why="Kubernetes sets JOB_COMPLETION_INDEX in the pods of an indexed Job alone. Without it every pod gets the same "
    "rank or none.",
    fix="Set `completionMode: Indexed`, and `completions` and `parallelism` to the number of nodes.",
    source="https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode",
    file="job.yaml",
    bad=_INDEX_JOB.format(""),
    good=_INDEX_JOB.format("  completionMode: Indexed\n"),
)
def missing_index(file: ReviewedFile) -> Iterator[Problem]:
    """The variable or the annotation of the index, in a Job with another mode or none."""
    for document in file.documents:
        if (tree.scalar(tree.get(document, "apiVersion")), tree.scalar(tree.get(document, "kind"))) == _BATCH:
            mode = tree.get(document, "spec", "completionMode")
            first, last = document.start_mark.line, document.end_mark.line
            for number in range(first, min(last + 1, len(file.lines))) if tree.scalar(mode) != "Indexed" else ():
                found = re.search(r"JOB_COMPLETION_INDEX|job-completion-index", file.lines[number].split("#")[0])
                if found:
                    yield Problem(number + 1, found.start() + 1, f"`{found[0]}` in a Job without an index")
                    break


@rule(
    "TW410",
    "The rank is the name of a pod",
    why="RANK is a number. A name such as `train-0` ends the program with a ValueError, before the ranks meet.",
    fix="Take the number: the label `apps.kubernetes.io/pod-index` of a StatefulSet, JOB_COMPLETION_INDEX of an "
    "indexed Job.",
    source="https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#pod-index-label",
    file="workers.yaml",
    bad=_WORKERS.format("Always").replace("image: train}", f"image: train, {_RANK.format('metadata.name')}}}"),
    good=_WORKERS.format("Always").replace("image: train}", f"image: train, {_RANK.format(_POD_INDEX)}}}"),
)
def name_as_rank(file: ReviewedFile) -> Iterator[Problem]:
    """RANK or NODE_RANK from the name of the pod, in a file that takes no number from a name."""
    for document in file.documents if "##*-" not in file.text else ():
        for mapping in tree.mappings(document):
            field = tree.get(mapping, "valueFrom", "fieldRef", "fieldPath")
            path = tree.scalar(field) or ""
            is_name = path == "metadata.name" or "pod-name" in path
            if field is not None and tree.scalar(tree.get(mapping, "name")) in ("RANK", "NODE_RANK") and is_name:
                yield Problem(*tree.place(field), f"`{path}` is a name, and not a number")


@rule(
    "TW411",
    "A number where Kubernetes takes a text",
    why="The values of variables, labels, annotations and selectors are texts. The API server refuses a manifest with "
    "a number or a truth value there.",
    fix='Put it in quotes: `value: "4"`.',
    source="https://kubernetes.io/docs/tasks/inject-data-application/define-environment-variable-container/",
    file="pod.yaml",
    bad=_POD.format("limits: {nvidia.com/gpu: 8}") + "    env: [{name: WORLD_SIZE, value: 4}]\n",
    good=_POD.format("limits: {nvidia.com/gpu: 8}") + '    env: [{name: WORLD_SIZE, value: "4"}]\n',
)
def number_for_text(file: ReviewedFile) -> Iterator[Problem]:
    """A plain number, `true` or `false` in an `env`, a map of labels or a selector of a manifest."""
    for document in file.documents if file.kind == "yaml" else ():
        if tree.get(document, "apiVersion") is None or tree.get(document, "kind") is None:
            continue
        for mapping in tree.mappings(document):
            values = [tree.get(item, "value") for item in tree.items(tree.get(mapping, "env"))]
            for key in ("labels", "annotations", "nodeSelector", "matchLabels"):
                values += [value for _, value in tree.entries(tree.get(mapping, key)).values()]
            for item in tree.items(tree.get(mapping, "matchExpressions")):
                values += tree.items(tree.get(item, "values"))
            for value in values:
                if isinstance(value, yaml.ScalarNode) and value.tag.rpartition(":")[2] in ("int", "float", "bool"):
                    yield Problem(*tree.place(value), f"`{value.value}` without quotes")


def _resources(file: ReviewedFile) -> Iterator[yaml.Node]:
    """`resources` of every container of a manifest."""
    if file.kind == "yaml" and _GPU.search(file.text):
        for document in file.documents:
            for mapping in tree.mappings(document):
                if (found := tree.get(mapping, "resources")) is not None and tree.get(mapping, "name") is not None:
                    yield found


_TRAINS = re.compile(
    r"\btorchrun\b|\bdeepspeed\b|\baccelerate launch\b|\w*train\w*\.py\b|torch\.distributed\.(?:run|launch)"
)


@rule(
    "TW412",
    "A training that starts again when it is finished",
    "warning",
    why="A StatefulSet or Deployment keeps its containers running: the kubelet starts one that ended again, also "
    "after a training that succeeded. It takes its GPUs until it is deleted, and writes over its results.",
    fix="Run a training as a Job, JobSet or TrainJob, with `restartPolicy: Never`.",
    source="https://kubernetes.io/docs/concepts/workloads/controllers/job/",
    file="workers.yaml",
    bad=_TRAINING.format("apps/v1", "StatefulSet", ""),
    good=_TRAINING.format("batch/v1", "Job", "\n      restartPolicy: Never"),
)
def training_as_service(file: ReviewedFile) -> Iterator[Problem]:
    """A container with GPUs whose command trains, in a workload of services."""
    for document in file.documents:
        kind = tree.get(document, "kind")
        if kind is None or tree.scalar(kind) not in ("StatefulSet", "Deployment", "ReplicaSet", "DaemonSet"):
            continue
        for container in tree.items(tree.get(document, "spec", "template", "spec", "containers")):
            parts = [*tree.items(tree.get(container, "command")), *tree.items(tree.get(container, "args"))]
            command = " ".join(tree.scalar(part) or "" for part in parts)
            gpus = any(_GPU.fullmatch(name) for name in tree.entries(tree.get(container, "resources", "limits")))
            if gpus and _TRAINS.search(command) and not re.search(r"sleep (?:infinity|inf)|tail -f", command):
                yield Problem(*tree.place(kind), f"a training in a {tree.scalar(kind)}")


@rule(
    "TW413",
    "A limit of another container",
    "warning",
    why="`ulimit` changes the limits of the process that calls it and of its children. An init container has ended "
    "when the containers of the pod start, and leaves them their own limits.",
    fix="Raise the limit in the container runtime of the nodes, or call `ulimit` in the command that starts the "
    "program.",
    source="https://man7.org/linux/man-pages/man2/getrlimit.2.html",
    file="job.yaml",
    bad=_LIMITS.format("ulimit -l unlimited", "all_reduce_perf -g 8"),
    good=_LIMITS.format("ls /data", "ulimit -l unlimited \u0026\u0026 all_reduce_perf -g 8"),
)
def limit_of_init_container(file: ReviewedFile) -> Iterator[Problem]:
    """`ulimit` in the command of an init container."""
    for document in file.documents:
        for mapping in tree.mappings(document):
            for container in tree.items(tree.get(mapping, "initContainers")):
                for part in (*tree.items(tree.get(container, "command")), *tree.items(tree.get(container, "args"))):
                    if re.match(r"\s*ulimit\s", tree.scalar(part) or ""):
                        yield Problem(*tree.place(part), "`ulimit` in an init container")
