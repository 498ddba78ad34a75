"""What articles about clusters tell readers to type comes out corrected, with the reason above the line.

The cluster is theirs: eight nodes of eight A100 with two EPYC 7713 and 1 TB, HDR100, NFS and Lustre, Ubuntu 22.04.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from trainworks.api.deploying import render_stack

STACK = """name: gpus
os: Ubuntu 22.04
network: 10.0.0.0/24
admin_keys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqfRZ1s]
nodes:
  - {hosts: head, address: 10.0.0.1, roles: [login, controller, database, monitoring]}
  - {hosts: store, address: 10.0.0.2, roles: [storage]}
  - hosts: gpu-node[1-8]
    address: 10.0.0.11
    roles: [compute]
    hardware: {sockets: 2, cores_per_socket: 64, threads_per_core: 2, memory: 1007 GiB, accelerators: "a100:8"}
gpu: {driver: "580", fabric_manager: true}
fabric: {link: infiniband, devices: [mlx5_0], subnet_managers: [head], mpi: {openmpi: "4.1"}}
slurm:
  release: "26.05"
  pmix: "4.2"
  partitions: [{name: training, default: true, max_time: "72:00:00"}]
mounts:
  - {kind: nfs, at: /shared, server: store, export: /export/shared}
  - {kind: lustre, at: /datasets, device: "10.0.0.5@o2ib:/datasets"}
environments: [{name: torch, torch: "2.14", cuda: "13.0", at: /shared/environments}]
images: [{name: train, base: "docker.io/library/python:3.12-slim@sha256:%s", cuda: "13.0", lock: train.lock}]
monitoring: {}
""" % ("12" * 32)
SLURM, FABRIC, STORAGE = "roles/scheduler/files", "roles/fabric/files", "roles/storage/files"
VARIABLES, ROLE = "group_vars/nodes_gpu_node.yaml", "roles/{}/tasks/main.yaml"
NVIDIA = "roles/gpu/tasks/nvidia.yaml"
SNIPPETS = [
    # what the article has, the file, the line that stands there instead, and words of its reason
    (
        "NodeName=gpu-node[1-8] CPUs=128 RealMemory=768000",
        f"{SLURM}/slurm.conf",
        r"RealMemory=1031168",
        "drain the node",
    ),
    ("Gres=gpu:8, and no GresTypes", f"{SLURM}/slurm.conf", r"GresTypes=gpu", "does not know the GPUs"),
    ("no SelectType", f"{SLURM}/slurm.conf", r"SelectType=select/cons_tres", "jobs share nodes"),
    ("no TaskPlugin", f"{SLURM}/slurm.conf", r"TaskPlugin=task/affinity,task/cgroup", "hides the devices"),
    ("srun --mpi=pmix_v3", f"{SLURM}/slurm.conf", r"MpiDefault=pmix", "one release of PMIx"),
    ("no gres.conf", f"{SLURM}/gres.conf", r"NodeName=gpu-node\[1-8\] Name=gpu", "device files"),
    ("no cgroup.conf", f"{SLURM}/cgroup.conf", r"ConstrainDevices=yes", "mere request"),
    ("apt-get install nvidia-driver-525 cuda-toolkit", ROLE.format("gpu"), r"- name: Install the driver", "No CUDA"),
    ("no fabric manager", NVIDIA, r"- name: Start the fabric manager", "do not start CUDA"),
    ("tar -xvf nccl_*.txz; cp to /usr/local", ROLE.format("environments"), r"- name: Install PyTorch", "NCCL"),
    ("--extra-index-url .../cu120", ROLE.format("environments"), r"- name: Install PyTorch", "One index"),
    ("git clone ucx; make install", f"{FABRIC}/openmpi-mca-params.conf", r"pml = ucx", "fall back to TCP"),
    ("NCCL_IB_HCA=mlx5_0:1", f"{FABRIC}/nodes_gpu_node/nccl.conf", r"NCCL_IB_HCA==mlx5_0", "whole names"),
    (
        "NCCL_SOCKET_IFNAME=^lo,docker0",
        f"{FABRIC}/nodes_gpu_node/nccl.conf",
        r"NCCL_SOCKET_IFNAME=\^lo,docker0",
        "no other node",
    ),
    ("FROM nvidia/cuda:11.6.0-cudnn8-runtime", "images/train/Containerfile", r"FROM .*@sha256:", "wheels bring CUDA"),
    ("pip install torch torchvision", "images/train/Containerfile", r"RUN python3 -m venv", "hash of the lock"),
    ("root user", "images/train/Containerfile", r"USER 1000:1000", "root"),
    ("mount NFS for all nodes", f"{STORAGE}/shared.mount", r"Options=rw,hard,nconnect=8,noatime", "loses data"),
    ("mount Lustre for all nodes", f"{STORAGE}/datasets.mount", r"Options=rw,flock,noatime", "locks hold"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    folder = tmp_path_factory.mktemp("articles")
    (folder / "stack.yaml").write_text(STACK)
    (folder / "train.lock").write_text(f"torch==2.14.0 --hash=sha256:{'ab' * 32}\n")
    return render_stack(folder / "stack.yaml")


def reason_of(text: str, pattern: str) -> str:
    """The comments above the first line that has the pattern."""
    lines = text.splitlines()
    place = next(index for index, line in enumerate(lines) if re.search(pattern, line) and not line.startswith("#"))
    above: list[str] = []
    while place and lines[place - 1].lstrip().startswith("#"):
        place -= 1
        above.insert(0, lines[place].lstrip("# "))
    return " ".join(above)


@pytest.mark.parametrize(("article", "file", "line", "reason"), SNIPPETS, ids=[each[0] for each in SNIPPETS])
def test_the_corrected_line_has_its_reason_above_it(files, article: str, file: str, line: str, reason: str) -> None:
    assert reason in reason_of(files[file], line)


def test_none_of_the_lines_that_fail_are_rendered(files) -> None:
    wrong = ("nvidia-driver-525", "cuda-toolkit", "cu120", "pmix_v3 ", "cuda:11.6", "NCCL_TOPO_FILE", "NCCL_DEBUG=INFO")
    texts = "\n".join(
        line for text in files.values() for line in text.splitlines() if not line.lstrip().startswith("#")
    )
    assert [each for each in wrong if each in texts] == []


def test_the_files_of_the_articles_cluster(files, golden) -> None:
    names = list(dict.fromkeys(file for _, file, _, _ in SNIPPETS if not file.startswith("roles/gpu")))
    golden("deploy_articles.txt", "\n".join(f"# --- {name}\n{files[name]}" for name in names))
    assert "nvidia-driver-580-server-open" in files[VARIABLES]
    assert "rule_files" in files["roles/monitoring/files/prometheus.yml"]
