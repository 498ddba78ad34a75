"""Kueue's admission check that requests all nodes of a job from the cluster autoscaler before admission.

Source: Kueue's API `kueue.x-k8s.io/v1beta2` (served from 0.15 on; 0.19 still serves v1beta1, deprecated), its guide to
ProvisioningRequest, and `autoscaling.x-k8s.io` ProvisioningRequest of the cluster autoscaler.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from trainworks.config.autoscale import Autoscale, KubernetesAutoscale
from trainworks.errors import UsageError
from trainworks.jobs.formats.manifest import to_yaml

NAME = "trainworks-nodes"
"""Name of the check and of its configuration."""
KUEUE_API = "kueue.x-k8s.io/v1beta2"
_LONGEST_WAIT_S = 1800
_UNSUPPORTED = {
    "down_after": "`--scale-down-unneeded-time` of the cluster autoscaler sets it for all nodes",
    "keep": "the minimum size of the node group sets it",
    "start_timeout": "`--max-node-provision-time` of the cluster autoscaler sets it",
    "stop_timeout": "the cluster autoscaler waits for the grace of the pods",
}


def kueue_files(autoscale: Autoscale) -> dict[str, str]:
    """Name and text of the only file, for an administrator to apply.

    Raises:
        UsageError: the block sets a field that Kubernetes objects cannot express.
    """
    strategy = {"spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": NAME}]}}}
    command = f"# then: kubectl patch clusterqueue QUEUE --type merge --patch '{json.dumps(strategy)}'\n"
    return {"kueue.yaml": command + "---\n".join(to_yaml(one) for one in kueue_objects(autoscale))}


def kueue_objects(autoscale: Autoscale) -> list[Mapping[str, object]]:
    """Build the ProvisioningRequestConfig and the AdmissionCheck that uses it.

    Raises:
        UsageError: as `kueue_files`.
    """
    field = next(
        (name for name in _UNSUPPORTED if getattr(autoscale, name) != Autoscale.model_fields[name].default), None
    )
    if field is not None:
        raise UsageError(
            f"Kubernetes does not support `cluster.autoscale.{field}` per job: {_UNSUPPORTED[field]}",
            hint=f"remove `cluster.autoscale.{field}`",
        )
    options = autoscale.kubernetes or KubernetesAutoscale()
    spec = {
        "provisioningClassName": options.provisioning_class,
        "parameters": dict(options.parameters) or None,
        "retryStrategy": {
            "backoffLimitCount": options.retries,
            "backoffBaseSeconds": math.ceil(options.retry_after),
            "backoffMaxSeconds": max(_LONGEST_WAIT_S, math.ceil(options.retry_after)),
        },
    }
    return [
        _object("ProvisioningRequestConfig", {key: value for key, value in spec.items() if value is not None}),
        _object(
            "AdmissionCheck",
            {
                "controllerName": "kueue.x-k8s.io/provisioning-request",
                "parameters": {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": NAME},
            },
        ),
    ]


def _object(kind: str, spec: Mapping[str, object]) -> Mapping[str, object]:
    return {"apiVersion": KUEUE_API, "kind": kind, "metadata": {"name": NAME}, "spec": spec}
