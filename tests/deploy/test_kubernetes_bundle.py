"""The Kubernetes bundle of a stack: kustomize builds it, the API takes its objects, and shares are those of Slurm."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from trainworks.api.deploying import render_stack
from trainworks.errors import RunFileError

EXAMPLE = Path("examples/cluster/stack-roce.yaml")
KUEUE_FIELDS = Path("tests/data/kueue_v1beta2.json")
OTHERS = ("kueue.x-k8s.io/v1beta2", "monitoring.coreos.com/v1")


@pytest.fixture(scope="module")
def files() -> Mapping[str, str]:
    found = render_stack(EXAMPLE)
    return {name: text for name, text in found.items() if name.startswith("kubernetes/")}


def objects(files: Mapping[str, str]) -> list[dict[str, Any]]:
    names = yaml.safe_load(files["kubernetes/kustomization.yaml"])["resources"]
    return [each for name in names for each in yaml.safe_load_all(files[f"kubernetes/{name}"])]


def test_each_file_says_why(files, golden) -> None:
    golden("deploy_kubernetes.txt", "\n".join(f"# --- {name}\n{text}" for name, text in files.items()))


def test_the_api_takes_the_objects(files) -> None:
    for each in objects(files):
        if each["apiVersion"] not in OTHERS:
            kubernetes_validate.validate(each, "1.34", strict=True)


def test_kueue_takes_its_objects(files) -> None:
    """Held against the schemas of its published definitions, which the API server applies."""
    fields = json.loads(KUEUE_FIELDS.read_text())
    kueue = [each for each in objects(files) if each["apiVersion"].startswith("kueue.x-k8s.io/")]
    assert {each["kind"] for each in kueue} == {"ResourceFlavor", "ClusterQueue", "LocalQueue"}
    kueue += yaml.safe_load_all(Path("deploy/kubernetes/base/queue.yaml").read_text())
    for each in kueue:
        jsonschema.validate(each, fields[each["kind"]])


def test_a_kueue_that_does_not_serve_the_queues_is_refused(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    assert "kueue: v0.19.2" in text
    (tmp_path / "stack.yaml").write_text(text.replace("kueue: v0.19.2", "kueue: v0.14.4"))
    with pytest.raises(RunFileError, match=r"`kueue` v0\.14\.4 does not serve the API v1beta2"):
        render_stack(tmp_path / "stack.yaml")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kustomize_builds_the_folder(files, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    command = ["kubectl", "kustomize", tmp_path / "kubernetes"]
    built = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(list(yaml.safe_load_all(built))) == len(objects(files))


def test_a_share_is_that_of_the_account_and_a_limit_holds_what_is_lent(files) -> None:
    queues = {each["metadata"]["name"]: each["spec"] for each in objects(files) if each["kind"] == "ClusterQueue"}
    gpus = {name: spec["resourceGroups"][0]["flavors"][0]["resources"][0] for name, spec in queues.items()}
    # 128 GPUs: `research` has 3 of 4 shares, which `vision` alone is below, with at most 48
    assert gpus == {
        "vision": {"name": "nvidia.com/gpu", "nominalQuota": 48, "borrowingLimit": 0},
        "language": {"name": "nvidia.com/gpu", "nominalQuota": 32},
    }


def test_each_claim_finds_its_volume(files) -> None:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for each in objects(files):
        kinds.setdefault(each["kind"], []).append(each)
    volumes = {each["metadata"]["name"]: each["spec"]["claimRef"] for each in kinds["PersistentVolume"]}
    claims = {each["spec"]["volumeName"]: each["metadata"] for each in kinds["PersistentVolumeClaim"]}
    assert len(claims) == len(volumes) == 6
    for name, metadata in claims.items():
        assert volumes[name]["name"] == metadata["name"]
        assert volumes[name]["namespace"] == metadata["namespace"]


def test_pods_get_what_the_nodes_have_but_for_the_table_of_their_own_interfaces(files) -> None:
    hosts = render_stack(EXAMPLE)["roles/fabric/files/nodes_gpu/nccl.conf"]
    lines = dict(line.split("=", 1) for line in hosts.splitlines() if not line.startswith("#"))
    assert lines.pop("NCCL_IB_GID_INDEX") == "3"
    found = {
        (each["metadata"]["namespace"], each["metadata"]["name"]): each["data"]
        for each in objects(files)
        if each["kind"] == "ConfigMap"
    }
    assert found == {("vision", "nccl-gpu"): lines, ("language", "nccl-gpu"): lines}


def test_a_flavor_chooses_nodes_by_the_label_that_the_script_sets(files) -> None:
    (flavor,) = [each for each in objects(files) if each["kind"] == "ResourceFlavor"]
    ((label, value),) = flavor["spec"]["nodeLabels"].items()
    assert f"gpu16 {label}={value} --overwrite" in files["kubernetes/install.sh"]
