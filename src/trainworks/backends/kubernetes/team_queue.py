"""The queue of Kueue that a job enters for its team, where the run file names no queue.

Source: Kueue's API, LocalQueue; a JobSet with the label of a queue must be suspended when it is created.
"""

from __future__ import annotations

from typing import Any

from trainworks.backends.kubernetes.client import KubernetesClient, KubernetesRefusedError, NotServed
from trainworks.backends.kubernetes.kueue_api import kueue_path
from trainworks.backends.kubernetes.render import HELD
from trainworks.config.engines import Kubernetes
from trainworks.errors import UsageError
from trainworks.jobs.formats.manifest import QUEUE_LABEL, queue_of_team

TEAM_QUEUE = "trainworks/queue"
"""JobSet annotation: the queue of its team. A held job has no label of a queue, and enters this one when released."""


def enter_team_queue(manifest: dict[str, Any], team: str, options: Kubernetes, client: KubernetesClient) -> None:
    """Put a JobSet that is not created yet into the queue of its team.

    It stays as it is without a team, with a queue in the run file, on a cluster without Kueue, and where the user may
    not list queues: then nothing tells whether there are any.

    Args:
        manifest: of the JobSet.
        team: the run file's `job.team`; empty without one.
        options: the run file's `cluster.kubernetes`.
        client: lists the queues of the namespace.

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
