"""The nodes that a job requests, from the cluster that its run file describes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import trainworks
from tests.plan.shapes import workload
from trainworks.api.launching.resolve import resolve
from trainworks.api.run_request import RunRequest, job_in_format, not_kept
from trainworks.catalog.catalog import load_catalog
from trainworks.config.load import parse_run_file
from trainworks.config.run_file import RunFile
from trainworks.errors import UsageError
from trainworks.jobs.accelerator_names import matching_names
from trainworks.jobs.described_nodes import check_worker, with_described_nodes
from trainworks.jobs.formats.manifest import device_of
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.spec_of_run import spec_of

A100 = "4 nodes of DGX A100 80GB"
WORKLOAD = workload()


def run_file(cluster: dict[str, Any], **keys: Any) -> RunFile:
    work = {"run": "python train.py"} if "workload" not in keys else {}
    return RunFile.model_validate({"name": "demo", "cluster": {"engine": "slurm"} | cluster} | work | keys)


def spec(cluster: dict[str, Any], **keys: Any) -> JobSpec:
    return spec_of(with_described_nodes(run_file(cluster, **keys)), run_id="demo-1", working_folder="/")


@pytest.mark.parametrize("work", [{}, {"workload": WORKLOAD}])
def test_a_job_requests_the_nodes_that_are_described(work: dict[str, Any]) -> None:
    asked = spec({"of": A100}, **work)
    assert (asked.min_nodes, asked.max_nodes) == (4, 4)
    assert asked.node == NodeResources(
        cores=96.0, accelerators=8, accelerator="A100-SXM-80GB", memory_bytes=1759 * 10**9
    )  # 4/5 of 128 cores and of 2 TiB


def test_a_job_may_take_a_part_of_the_described_cluster() -> None:
    asked = spec({"of": A100, "nodes": 2, "processes_per_node": 4}, workload=WORKLOAD)
    assert (asked.max_nodes, asked.node.accelerators, asked.node.cores) == (2, 4, 48.0)


def test_what_the_run_file_requests_comes_first() -> None:
    asked = spec({"of": A100}, resources={"accelerators": "A100:4", "cpus": 10, "memory": 64})
    assert asked.node == NodeResources(cores=10.0, accelerators=4, accelerator="A100", memory_bytes=64 * 10**9)


@pytest.mark.parametrize("wanted", [["V100:8", "A100:4"], {"V100:8": None, "A100:4": None}, ["A100:16", "A100:4"]])
def test_of_several_accelerators_the_described_one_is_requested(wanted: Any) -> None:
    asked = spec({"of": A100}, resources={"accelerators": wanted})
    assert (asked.node.accelerator, asked.node.accelerators, asked.node.alternatives) == ("A100", 4, ())
    assert asked.node.cores == 48.0
    request = run_file({"of": A100}, resources={"accelerators": wanted})
    assert not_kept(request, "lsf") == parse_run_file(request.model_dump_json(), name="a.yaml")[1].unused == []


def test_nodes_that_are_described_by_their_accelerators_have_no_known_cores_and_memory() -> None:
    asked = spec({"of": "2 nodes of 8x A100-SXM-80GB over 8x HDR"})
    assert asked.node == NodeResources(cores=8.0, accelerators=8, accelerator="A100-SXM-80GB")


def test_described_nodes_are_found_in_a_run_file_that_is_already_complete() -> None:
    once = with_described_nodes(run_file({"of": A100}))
    assert with_described_nodes(once) == once


@pytest.mark.parametrize(
    ("keys", "place", "said"),
    [
        ("cluster: {engine: slurm, of: 4x p4d.24xlarge, nodes: 5}", "cluster.nodes", "5 nodes requested"),
        ("num_nodes: 5\ncluster: {engine: slurm, of: 4x p4d.24xlarge}", "num_nodes", "5 nodes requested"),
        (
            "resources: {accelerators: H100:8}\ncluster: {engine: slurm, of: 4x p4d.24xlarge}",
            "resources.accelerators",
            "`H100:8` requested",
        ),
        (
            "resources: {accelerators: A100:16}\ncluster: {engine: slurm, of: 4x p4d.24xlarge}",
            "resources.accelerators",
            "`A100:16` requested",
        ),
        ("cluster: {engine: slurm, of: 4x p4d.25xlarge}", "cluster.of", "p4d.25xlarge"),
    ],
)
def test_a_job_that_requests_more_than_is_described_is_refused_with_its_line(keys: str, place: str, said: str) -> None:
    parsed, source = parse_run_file(f"name: demo\nrun: python train.py\n{keys}\n", name="run.yaml")
    with pytest.raises(UsageError) as found:
        with_described_nodes(parsed, source)
    assert said in found.value.message and found.value.hint
    assert (found.value.place or "").endswith(place) and (found.value.place or "").startswith("run.yaml:")


def test_more_ranks_than_described_accelerators_are_refused() -> None:
    with pytest.raises(UsageError, match="16 ranks on each node"):
        spec({"of": A100, "processes_per_node": 16}, workload=WORKLOAD)


@given(st.sampled_from(sorted(load_catalog().accelerators)))
def test_every_accelerator_of_the_catalogue_has_a_request_that_reads_back(name: str) -> None:
    completed = with_described_nodes(run_file({"of": f"1 node of 2x {name}"}))
    again = RunFile.model_validate(json.loads(completed.model_dump_json()))
    assert again.resources == completed.resources


@pytest.mark.parametrize(
    ("of", "gres"),
    [
        ("DGX A100 80GB", "a100"),
        ("DGX H100", "h100"),
        ("8x H100-SXM-80GB", "nvidia_h100_80gb_hbm3"),
        ("Standard_ND96isr_MI300X_v5", "mi300x"),
        ("8x L40S", "l40s"),
    ],
)
def test_the_described_accelerator_is_found_under_the_names_of_slurm(of: str, gres: str) -> None:
    wanted = spec({"of": of}).node.accelerator
    assert matching_names(str(wanted), ["v100", gres]) == [gres]


def test_every_format_requests_the_described_accelerators() -> None:
    request = RunRequest(run_file({"of": A100, "kubernetes": {"image": "docker.io/me/train:1"}}))
    for name in ("jobset", "trainjob"):
        text = job_in_format(request, name)
        assert "nvidia.com/gpu: '8'" in text and "cpu: '96'" in text and "memory: '1759G'" in text
    task = yaml.safe_load(job_in_format(request, "skypilot"))
    assert (task["num_nodes"], task["resources"]) == (
        4,
        {"accelerators": "A100-80GB:8", "cpus": "96+", "memory": "1759+"},
    )
    assert '-gpu "num=8/host' in job_in_format(request, "lsf")


STACK = """\
name: hall
os: Ubuntu 24.04
network: 10.20.0.0/16
admin_keys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqfRZ1sG9bU0b1yk0yUu6cK0Ypt2k9fPxJmI3xW5c1e admin]
nodes:
  - {hosts: "gpu[1-2]", address: 10.20.1.1, roles: [compute], machine: DGX H100, fabric: {devices: [mlx5_4, mlx5_7]}}
  - {hosts: "old[1-2]", address: 10.20.2.1, roles: [compute], machine: DGX A100 80GB, fabric: none}
