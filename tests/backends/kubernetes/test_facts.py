"""Nodes as an API server has them."""

from __future__ import annotations

from typing import Any

import pytest

from trainworks.backends.kubernetes.facts import node_facts, quantity


def node(*, ready: str = "True", allocatable: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    there = {"cpu": "63500m", "memory": "2016Gi", "nvidia.com/gpu": "8"} if allocatable is None else allocatable
    condition = {"type": "Ready", "status": ready, "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting"}
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    return {
        "metadata": {"name": "a", "labels": labels, "annotations": {"trainworks/drained": "bad NIC"}},
        "spec": spec,
        "status": {"allocatable": there, "conditions": [condition]},
    }


def pod(job: str | None = None, *, phase: str = "Running", on: str = "a", **asked: str) -> dict[str, Any]:
    names = {"gpu": "nvidia.com/gpu", "mig": "nvidia.com/mig-1g.10gb"}
    resources = {"limits": {names.get(key, key): amount for key, amount in asked.items()}}
    labels = {"jobset.sigs.k8s.io/jobset-name": job} if job else {}
    spec = {"nodeName": on, "containers": [{"resources": resources}, {}]}
    return {"metadata": {"labels": labels}, "spec": spec, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("text", "value"),
    [("64", 64), ("1500m", 1.5), ("2Gi", 2**31), ("1e3", 1000), ("2E", 2e18), ("1Ei", 2**60), (0, 0), ("1.5k", 1500)],
)
def test_a_quantity(text: str | int, value: float) -> None:
    assert quantity(text) == value


def test_what_is_no_quantity_is_an_error() -> None:
    with pytest.raises(ValueError, match="`many` is not a quantity"):
        quantity("many")


def test_a_node_and_what_is_taken_of_it() -> None:
    pods = [
        pod("x", gpu="4", cpu="2"),
        pod(cpu="500m"),
        pod("y", phase="Succeeded", gpu="4"),
        pod("z", on="b", gpu="8"),
    ]
    facts = node_facts(node(), pods)
    assert (facts.state, facts.raw, facts.accelerators, facts.accelerators_taken) == ("mixed", "Ready", 8, 4)
    assert (facts.cores, facts.cores_taken, facts.memory_bytes) == (63.5, 2.5, 2016 * 2**30)
    assert facts.jobs == ("x",) and facts.accelerator == "NVIDIA-H100-80GB-HBM3"


@pytest.mark.parametrize(
    ("found", "pods", "state", "raw", "reason"),
    [
        (node(), [], "free", "Ready", None),
        (node(), [pod(gpu="8")], "taken", "Ready", None),
        (node(unschedulable=True), [], "drained", "Ready,SchedulingDisabled", "bad NIC"),
        (node(unschedulable=True), [pod(gpu="1")], "draining", "Ready,SchedulingDisabled", "bad NIC"),
        (node(ready="Unknown"), [], "down", "NotReady", "Kubelet stopped posting"),
        (node(ready="Unknown", unschedulable=True), [], "down", "NotReady,SchedulingDisabled", "bad NIC"),
        (node(allocatable={"cpu": "4"}), [pod(cpu="4")], "taken", "Ready", None),
        (node(allocatable={"cpu": "4"}), [pod(cpu="1")], "mixed", "Ready", None),
    ],
)
def test_the_state_of_a_node(found: Any, pods: list[Any], state: str, raw: str, reason: str | None) -> None:
    facts = node_facts(found, pods)
    assert (facts.state, facts.raw, facts.reason) == (state, raw, reason)


PARTS = {"nvidia.com/mig-1g.10gb": "7"}


@pytest.mark.parametrize(
    ("there", "labels", "load", "kind"),
    [
        (PARTS, {}, (7, 2), "1g.10gb"),
        (PARTS, {"nvidia.com/mig-1g.10gb.product": "NVIDIA-H100-MIG-1g.10gb"}, (7, 2), "NVIDIA-H100-MIG-1g.10gb"),
        (PARTS | {"nvidia.com/gpu": "0"}, {}, (7, 2), "1g.10gb"),
        (PARTS | {"nvidia.com/mig-2g.20gb": "0"}, {}, (7, 2), "1g.10gb"),
        (PARTS | {"nvidia.com/mig-2g.20gb": "3"}, {}, (10, 2), None),
        (PARTS | {"nvidia.com/gpu": "4"}, {}, (4, 1), "NVIDIA-H100-80GB-HBM3"),
    ],
)
def test_a_node_without_whole_accelerators_offers_its_parts(
    there: dict[str, str], labels: dict[str, str], load: tuple[int, int], kind: str | None
) -> None:
    found = node(allocatable={"cpu": "4"} | there)
    found["metadata"]["labels"] |= labels
    facts = node_facts(found, [pod("x", mig="2"), pod("y", gpu="1")])
    assert ((facts.accelerators, facts.accelerators_taken), facts.accelerator) == (load, kind)
