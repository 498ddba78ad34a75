"""A kustomize folder for Kubernetes on the nodes of a stack: each team's namespace with queue, volumes and policies.

Source: Kueue's API v1beta2 (ClusterQueue, LocalQueue, ResourceFlavor), Kubernetes' guides to volumes and network
policies, the Prometheus operator's API (PodMonitor), and the values of NVIDIA's GPU operator and network operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from trainworks.catalog.stack_cluster import group_fabric
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.scheduler import SlurmAccount
from trainworks.config.stack_parts.software import KubernetesBundle
from trainworks.deploy.hardware import gpu_of, gres_kind, hardware_of
from trainworks.deploy.kueue import KUEUE_API
from trainworks.jobs.formats.manifest import RAILS, dns_name, queue_of_team, to_yaml
from trainworks.plan.network.nccl import pod_environment


@dataclass(frozen=True, slots=True)
class TeamShare:
    """An account without others below it."""

    name: str
    namespace: str
    """Name of its namespace, and of its queues."""
    fraction: Fraction
    """Part of the cluster that is its own: its share among its siblings, times the part of its parent."""
    max_gpus: int | None


def teams(stack: Stack) -> list[TeamShare]:
    """Teams of a stack, by account; those that only users name have a share of 1."""
    accounts = stack.accounts
    parents = {each.parent for each in accounts}
    return [
        TeamShare(each.name, queue_of_team(each.name), _fraction(each, accounts), each.max_gpus)
        for each in accounts
        if each.name not in parents
    ]


def _fraction(account: SlurmAccount, accounts: list[SlurmAccount]) -> Fraction:
    siblings = sum(each.share for each in accounts if each.parent == account.parent)
    above = [each for each in accounts if each.name == account.parent]
    return Fraction(account.share, siblings) * (_fraction(above[0], accounts) if above else 1)


_LABEL = "trainworks.dev/accelerator"
"""Label of a node with the kind of its GPUs, which `install.sh` sets."""
_RDMA_SHARES = 64
"""Pods of a node that may use its adapters; a pod takes one share, and sees all adapters."""
_FOLDER = "kubernetes"
_EXPORTERS = "trainworks-monitoring"
"""Namespace of the exporters that `trainworks monitor render` writes."""


def bundle_files(stack: Stack) -> dict[str, str]:
    """Files by path; empty without `kubernetes`."""
    if stack.kubernetes is None:
        return {}
    kinds: dict[str, tuple[str, list[Mapping[str, object]]]] = {
        "namespaces.yaml": (_NAMESPACES, [_namespace(team) for team in teams(stack)]),
        "queues.yaml": (_QUEUES, list(_queues(stack))),
        "volumes.yaml": (_VOLUMES, list(_volumes(stack))),
        "nccl.yaml": (_SETTINGS, list(_settings(stack))),
        "policies.yaml": (_POLICIES, [each for team in teams(stack) for each in _policies(team)]),
    }
    if stack.kubernetes.prometheus_operator:
        kinds["monitors.yaml"] = (_MONITORS, _monitors())
    files = {
        f"{_FOLDER}/{name}": reason + "---\n".join(map(to_yaml, objects))
        for name, (reason, objects) in kinds.items()
        if objects
    }
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [name for name, (_, objects) in kinds.items() if objects],
    }
    files |= {
        f"{_FOLDER}/kustomization.yaml": "# kubectl apply --kustomize kubernetes, after install.sh\n"
        + to_yaml(kustomization),
        f"{_FOLDER}/install.sh": _install(stack, stack.kubernetes),
        f"{_FOLDER}/values/gpu-operator.yaml": _gpu_values(stack),
    }
    if stack.kubernetes.network_operator is not None:
        files[f"{_FOLDER}/values/network-operator.yaml"] = _network_values(stack)
    return files


_NAMESPACES = """\
# baseline: no pod of a team takes the network, the processes or the folders of its node; `restricted` would
# refuse images that start as root
"""
_QUEUES = """\
# A team's share of the GPUs is its own, and what others leave free is lent to it; a job that was lent GPUs is
# ended when their team wants them back. Without a queue, half of the pods of two jobs start, and both wait.
"""
_VOLUMES = """\
# The nodes mount these file systems already, with the options of the storage role: a volume is the folder of the
# node, and no driver mounts it a second time. `claimRef` gives each team its own, so that no other claim takes it.
"""
_SETTINGS = """\
# What the nodes have in /etc/nccl.conf, which no pod sees: `baseline` allows no file of the node. A container takes
# them by `envFrom`; jobs of Trainworks on several nodes have them already, where `cluster.of` is the stack file.
"""
_POLICIES = """\
# Ranks of a job open ports to each other; other teams' pods do not reach them. RDMA passes by the kernel, and so
# by these rules: partitions of the fabric separate that.
"""
_MONITORS = """# The exporter that `trainworks monitor render --kubernetes` starts on each node; its token is beside it.
"""


def _namespace(team: TeamShare) -> Mapping[str, object]:
    labels = {"pod-security.kubernetes.io/enforce": "baseline", "trainworks.dev/team": team.name}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team.namespace, "labels": labels}}


def _queues(stack: Stack) -> Iterator[Mapping[str, object]]:
    for kind in dict.fromkeys(_kinds(stack).values()):
        spec = {"nodeLabels": {_LABEL: kind}, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}
        yield {"apiVersion": KUEUE_API, "kind": "ResourceFlavor", "metadata": {"name": kind}, "spec": spec}
    for team in teams(stack):
        yield _cluster_queue(stack, team)
        spec = {"clusterQueue": team.namespace}
        metadata = {"name": team.namespace, "namespace": team.namespace}
        yield {"apiVersion": KUEUE_API, "kind": "LocalQueue", "metadata": metadata, "spec": spec}


def _cluster_queue(stack: Stack, team: TeamShare) -> Mapping[str, object]:
    quotas = {kind: _quota(stack, team, kind) for kind in _kinds(stack).values()}
    flavors = [{"name": kind, "resources": resources} for kind, resources in quotas.items()]
    covered = [resource["name"] for resource in next(iter(quotas.values()))]
    spec = {
        "cohortName": stack.name,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": team.namespace}},
        "queueingStrategy": "BestEffortFIFO",
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": covered, "flavors": flavors}],
    }
    return {"apiVersion": KUEUE_API, "kind": "ClusterQueue", "metadata": {"name": team.namespace}, "spec": spec}


def _quota(stack: Stack, team: TeamShare, kind: str) -> list[dict[str, int | str]]:
    """Share of a team of the nodes with one kind of GPU; what a job asks for beside GPUs has to be covered as well."""
    gpus = cores = memory = nodes = 0
    for group in stack.groups("compute"):
        if _kind(group.hosts, stack) == kind:
            hardware, count = hardware_of(group), len(group.names)
            gpus += count * (hardware.accelerators.count if hardware.accelerators else 0)
            cores += count * hardware.sockets * hardware.cores_per_socket * hardware.threads_per_core
            memory += count * hardware.memory
            nodes += count
    own = min(int(gpus * team.fraction), team.max_gpus or gpus)
    gpu: dict[str, int | str] = {"name": "nvidia.com/gpu", "nominalQuota": own}
    if team.max_gpus is not None:
        gpu["borrowingLimit"] = team.max_gpus - own
    resources: list[dict[str, int | str]] = [
        gpu,
        {"name": "cpu", "nominalQuota": int(cores * team.fraction)},
        {"name": "memory", "nominalQuota": f"{int(memory * team.fraction) // 2**30}Gi"},
    ]
    if stack.kubernetes is not None and stack.kubernetes.network_operator is not None:
        resources.append({"name": RAILS, "nominalQuota": int(nodes * _RDMA_SHARES * team.fraction)})
    return resources


def _kinds(stack: Stack) -> dict[str, str]:
    """Kind of accelerator of each group of compute nodes; `cpu` without one."""
    return {group.hosts: _kind(group.hosts, stack) for group in stack.groups("compute")}


def _kind(hosts: str, stack: Stack) -> str:
    group = next(each for each in stack.groups("compute") if each.hosts == hosts)
    found = hardware_of(group).accelerators
    return gres_kind(found.name).lower().replace("_", "-") if found else "cpu"


def _volumes(stack: Stack) -> Iterator[Mapping[str, object]]:
    for team in teams(stack):
        for mount in stack.mounts:
            name = mount.at.strip("/").replace("/", "-").replace("_", "-").lower()
            modes = ["ReadOnlyMany" if mount.read_only else "ReadWriteMany"]
            # the size is compared with the claim, and limits nothing
            size, volume = {"storage": "1Pi"}, f"{team.namespace}-{name}"
            shared = {"accessModes": modes, "storageClassName": ""}
            claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": team.namespace}
            spec = {
                "capacity": size,
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": mount.at, "type": "Directory"},
                "claimRef": claim,
            }
            yield {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": shared | spec}
            spec = {"volumeName": volume, "resources": {"requests": size}}
            metadata = {"name": name, "namespace": team.namespace}
            yield {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": shared | spec}


def _settings(stack: Stack) -> Iterator[Mapping[str, object]]:
    """Variables of NCCL for the nodes of each group with rails, in each namespace: `nccl-GROUP`."""
    for name, group in stack.group_names.items():
        fabric = group_fabric(stack, group)
        if fabric is None or fabric.link is None:
            continue
        for team in teams(stack):
            metadata = {"name": dns_name(f"nccl-{name.removeprefix('nodes_')}"), "namespace": team.namespace}
            yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": pod_environment(fabric)}


def _policies(team: TeamShare) -> Iterator[Mapping[str, object]]:
    same: Mapping[str, object] = {"podSelector": {}}
    names = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["monitoring", _EXPORTERS]}
    monitoring = {"namespaceSelector": {"matchExpressions": [names]}}
    for name, ingress in (("deny-others", []), ("allow-own-and-monitoring", [{"from": [same, monitoring]}])):
        spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": ingress}
        metadata = {"name": name, "namespace": team.namespace}
        yield {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def _monitors() -> list[Mapping[str, object]]:
    name = "trainworks-exporter"
    endpoint = {
        "port": "metrics",
        "authorization": {"credentials": {"name": name, "key": "token"}},
        # pods of jobs come and go: the node is the name that a series keeps
        "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"}],
    }
    spec = {"selector": {"matchLabels": {"app.kubernetes.io/name": name}}, "podMetricsEndpoints": [endpoint]}
    metadata = {"name": name, "namespace": _EXPORTERS}
    return [{"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "metadata": metadata, "spec": spec}]


def _gpu_values(stack: Stack) -> str:
    reasons = [
        "# the role `gpu` installs and holds the driver; a second one from a container would unload it under jobs",
        to_yaml({"driver": {"enabled": not any(gpu_of(stack, group) for group in stack.groups("compute"))}}).rstrip(),
        "# containers get the devices and the libraries of the driver",
        to_yaml({"toolkit": {"enabled": True}}).rstrip(),
        "# a pod asks for whole GPUs: those of a node can be divided, and then report wrong shares to the queue",
        to_yaml({"mig": {"strategy": "none"}}).rstrip(),
        "# temperatures, errors and NVLinks of each GPU; Prometheus finds it by the operator's monitor",
        to_yaml(
            {
                "dcgmExporter": {
                    "serviceMonitor": {"enabled": bool(stack.kubernetes and stack.kubernetes.prometheus_operator)}
                }
            }
        ).rstrip(),
    ]
    return "\n".join(reasons) + "\n"


def _network_values(stack: Stack) -> str:
    fabric = stack.fabric
    driver = fabric is not None and fabric.driver == "doca-ofed"
    why = "the role `fabric` installs DOCA-OFED" if driver else "the nodes use the driver of their kernel"
    own = [found for group in stack.groups("compute") if (found := group_fabric(stack, group)) is not None]
    devices = list(dict.fromkeys(device for each in own for device in each.devices))
    plugin = {"deploy": True, "resources": [{"name": "rails", "rdmaHcaMax": _RDMA_SHARES, "rdmaDevices": devices}]}
    lines = [
        f"# {why}; a container with another one would unload the adapters",
        to_yaml({"ofedDriver": {"deploy": False}}).rstrip(),
        "# a pod with the resource `rdma/rails` sees the adapters of its node",
        to_yaml({"rdmaSharedDevicePlugin": plugin}).rstrip(),
    ]
    return "\n".join(lines) + "\n"


def _install(stack: Stack, bundle: KubernetesBundle) -> str:
    kueue = "https://github.com/kubernetes-sigs/kueue/releases/download"
    jobset = "https://github.com/kubernetes-sigs/jobset/releases/download"
    version = {
        name: f"v{text.removeprefix('v')}" for name, text in (("jobset", bundle.jobset), ("kueue", bundle.kueue))
    }
    lines = [
        "#!/bin/bash",
        "# Operators of this cluster, each at the release of the stack file; a second run changes nothing.",
        "set -euo pipefail",
        'cd "$(dirname "$0")"',
        "helm repo add nvidia https://helm.ngc.nvidia.com/nvidia --force-update",
        f"helm upgrade --install gpu-operator nvidia/gpu-operator --version {bundle.gpu_operator} \\",
        "    --namespace gpu-operator --create-namespace --values values/gpu-operator.yaml --wait",
    ]
    if bundle.network_operator is not None:
        lines += [
            f"helm upgrade --install network-operator nvidia/network-operator --version {bundle.network_operator} \\",
            "    --namespace network-operator --create-namespace --values values/network-operator.yaml --wait",
        ]
    lines += [
        "# on the server: these definitions are larger than what an apply of the client may note on an object",
        f"kubectl apply --server-side --filename {jobset}/{version['jobset']}/manifests.yaml",
        f"kubectl apply --server-side --filename {kueue}/{version['kueue']}/manifests.yaml",
        "kubectl --namespace kueue-system rollout status deployment/kueue-controller-manager",
        "# the queues choose nodes by this label",
    ]
    for group in stack.groups("compute"):
        names = " ".join(group.names)
        lines.append(f"kubectl label node {names} {_LABEL}={_kind(group.hosts, stack)} --overwrite")
    return "\n".join([*lines, "kubectl apply --kustomize ."]) + "\n"
