"""The exporter on every node of a Kubernetes cluster, and the rights of a Prometheus that finds it there."""

from __future__ import annotations

from typing import Any

from trainworks.jobs.formats.manifest import container_security, to_yaml
from trainworks.observe.monitoring.prometheus import EXPORTER_PORTS

_NAMESPACE = "trainworks-monitoring"
_NAME = "trainworks-exporter"
_TOKEN = "/etc/trainworks"  # noqa: S105, a folder
_SCRATCH = "/tmp"  # noqa: S108, in the container
_USER = 1000
_HEADER = f"""\
# kubectl create namespace {_NAMESPACE}
# kubectl create secret generic {_NAME} --namespace {_NAMESPACE} --from-literal=token="$(openssl rand -hex 32)"
# The pods use the network of their node: the namespace needs the Pod Security standard `privileged`.
# Let Prometheus read that token, and run it under the service account `{_NAMESPACE}/prometheus`.
"""


def exporter_manifest(image: str) -> str:
    """Manifest of the DaemonSet, ready for `kubectl apply`, and of the rights that Prometheus needs.

    The queue and the runs are not here: one exporter beside the queue has them.

    Args:
        image: image with Trainworks; with `trainworks[amd]` for nodes with AMD's GPUs.
    """
    return _HEADER + "---\n".join(to_yaml(document) for document in (_daemon_set(image), *_rights_of_prometheus()))


def _daemon_set(image: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": _NAME}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": _NAME, "namespace": _NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _pod(image)},
        },
    }


def _pod(image: str) -> dict[str, Any]:
    port = EXPORTER_PORTS["trainworks"]
    arguments = ["--listen", f"0.0.0.0:{port}", "--collect", "gpus,fabric,health", "--token-file", f"{_TOKEN}/token"]
    container = {
        "name": "exporter",
        "image": image,
        "command": ["trainworks", "exporter", *arguments],
        # NVIDIA's runtime gives a container the libraries of the driver, and no GPU is taken from the scheduler.
        "env": [
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
        ],
        "ports": [{"name": "metrics", "containerPort": port}],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": container_security() | {"readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "token", "mountPath": _TOKEN, "readOnly": True},
            {"name": "tmp", "mountPath": _SCRATCH},
        ],
    }
    return {
        "hostNetwork": True,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": _USER, "seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "token", "secret": {"secretName": _NAME}}, {"name": "tmp", "emptyDir": {}}],
    }


def _rights_of_prometheus() -> list[dict[str, Any]]:
    """A service account that may list nodes and pods, and nothing else."""
    name, group = "trainworks-prometheus", "rbac.authorization.k8s.io"
    rule = {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]}
    account = {"kind": "ServiceAccount", "name": "prometheus", "namespace": _NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "prometheus", "namespace": _NAMESPACE}},
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [account],
        },
    ]
