"""Commands of kubectl that enter the pod of one node of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainworks.backends.entering import entering
from trainworks.backends.kubernetes.output import pod_index
from trainworks.config.engines import Kubernetes
from trainworks.errors import UsageError
from trainworks.jobs.formats.manifest import RUNS

Object = Mapping[str, Any]


def kubectl_exec(
    options: Kubernetes, pods: Sequence[Object], handle: str, command: Sequence[str], *, node: int, terminal: bool
) -> list[str]:
    """`kubectl exec` that runs a command beside the ranks of a node.

    Args:
        options: the run file's `cluster.kubernetes`.
        pods: of the job.
        handle: name of the JobSet, and of the run's folder in the pods.
        command: argument vector; `("-m", MODULE, ...)` is started with the Python of the pod.
        node: index of the node.
        terminal: whether the command gets a terminal.

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
