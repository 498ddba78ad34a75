"""Kueue's objects, in the newest API version that the cluster and this backend have in common.

Source: Kueue's API `kueue.x-k8s.io`. Releases before 0.15 serve v1beta1; 0.15 and newer serve v1beta2, and v1beta1 as
deprecated. The names of LocalQueues, and a Workload's owner, `spec.active` and conditions, are the same in both.

A job enters the queue of its team where the run file names none. A JobSet with the label of a queue must be suspended
when it is created.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainworks.backends.kubernetes.client import KubernetesClient, KubernetesRefusedError, NotServed
from trainworks.backends.kubernetes.facts import labels_of
from trainworks.backends.kubernetes.render import HELD
from trainworks.config.engines import Kubernetes
from trainworks.errors import UsageError
from trainworks.jobs.formats.manifest import QUEUE_LABEL, queue_of_team

_GROUP = "/apis/kueue.x-k8s.io"
_JOB_UID = "kueue.x-k8s.io/job-uid"
_NEWEST, _OLDEST = "v1beta2", "v1beta1"


def kueue_path(client: KubernetesClient, namespace: str) -> str:
    """The path of Kueue's objects in a namespace.

    A client that may not ask which versions the cluster serves gets the path of v1beta1.

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
    """The Workloads of a namespace, under the `path` of `kueue_path`, by the UID of the JobSet that each belongs to.

    Raises:
        NotServed: the cluster has no Kueue.
        UnreachableError: the server does not answer.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for workload in client.list(f"{path}/workloads"):
        owners = [str(one["uid"]) for one in workload["metadata"].get("ownerReferences") or []]
        found |= dict.fromkeys(filter(None, (*owners, labels_of(workload).get(_JOB_UID))), workload)
    return found


TEAM_QUEUE = "trainworks/queue"
"""JobSet annotation: the queue of its team. A held job has no label of a queue, and enters this one when released."""


def enter_team_queue(manifest: dict[str, Any], team: str, options: Kubernetes, client: KubernetesClient) -> None:
    """Put a JobSet that is not created yet into the queue of its team.

    It stays as it is without a team, with a queue in the run file, on a cluster without Kueue, and where the user may
    not list queues: then nothing tells whether there are any.

    Raises:
        UsageError: the cluster has Kueue, and the namespace no queue of this team.
        UnreachableError: the server does not answer.
    """
    if not team or options.queue is not None:
        return
    try:
        queues = client.list(f"{kueue_path(client, options.namespace)}/localqueues")
    except (NotServed, KubernetesRefusedError):
        return
    there = sorted(str(one["metadata"]["name"]) for one in queues)
    queue = queue_of_team(team)
    if queue not in there:
        hint = f"the namespace has: {', '.join(there) or 'none'}; name one in `cluster.kubernetes.queue`, or set "
        raise UsageError(
            f"the team `{team}` has no LocalQueue `{queue}` in the namespace `{options.namespace}`",
            place="job.team",
            hint=hint + "`cluster.kubernetes.namespace` to the team's",
        )
    metadata = manifest["metadata"]
    metadata["annotations"] = {**(metadata.get("annotations") or {}), TEAM_QUEUE: queue}
    manifest["spec"]["suspend"] = True
    if HELD not in metadata["annotations"]:
        metadata["labels"] = {**metadata["labels"], QUEUE_LABEL: queue}
