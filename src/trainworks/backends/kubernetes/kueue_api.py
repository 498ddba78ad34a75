"""Kueue's objects, in the newest API version that the cluster and this backend have in common.

Source: Kueue's API `kueue.x-k8s.io`. Releases before 0.15 serve v1beta1; 0.15 and newer serve v1beta2, and v1beta1 as
deprecated. The names of LocalQueues, and a Workload's owner, `spec.active` and conditions, are the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainworks.backends.kubernetes.client import KubernetesClient, KubernetesRefusedError
from trainworks.backends.kubernetes.facts import labels_of

_GROUP = "/apis/kueue.x-k8s.io"
_JOB_UID = "kueue.x-k8s.io/job-uid"
_NEWEST, _OLDEST = "v1beta2", "v1beta1"


def kueue_path(client: KubernetesClient, namespace: str) -> str:
    """The path of Kueue's objects in a namespace.

    Args:
        client: asks which versions the cluster serves. One that may not ask gets the path of v1beta1.
        namespace: of the objects.

    Raises:
        NotServed: the cluster has no Kueue.
        UnreachableError: the server does not answer.
    """
    try:
        served = {version["version"] for version in client.get(_GROUP)["versions"]}
    except KubernetesRefusedError:
        served = set()
    return f"{_GROUP}/{_NEWEST if _NEWEST in served else _OLDEST}/namespaces/{namespace}"


def workloads_by_owner(client: KubernetesClient, path: str) -> dict[str, Mapping[str, Any]]:
    """The Workloads of a namespace by the UID of the JobSet that each belongs to.

    Args:
        client: lists them.
        path: of `kueue_path`.

    Raises:
        NotServed: the cluster has no Kueue.
        UnreachableError: the server does not answer.
    """
    return {uid: workload for workload in client.list(f"{path}/workloads") for uid in _owners(workload)}


def _owners(workload: Mapping[str, Any]) -> set[str]:
    owners = {str(one["uid"]) for one in workload["metadata"].get("ownerReferences") or []}
    label = labels_of(workload).get(_JOB_UID)
    return owners | ({label} if label else set())
