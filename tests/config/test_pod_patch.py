"""What a run file may change in its pods, and how a patch is merged."""

from __future__ import annotations

from typing import Any

import pytest

from trainworks.config.pod_patch import checked_pod_patch, patched
from trainworks.errors import UsageError

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "demo"}},
    "spec": {
        "restartPolicy": "Never",
        "tolerations": [{"key": "a"}],
        "containers": [
            {
                "name": "node",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "securityContext": {"capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "runs", "mountPath": "/runs"}],
            }
        ],
    },
}


def test_lists_are_merged_by_the_field_that_identifies_their_entries() -> None:
    change = {
        "name": "node",
        "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    found = patched(TEMPLATE, {"spec": {"containers": [change, {"name": "sidecar", "image": "x"}]}})["spec"]
    node, sidecar = found["containers"]
    assert node["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"}]
    assert node["securityContext"] == {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}
    assert [mount["mountPath"] for mount in node["volumeMounts"]] == ["/runs", "/data"]
    assert (sidecar, found["restartPolicy"]) == ({"name": "sidecar", "image": "x"}, "Never")


def test_other_lists_are_replaced_and_null_removes_a_field() -> None:
    found = patched(TEMPLATE, {"metadata": {"labels": None}, "spec": {"tolerations": [{"key": "b"}]}})
    assert (found["metadata"], found["spec"]["tolerations"]) == ({}, [{"key": "b"}])


def test_the_template_stays_as_it_is() -> None:
    before = repr(TEMPLATE)
    patched(TEMPLATE, {"spec": {"containers": [{"name": "node", "env": [{"name": "A", "value": None}]}]}})
    assert repr(TEMPLATE) == before


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"hostNetwork": True}, "`hostNetwork` is not part of a pod template"),
        ({"spec": "x"}, "`spec` is not a mapping"),
        ({"metadata": {"name": "x"}}, "`metadata.name` cannot be set"),
        ({"spec": {"restartPolicy": "Always"}}, "`restartPolicy` is set by Trainworks"),
        ({"spec": {"containers": [{"name": "node", "command": ["sh"]}]}}, "`command` is set by Trainworks"),
        ({"spec": {"containers": [{"image": "x"}]}}, "an entry of `spec.containers` has no `name`"),
        ({"spec": {"containers": [{"name": "node", "env": ["A"]}]}}, "an entry of `spec.containers.env` has no `name`"),
        ({"spec": {"volumes": [7]}}, "an entry of `spec.volumes` has no `name`"),
    ],
)
def test_a_patch_of_something_else_is_refused(patch: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        checked_pod_patch(patch)
    assert (refused.value.message, bool(refused.value.hint)) == (message, True)


def test_a_list_may_be_removed() -> None:
    assert checked_pod_patch({"spec": {"imagePullSecrets": None, "hostNetwork": True}})
