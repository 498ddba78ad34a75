"""Where Kueue's objects are: in the newest API version that the cluster and this backend have in common.

Source: Kueue's API `kueue.x-k8s.io`. Releases before 0.15 serve v1beta1; 0.15 and newer serve v1beta2, and v1beta1 as
deprecated. The names of LocalQueues, and a Workload's owner, `spec.active` and conditions, are the same in both.
"""

from __future__ import annotations

from trainworks.backends.kubernetes.client import KubernetesClient, KubernetesRefusedError

_GROUP = "/apis/kueue.x-k8s.io"
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
