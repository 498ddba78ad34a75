"""What the pods of a job have written, from the API server: one pod after the other, or all at once as they write."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

from trainworks.backends.kubernetes.client import KubernetesClient, Refused
from trainworks.errors import TrainworksError

__all__ = ["Followed", "log_lines", "pod_index"]

_AGAIN_AFTER_S = 1.0
_INDEX = "batch.kubernetes.io/job-completion-index"

Object = Mapping[str, Any]


def pod_index(pod: Object) -> int:
    """Which node of the job a pod is."""
    metadata = pod.get("metadata", {})
    found = (metadata.get("annotations") or {}).get(_INDEX) or (metadata.get("labels") or {}).get(_INDEX)
    return int(found or 0)


def log_lines(client: KubernetesClient, pod: Object, *, follow: bool) -> Iterator[str]:
    """Of one pod; none of one that has not started."""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
    try:
        yield from client.lines(path, {"follow": "true"} if follow else {})
    except Refused:
        return


@final
class Followed:
    """Lines of all pods of a job, those of later turns included, until the job has ended.

    Args:
        client: asks the API server.
        pods: the pods that there are now.
        has_ended: whether there will be no more.
    """

    def __init__(
        self, client: KubernetesClient, pods: Callable[[], list[Object]], has_ended: Callable[[], bool]
    ) -> None:
        self._client = client
        self._pods = pods
        self._has_ended = has_ended
        self._lines: queue.SimpleQueue[str | TrainworksError] = queue.SimpleQueue()
        self._readers: dict[str, threading.Thread] = {}
        self._heard: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        while True:
            ended = self._has_ended()  # before the pods are looked for: what they have written is there by now
            self._follow_new_pods()
            yield from self._until_silent()
            if ended and not any(reader.is_alive() for reader in self._readers.values()):
                yield from self._until_silent()
                return

    def _follow_new_pods(self) -> None:
        for pod in self._pods():
            name = pod["metadata"]["name"]
            reader = self._readers.get(name)
            if name in self._heard or (reader is not None and reader.is_alive()):
                continue
            self._readers[name] = threading.Thread(target=self._read, args=(pod,), daemon=True)
            self._readers[name].start()

    def _read(self, pod: Object) -> None:
        """A pod that has said nothing may not have started: it is asked again."""
        try:
            for line in log_lines(self._client, pod, follow=True):
                self._heard.add(pod["metadata"]["name"])
                self._lines.put(line)
        except TrainworksError as error:
            self._lines.put(error)

    def _until_silent(self) -> Iterator[str]:
        while True:
            try:
                found = self._lines.get(timeout=_AGAIN_AFTER_S)
            except queue.Empty:
                return
            if isinstance(found, TrainworksError):
                raise found
            yield found
