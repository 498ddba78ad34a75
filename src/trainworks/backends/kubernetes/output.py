"""Output of a job's pods from the API server: pod by pod, or from all pods as they write."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

from trainworks.backends.kubernetes.client import KubernetesClient, KubernetesRefusedError
from trainworks.errors import TrainworksError

_POLL_S = 1.0
_INDEX = "batch.kubernetes.io/job-completion-index"

Object = Mapping[str, Any]


def pod_index(pod: Object) -> int:
    """Index of the node of the job that a pod is."""
    metadata = pod.get("metadata", {})
    index = (metadata.get("annotations") or {}).get(_INDEX) or (metadata.get("labels") or {}).get(_INDEX)
    return int(index or 0)


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
