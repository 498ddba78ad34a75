"""The bundle of a stack, applied to an API server: all its objects are taken, and a second time nothing changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from tests.backends.kubernetes.conftest import Kube
from tests.kubernetes.cluster import crd, wait_until
from trainworks.api.deploying import render_stack
from trainworks.backends.kubernetes.client import KubernetesRefusedError, NotServed

pytestmark = pytest.mark.kubernetes
EXAMPLE = "examples/cluster-demo/shapes/kubernetes.yaml"
FURTHER = (
    ("kueue.x-k8s.io", "v1beta2", "ClusterQueue", "Cluster"),
    ("kueue.x-k8s.io", "v1beta2", "ResourceFlavor", "Cluster"),
    ("monitoring.coreos.com", "v1", "PodMonitor", "Namespaced"),
)
"""Group, version, name and scope of kinds that operators define."""
PLURALS = {"NetworkPolicy": "networkpolicies"}


def collection(of: Mapping[str, Any]) -> str:
    """Path of the objects of one kind, and of one namespace if they are in one."""
    group, version = of["apiVersion"], of["kind"]
    start = f"/apis/{group}" if "/" in group else f"/api/{group}"
    namespace = of["metadata"].get("namespace")
    plural = PLURALS.get(version, f"{version.lower()}s")
    return f"{start}/namespaces/{namespace}/{plural}" if namespace else f"{start}/{plural}"


def test_an_api_server_takes_the_bundle_and_a_second_time_nothing_changes(kube: Kube) -> None:
    client = kube.cluster.client
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for group, version, kind, scope in FURTHER:
        client.create(definitions, crd(group, [version], kind, anything, scope=scope))
    files = render_stack(EXAMPLE)
    names = yaml.safe_load(files["kubernetes/kustomization.yaml"])["resources"]
    objects = [each for name in names for each in yaml.safe_load_all(files[f"kubernetes/{name}"])]
    kinds = {each["kind"] for each in objects}
    assert kinds >= {
        "Namespace",
        "ClusterQueue",
        "LocalQueue",
        "PersistentVolume",
        "NetworkPolicy",
        *(each[2] for each in FURTHER),
    }

    def served() -> bool:
        try:
            return [
                client.list(f"/apis/{group}/{version}/{kind.lower()}s") for group, version, kind, _ in FURTHER
            ] != []
        except NotServed:
            return False

    wait_until(served)
    created = [client.create(collection(each), each) for each in objects]
    again = [client.patch(f"{collection(each)}/{each['metadata']['name']}", each) for each in objects]
    versions = [[each["metadata"]["resourceVersion"] for each in several] for several in (created, again)]
    assert versions[0] == versions[1]
    policy = next(each for each in objects if each["kind"] == "NetworkPolicy")
    misspelt = {**policy, "metadata": {**policy["metadata"], "name": "misspelt"}, "spec": {"podselector": {}}}
    with pytest.raises(KubernetesRefusedError, match="podselector"):
        client.create(collection(misspelt), misspelt)
