"""What a job says of nodes that come and go, to the autoscalers of Kubernetes and SkyPilot.

Source: annotations of the cluster autoscaler and of Kueue (0.15); `resources.autostop` of SkyPilot 0.14.
"""

from __future__ import annotations

import math
from typing import Any

from trainworks.config.autoscale import Autoscale
from trainworks.errors import UsageError
from trainworks.jobs.formats.manifest import Pods

__all__ = ["autostop", "of_the_job", "of_the_pods"]

_GOOGLES_QUEUE = "queued-provisioning.gke.io"


def of_the_pods(pods: Pods) -> dict[str, Any]:
    """Their node is not taken away to move them elsewhere: all ranks of a job would start again."""
    if pods.autoscale is None:
        return {}
    return {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}


def of_the_job(pods: Pods) -> dict[str, Any]:
    """Parameters of the ProvisioningRequest that only the job knows.

    Raises:
        UsageError: nodes are to be asked for, and no queue of Kueue does it; or Google's queue wants a time limit.
    """
    wanted = pods.autoscale.kubernetes if pods.autoscale else None
    if wanted is None:
        return {}
    if pods.where.queue is None:
        raise UsageError("Kueue asks for the nodes, and the job is in none of its queues", hint=_QUEUE)
    if wanted.provisioning_class != _GOOGLES_QUEUE:
        return {}
    if pods.spec.time_limit_s is None:
        raise UsageError(f"`{_GOOGLES_QUEUE}` gives nodes for a time that the job has to name", hint=_LIMIT)
    limit_s = str(math.ceil(pods.spec.time_limit_s))
    return {"annotations": {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": limit_s}}


_QUEUE = "set `cluster.kubernetes.queue`"
_LIMIT = "set `job.time_limit`, 7 days at most"


def autostop(autoscale: Autoscale | None) -> dict[str, Any]:
    """`resources` of a SkyPilot task; nothing where no time is said.

    Raises:
        UsageError: the block asks for something that autostop cannot do.
    """
    if autoscale is None:
        return {}
    lacks = {
        "keep": autoscale.keep > 0,
        "start_timeout": autoscale.start_timeout is not None,
        "stop_timeout": autoscale.stop_timeout is not None,
    }
    wish = next((name for name, asked in lacks.items() if asked), None)
    if wish is not None:
        raise UsageError(
            f"SkyPilot's autostop has no `{wish}`: all machines of a cluster go together",
            hint=f"leave `cluster.autoscale.{wish}` out",
        )
    if autoscale.down_after is None:
        return {}
    minutes, rest_s = divmod(autoscale.down_after, 60)
    if rest_s:
        raise UsageError("SkyPilot counts idle time in minutes", hint="write `down_after` like `10m`")
    own = autoscale.skypilot
    return {"autostop": {"idle_minutes": int(minutes), "down": own.then == "delete", "wait_for": own.wait_for}}
