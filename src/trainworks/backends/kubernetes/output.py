"""What a job's pods print and write, from the API server, and the commands of kubectl that enter one of them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import final

from trainworks.backends.entering import entering
from trainworks.backends.kubernetes.client import KubernetesClient, KubernetesRefusedError, NotFound, Object
from trainworks.backends.kubernetes.facts import FIRST_NODE, INDEX, JOBSET_LABEL, annotations_of, labels_of
from trainworks.config.engines import Kubernetes
from trainworks.errors import EnvironmentProblem, TrainworksError, UnreachableError, UsageError
from trainworks.host.clock import Clock
from trainworks.jobs.formats.manifest import RUNS

_POLL_S = 1.0
_READ_S = 120.0
"""Time to pull the image, mount the volume and read."""
_HINT = "the image needs this version of Trainworks, and the right to read the files that the job has written"


def pod_index(pod: Object) -> int:
    """Number of the node that a pod is among all of the job."""
    index = annotations_of(pod).get(INDEX) or labels_of(pod).get(INDEX)
    return int(annotations_of(pod).get(FIRST_NODE, "0")) + int(index or 0)


def pod_order(pod: Object) -> tuple[int, str]:
    """Key that sorts pods by their nodes, and the one before it in front of a pod that has replaced another."""
    return pod_index(pod), str(pod["metadata"].get("creationTimestamp") or "")


def log_lines(client: KubernetesClient, pod: Object, *, follow: bool, last: int | None = None) -> Iterator[str]:
    """Log lines of one pod, or its last ones; none before it has started."""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
    try:
        options = {"follow": "true"} if follow else {}
        yield from client.lines(path, options | ({"tailLines": str(last)} if last is not None else {}))
    except KubernetesRefusedError:
        return


@final
class LogStream:
    """Lines of all pods of a job, including those of later allocations, until the job has ended."""

    def __init__(
        self, client: KubernetesClient, pods: Callable[[], list[Object]], has_ended: Callable[[], bool]
    ) -> None:
        self._client = client
        self._pods = pods
        self._has_ended = has_ended
        self._lines: queue.SimpleQueue[str | TrainworksError] = queue.SimpleQueue()
        self._readers: dict[str, threading.Thread] = {}
        self._with_output: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        while True:
            ended = self._has_ended()  # before the pods are listed: all that they have written is then available
            self._follow_new_pods()
            yield from self._pending_lines()
            if ended and not any(reader.is_alive() for reader in self._readers.values()):
                yield from self._pending_lines()
                return

    def _follow_new_pods(self) -> None:
        for pod in self._pods():
            name = pod["metadata"]["name"]
            reader = self._readers.get(name)
            if name in self._with_output or (reader is not None and reader.is_alive()):
                continue
            self._readers[name] = threading.Thread(target=self._read, args=(pod,), daemon=True)
            self._readers[name].start()

    def _read(self, pod: Object) -> None:
        """Read one pod; a pod without output may not have started, and is read again."""
        try:
            for line in log_lines(self._client, pod, follow=True):
                self._with_output.add(pod["metadata"]["name"])
                self._lines.put(line)
        except TrainworksError as error:
            self._lines.put(error)

    def _pending_lines(self) -> Iterator[str]:
        while True:
            try:
                line = self._lines.get(timeout=_POLL_S)
            except queue.Empty:
                return
            if isinstance(line, TrainworksError):
                raise line
            yield line


def read_by_pod(client: KubernetesClient, jobsets: str, manifest: Object, clock: Clock) -> str:
    """Start a JobSet of one pod, and return all that it prints, without the ends of its lines; the JobSet is deleted.

    `jobsets` is the path of the JobSets of the namespace.

    Raises:
        UsageError: the pod failed; the message has its last line.
        UnreachableError: the server does not answer, or the pod did not start in time.
    """
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    client.create(jobsets, manifest)
    deadline, seen = clock.now() + _READ_S, "has no pod"
    try:
        while clock.now() < deadline:
            pods = client.list(f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": f"{JOBSET_LABEL}={name}"})
            for pod in pods:
                phase = pod.get("status", {}).get("phase")
                if phase == "Succeeded":
                    return "".join(log_lines(client, pod, follow=False))
                if phase == "Failed":
                    said = ["no reason given", *log_lines(client, pod, follow=False, last=1)][-1]
                    raise UsageError(f"the pod that reads the volume failed: {said}", hint=_HINT)
                waits = (str(one["message"]) for one in pod["status"].get("conditions") or () if one.get("message"))
                seen = next(waits, f"is {phase}")
            clock.sleep(_POLL_S)
        raise UnreachableError(f"the pod that reads the volume did not end within {_READ_S:.0f} s: {seen}")
    finally:
        with suppress(NotFound, EnvironmentProblem):
            client.delete(f"{jobsets}/{name}", {"propagationPolicy": "Foreground"})


def kubectl_exec(
    options: Kubernetes, pods: Sequence[Object], handle: str, command: Sequence[str], *, node: int, terminal: bool
) -> list[str]:
    """`kubectl exec` that runs a command beside the ranks of a node.

    `handle` is the name of the JobSet, and of the run's folder in the pods. A command `("-m", MODULE, ...)` is started
    with the Python of the pod.

    Raises:
        UsageError: the pod of the node does not run.
    """
    pod = _running_pod(pods, node)
    streams = ["--stdin", *(["--tty"] if terminal else [])]
    words = entering(f"{RUNS}/{handle}", command, node=node, python="python")
    return [*_kubectl(options), "exec", *streams, pod, "--", *words]


def kubectl_port_forward(options: Kubernetes, pods: Sequence[Object], ports: str, *, node: int) -> list[str]:
    """`kubectl port-forward` of `LOCAL:REMOTE`. Raises: as `kubectl_exec`."""
    return [*_kubectl(options), "port-forward", "--address=127.0.0.1", f"pod/{_running_pod(pods, node)}", ports]


def _kubectl(options: Kubernetes) -> list[str]:
    context = [f"--context={options.context}"] if options.context else []
    return ["kubectl", *context, f"--namespace={options.namespace}"]


def _running_pod(pods: Sequence[Object], node: int) -> str:
    for pod in pods:
        if pod_index(pod) == node and pod.get("status", {}).get("phase") == "Running":
            return str(pod["metadata"]["name"])
    raise UsageError(f"no pod of node {node} runs now", hint="trainworks describe, for what the job waits")