gpu: {driver: "580"}
fabric: {link: infiniband, devices: [mlx5_0, mlx5_1]}
kubernetes: {gpu_operator: v26.7.0, network_operator: v25.10.0, jobset: v0.10.1, kueue: v0.19.2}
users: [{name: alice, uid: 2001, account: vision}]
"""
ROCE = {
    "link: infiniband, devices:": "link: roce, network: 172.20.0.0/24, speed: 400, interfaces: [r0, r1], devices:",
    "{devices: [mlx5_4,": "{interfaces: [r4, r7], devices: [mlx5_4,",
}
RAILS = {"NCCL_IB_HCA": "=mlx5_4,mlx5_7", "NCCL_SOCKET_IFNAME": "^lo,docker0"}
PLUGIN = {"rdma/rails": 1}


@pytest.mark.parametrize(
    ("changes", "group", "keys", "envs", "devices"),
    [
        ({}, "gpu", {}, RAILS, PLUGIN),
        ({}, "old", {}, {}, {}),
        ({}, "gpu", {"num_nodes": 1}, {}, {}),
        ({}, "gpu", {"envs": {"NCCL_IB_HCA": "=mlx5_9"}}, RAILS | {"NCCL_IB_HCA": "=mlx5_9"}, PLUGIN),
        ({"network_operator: v25.10.0, ": ""}, "gpu", {}, RAILS, {}),
        (ROCE, "gpu", {}, RAILS | {"NCCL_IB_TC": "106"}, {}),
    ],
    ids=["rails", "no rails", "one node", "own", "no plugin", "roce"],
)
def test_pods_get_the_rails_of_their_nodes(
    tmp_path: Path,
    changes: dict[str, str],
    group: str,
    keys: dict[str, Any],
    envs: dict[str, str],
    devices: dict[str, int],
) -> None:
    """Adapters by the resource of the bundle, and their names as variables: a pod sees no file of its node."""
    text = STACK
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "stack.yaml").write_text(text)
    cluster = {"of": f"{tmp_path}/stack.yaml:{group}", "kubernetes": {"image": "me/train:1"}}
    asked = run_file({"engine": "kubernetes"} | cluster, **keys)
    completed = with_described_nodes(asked)
    assert (completed.envs, completed.cluster.kubernetes.devices) == (envs, devices)
    assert with_described_nodes(completed) == completed
    manifest = job_in_format(RunRequest(asked), "jobset")
    assert envs == dict(re.findall(r"name: (NCCL\w+)\n +value: '(.+)'", manifest))
    assert ("rdma/rails: '1'" in manifest) is bool(devices)
    on_hosts = with_described_nodes(run_file({"engine": "ssh"} | cluster))
    assert (dict(on_hosts.envs), on_hosts.cluster.kubernetes.devices) == ({}, {})


def test_a_described_cluster_without_an_engine_can_be_written_for_another_program() -> None:
    described = run_file({"engine": "described", "of": A100})
    assert with_described_nodes(described) is described
    assert "num=8/host" in job_in_format(RunRequest(described), "lsf")


def test_kubernetes_has_a_device_for_what_is_described() -> None:
    for of in ("DGX H100", "Standard_ND96isr_MI300X_v5", "8x B200", "Gaudi3 node"):
        node = spec({"of": of}).node
        assert device_of(node.accelerator, node.accelerators, 1).resource


@pytest.mark.parametrize("of", ["4 nodes of TPU v5p host", "64x TPU-v5p", "2x trn1.32xlarge"])
def test_a_workload_is_refused_where_no_worker_exists(of: str, tmp_path: Path) -> None:
    keys = {"name": "demo", "workload": WORKLOAD.model_dump(mode="json", exclude_unset=True)}
    cluster = {"engine": "kubernetes", "of": of}
    parsed, source = parse_run_file(json.dumps(keys | {"cluster": cluster}), name="run.yaml")
    for refused in (lambda: resolve(parsed, source, run_id="demo", runs=tmp_path), lambda: trainworks.plan(parsed)):
        with pytest.raises(UsageError, match="NVIDIA and AMD GPUs alone") as found:
            refused()
        assert "framework: jax" in (found.value.hint or "")
        assert found.value.place in (None, source.place(("cluster", "of")))
    described = trainworks.plan(parsed, on=of)
    assert described.job.cluster.accelerator.vendor in ("Google", "AWS")


@pytest.mark.parametrize("kind", ["tpu-v5e:4", "Trainium2:16", "Gaudi3:8"])
def test_a_workload_that_requests_another_kind_of_accelerator_is_refused_at_its_line(kind: str) -> None:
    parsed = run_file({}, workload=WORKLOAD, resources={"accelerators": kind})
    with pytest.raises(UsageError, match="cannot train a workload"):
        check_worker(parsed)


def test_a_command_may_run_on_tpus() -> None:
    completed = with_described_nodes(run_file({"engine": "kubernetes", "of": "4x TPU v5p host"}, framework="jax"))
    check_worker(completed)
    assert (completed.starts, completed.resources.accelerators[0].count) == ("per_node", 4)
