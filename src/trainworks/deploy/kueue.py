"""Kueue's admission check that asks the cluster autoscaler for all nodes of a job before the job is admitted.

Source: Kueue's API `kueue.x-k8s.io/v1beta2` (from 0.15 on; the same fields as in v1beta1), its guide to
ProvisioningRequest, and `autoscaling.x-k8s.io` ProvisioningRequest of the cluster autoscaler.
"""

from __future__ import annotations

import json
import math
from typing import Any

from trainworks.config.autoscale import Autoscale, KubernetesAutoscale
from trainworks.errors import UsageError
from trainworks.jobs.formats.manifest import to_yaml

__all__ = ["NAME", "kueue_files", "kueue_objects"]

NAME = "trainworks-nodes"
"""Of the check and of its configuration."""
_API = "kueue.x-k8s.io/v1beta2"
_LONGEST_WAIT_S = 1800
_FLAG = "`--scale-down-unneeded-time` of the cluster autoscaler"
_LACKS = {
    "down_after": f"{_FLAG} says it, for all nodes alike",
    "keep": "the least size of the node group says it",
    "start_timeout": "`--max-node-provision-time` of the cluster autoscaler says it",
    "stop_timeout": "the cluster autoscaler waits for the pods' own grace",
}


def kueue_files(autoscale: Autoscale) -> dict[str, str]:
    """Name and text of the only file, to be applied by an administrator.

    Raises:
        UsageError: the block asks for something that no object of Kubernetes can say.
    """
    strategy = {"spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": NAME}]}}}
    then = f"# then: kubectl patch clusterqueue QUEUE --type merge --patch '{json.dumps(strategy)}'\n"
    return {"kueue.yaml": then + "---\n".join(to_yaml(one) for one in kueue_objects(autoscale))}


def kueue_objects(autoscale: Autoscale) -> list[dict[str, Any]]:
    """The configuration and the check that uses it.

    Raises:
        UsageError: as `kueue_files`.
    """
    _check(autoscale)
    wanted = autoscale.kubernetes or KubernetesAutoscale()
    spec: dict[str, Any] = {
        "provisioningClassName": wanted.provisioning_class,
        "parameters": dict(wanted.parameters) or None,
        "retryStrategy": {
            "backoffLimitCount": wanted.retries,
            "backoffBaseSeconds": math.ceil(wanted.retry_after),
            "backoffMaxSeconds": max(_LONGEST_WAIT_S, math.ceil(wanted.retry_after)),
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


def _object(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": NAME}, "spec": spec}


def _check(autoscale: Autoscale) -> None:
    written = next((name for name in _LACKS if getattr(autoscale, name) != Autoscale.model_fields[name].default), None)
    if written is not None:
        raise UsageError(
            f"no object of Kubernetes can say `autoscale.{written}`: {_LACKS[written]}",
            hint=f"leave `cluster.autoscale.{written}` out",
        )
