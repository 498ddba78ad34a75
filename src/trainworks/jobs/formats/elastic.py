"""Autoscaling hints of a job for the autoscalers of Kubernetes and SkyPilot.

Source: annotations of the cluster autoscaler and of Kueue (0.15); `resources.autostop` of SkyPilot 0.14.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainworks.config.autoscale import Autoscale
from trainworks.errors import UsageError
from trainworks.jobs.formats.manifest import KubernetesJob

_GKE_QUEUED_PROVISIONING = "queued-provisioning.gke.io"


def pod_annotations(job: KubernetesJob) -> dict[str, str]:
    """Annotations that keep the autoscaler from moving a pod, which would restart all ranks of the job."""
    return {} if job.autoscale is None else {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}


def job_annotations(job: KubernetesJob) -> dict[str, str]:
    """Parameters of the ProvisioningRequest that differ between jobs.

    Raises:
        UsageError: the job is in no Kueue queue, which would request its nodes, or GKE needs a time limit.
    """
    options = job.autoscale.kubernetes if job.autoscale else None
    if options is None:
        return {}
    if job.cluster.queue is None:
        raise UsageError(
            "`cluster.autoscale.kubernetes` needs a Kueue queue, which requests the nodes",
            hint="set `cluster.kubernetes.queue`",
        )
    if options.provisioning_class != _GKE_QUEUED_PROVISIONING:
        return {}
    if job.spec.time_limit_s is None:
        raise UsageError(
            f"`{_GKE_QUEUED_PROVISIONING}` provisions nodes only for jobs with a time limit",
            hint="set `job.time_limit`, 7 days at most",
        )
    return {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": str(math.ceil(job.spec.time_limit_s))}


def autostop(autoscale: Autoscale | None) -> Mapping[str, object]:
    """Autostop entry for the `resources` of a SkyPilot task; empty without an idle time.

    Raises:
        UsageError: the block asks for something that autostop cannot do.
    """
    if autoscale is None:
        return {}
    unsupported = {
        "keep": autoscale.keep > 0,
        "start_timeout": autoscale.start_timeout is not None,
        "stop_timeout": autoscale.stop_timeout is not None,
    }
    if field := next((name for name, is_set in unsupported.items() if is_set), None):
        raise UsageError(
            f"SkyPilot's autostop does not support `{field}`: it stops all machines of a cluster together",
            hint=f"remove `cluster.autoscale.{field}`",
        )
    if autoscale.down_after is None:
        return {}
    minutes, rest_s = divmod(autoscale.down_after, 60)
    if rest_s:
        raise UsageError("SkyPilot counts idle time in whole minutes", hint="write `down_after` like `10m`")
    options = autoscale.skypilot
    return {"autostop": {"idle_minutes": int(minutes), "down": options.then == "delete", "wait_for": options.wait_for}}
