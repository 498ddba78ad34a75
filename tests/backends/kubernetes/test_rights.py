"""The rights that `deploy/kubernetes` gives are those that the backend uses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.backends.kubernetes.conftest import Kube
from tests.kubernetes.pods_as_processes import NAMESPACE
from trainworks.backends.kubernetes.client import KubernetesClient, KubernetesRefusedError

pytestmark = pytest.mark.kubernetes

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
VERBS = {"POST": "create", "PATCH": "patch"}


def rights() -> set[tuple[str, str, str]]:
    """(group, resource, verb) of everything that `operator` gives."""
    documents = [one for file in FOLDER.glob("*/*.yaml") for one in yaml.safe_load_all(file.read_text("utf-8"))]
    rules = [rule for one in documents if one["kind"] in ("Role", "ClusterRole") for rule in one["rules"]]
    return {
        (group, kind, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_backend_uses_all_rights_that_it_gets_and_no_others(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[tuple[str, str, str]] = set()
    call = KubernetesClient._call

    def noted(self: KubernetesClient, verb: str, path: str, *arguments: Any, **options: Any) -> Any:
        if path.count("/") > 2:  # else it asks for the versions of a group, which the server allows every user
            used.add(right_of(verb, path))
        return call(self, verb, path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(KubernetesClient, "_call", noted)
        use_everything(kube, used)
    assert used == rights()


SUBMITS = "system:serviceaccount:trainworks:trainworks"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


def apply(kube: Kube, file: str) -> None:
    """As `kubectl apply` does, those of a namespace in that of the tests."""
    for one in yaml.safe_load_all((FOLDER / file).read_text("utf-8")):
        if one["apiVersion"].startswith("rbac."):
            where = _RBAC if one["kind"].startswith("Cluster") else f"{_RBAC}/namespaces/{NAMESPACE}"
            kube.cluster.client.create(f"{where}/{one['kind'].lower()}s", one)


def test_a_user_does_what_the_applied_rights_allow_and_is_told_which_are_missing(
    kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = json.loads(kube.cluster.kubeconfig.read_text("utf-8"))
    configuration["users"][0]["user"]["token"] = SUBMITS
    (tmp_path / "kubeconfig").write_text(json.dumps(configuration))
    with monkeypatch.context() as patched:
        patched.setattr(kube.cluster, "client", KubernetesClient(configuration=str(tmp_path / "kubeconfig")))
        run = kube.command("echo done", nodes=1)
    with pytest.raises(KubernetesRefusedError, match=f'User "{SUBMITS}" cannot get resource "jobsets"') as refused:
        run.submit()
    assert refused.value.hint == "an administrator has to apply deploy/kubernetes/base"
    apply(kube, "base/access.yaml")
    apply(kube, "base/nodes.yaml")
    run.submit()
    run.reaches("SUCCEEDED")
    assert "done" in run.log()
    assert len(run.backend.nodes()) == 4
    with pytest.raises(KubernetesRefusedError, match="cannot patch resource") as refused:
        run.backend.drain("node1", "test")
    assert refused.value.hint == "an administrator has to apply deploy/kubernetes/operator"
    apply(kube, "operator/drain.yaml")
    run.backend.drain("node1", "test")


def use_everything(kube: Kube, used: set[tuple[str, str, str]]) -> None:
    run = kube.command("false", nodes=1, job={"team": "train"}).submit()
    run.reaches("FAILED")
    assert "[0]" not in run.log()
    run.backend.retry(run.rendered, run.here, run.handle)
    again = kube.command("sleep 600", nodes=1, queue="train", job={"hold": True}).submit()
    again.backend.submit(again.rendered, again.here)
    again.backend.release(again.handle)
    again.reaches("RUNNING")
    again.backend.stop(again.handle, at_once=True)
    path = again.backend._core("secrets", again.handle)
    kube.cluster.client.patch(path, {"metadata": {"ownerReferences": None}})  # as if it was another job's
    used.discard(("", "secrets", "patch"))
    again.backend.submit(again.rendered, again.here)
    waits = replace(again.status, reason="no pods yet")
    found = again.backend._client.get(again.backend._jobsets(again.handle))
    again.backend._with_warnings(
        {again.handle: waits}, {again.handle: found}
    )  # as a look at a moment that may pass between two
    again.backend.nodes()
    again.backend.drain("node1", "test")
    again.backend.undrain("node1")


def right_of(verb: str, path: str) -> tuple[str, str, str]:
    """`GET /api/v1/namespaces/default/pods/x/log` is ("", "pods/log", "get")."""
    _, root, *rest = path.split("/")
    group = "" if root == "api" else rest.pop(0)
    rest = rest[1:]
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    kind, named = "/".join([rest[0], *rest[2:]]), len(rest) > 1
    word = VERBS.get(verb) or (verb.lower() if named else {"GET": "list", "DELETE": "deletecollection"}[verb])
    return group, kind, word
