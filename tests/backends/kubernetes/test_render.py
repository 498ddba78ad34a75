"""A job spec as a JobSet, and what no user can smuggle into it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.fakes import spec
from tests.kubernetes.pod_security import violations
from trainworks.backends.kubernetes.render import jobset, name_of, reader, render, run_as
from trainworks.config.autoscale import Autoscale
from trainworks.config.engines import Kubernetes, Toleration
from trainworks.errors import UsageError
from trainworks.jobs.formats.manifest import LONGEST_NAME, QUEUE_LABEL, to_yaml
from trainworks.jobs.job_spec import JobSpec, NodeResources, RoleSpec
from trainworks.record.run_dir import RunDir

SCHEMA = json.loads((Path(__file__).parents[2] / "data" / "jobset_v1alpha2.json").read_text(encoding="utf-8"))
KUBERNETES = "1.34"
WHERE = Kubernetes(image="ghcr.io/example/trainworks:1", volume="runs")
EVERYTHING = Kubernetes(
    namespace="ml",
    queue="research",
    image="ghcr.io/example/trainworks@sha256:0123",
    volume="runs",
    priority_class="high",
    service_account="trainer",
    node_selector={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
)
PODS = Kubernetes(
    image="x",
    volume="runs",
    queue="research",
    pull_secrets=("registry",),
    tolerations=(Toleration(key="dedicated", value="training", effect="NoSchedule"),),
    devices={"vpc.amazonaws.com/efa": 4},
    shared_memory=64 * 2**30,
    topology="cloud.provider.com/topology-rack",
    keep=3600.0,
    patch={
        "metadata": {"annotations": {"networking.gke.io/default-interface": "eth0"}},
        "spec": {
            "runtimeClassName": "nvidia",
            "initContainers": [{"name": "logger", "image": "fluent-bit", "restartPolicy": "Always"}],
            "securityContext": {"runAsUser": 2000, "runAsNonRoot": True},
            "containers": [
                {
                    "name": "node",
                    "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}],
                    "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                }
            ],
        },
    },
)
ALL_WISHES = spec(
    node=NodeResources(cores=15.5, accelerators=8, accelerator="h100", memory_bytes=512 * 10**9),
    time_limit_s=26.5 * 3600,
    priority=20,
    exclude=("node7", "node9"),
    hold=True,
    max_restarts=3,
)
ROLES = spec(
    min_nodes=6,
    max_nodes=6,
    node=NodeResources(accelerators=8),
    roles=(
        RoleSpec(name="prepare", nodes=1, node=NodeResources(cores=1.0), restarts=2),
        RoleSpec(name="trainer", nodes=2, node=NodeResources(accelerators=8, accelerator="h100")),
        RoleSpec(
            name="rollout-of-a-big-one",
            nodes=3,
            node=NodeResources(cores=4.0, accelerators=1, accelerator="mi300x"),
            decides=False,
            restarts=3,
            image="serve:1",
        ),
    ),
)


RUN_DIR = RunDir(Path("/home/ada/runs/demo-1"))


def manifest(asked: JobSpec | None = None, where: Kubernetes = WHERE, folder: str = "/home/ada/runs/demo-1") -> Any:
    return jobset(asked or spec(), where, RunDir(Path(folder)))


def job_of(found: dict[str, Any]) -> dict[str, Any]:
    """Its Job, as JobSet's controller makes it."""
    spec = found["spec"]["replicatedJobs"][0]["template"]["spec"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "demo"}, "spec": spec}


def test_a_gang_of_four_nodes(golden) -> None:
    golden("kubernetes_gang.yaml", render(spec(), WHERE, RUN_DIR))


def test_everything_that_a_job_spec_can_ask_for(golden) -> None:
    golden("kubernetes_everything.yaml", render(ALL_WISHES, EVERYTHING, RUN_DIR))


def test_what_users_of_a_cluster_set_on_their_pods(golden) -> None:
    golden("kubernetes_pods.yaml", render(spec(), PODS, RUN_DIR))


def test_a_group_of_pods_for_each_role(golden) -> None:
    golden("kubernetes_roles.yaml", render(ROLES, EVERYTHING, RUN_DIR))


def test_kubernetes_and_a_restricted_namespace_take_the_pods_of_every_role() -> None:
    where = EVERYTHING.model_copy(update={"run_as_user": 2000})
    found = manifest(ROLES, where, "/runs/a-run-with-a-name-that-is-longer-than-kubernetes-allows-1")
    jsonschema.validate(found, SCHEMA)
    groups = {group["name"]: group["template"]["spec"] for group in found["spec"]["replicatedJobs"]}
    assert list(groups) == ["prepare", "trainer", "rollout-of-a-big-one"]
    for name, job in groups.items():
        whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "demo"}, "spec": job}
        kubernetes_validate.validate(whole, KUBERNETES, strict=True)
        assert violations(job["template"]["spec"]) == []
        assert len(f"{found['metadata']['name']}-{name}-0-1023-abcde") <= 63
    assert [job["backoffLimit"] for job in groups.values()] == [0, 0, 2**31 - 1]
    images = [job["template"]["spec"]["containers"][0]["image"] for job in groups.values()]
    assert images == [where.image, where.image, "serve:1"]


def test_a_role_with_an_image_of_its_own_needs_none_of_the_job() -> None:
    roles = tuple(replace(role, image="own:1") for role in ROLES.roles)
    assert manifest(replace(ROLES, roles=roles), Kubernetes(volume="runs"))["kind"] == "JobSet"
    with pytest.raises(UsageError, match="the pods have no image"):
        manifest(ROLES, Kubernetes(volume="runs"))


def test_the_user_of_a_patch_stays_in_a_restricted_namespace() -> None:
    found = manifest(where=PODS)
    run_as(found, 1000)
    context = job_of(found)["spec"]["template"]["spec"]["securityContext"]
    assert (context["runAsUser"], context["fsGroup"]) == (2000, 1000)


@pytest.mark.parametrize(("asked", "where"), [(spec(), WHERE), (ALL_WISHES, EVERYTHING), (spec(), PODS)])
def test_kubernetes_and_jobset_take_the_manifest(asked: JobSpec, where: Kubernetes) -> None:
    found = manifest(asked, where)
    jsonschema.validate(found, SCHEMA)
    kubernetes_validate.validate(job_of(found), KUBERNETES, strict=True)


def test_a_field_that_there_is_not_would_be_seen() -> None:
    job = job_of(manifest())
    job["spec"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    "folder",
    ["/runs/with space", "/runs/$(HOME)-1", "/runs/a'; touch x", '/runs/"x"', "/runs/-n", "/runs/ü\nb", "/runs/9" * 40],
)
def test_a_folder_of_any_name_makes_a_name_for_dns(folder: str) -> None:
    found = manifest(folder=folder)
    jsonschema.validate(found, SCHEMA)
    name = found["metadata"]["name"]
    pod = f"{name}-node-0-1023-abcde"
    assert len(pod) <= 63 and pod.replace("-", "").isalnum() and pod.islower() and not name.startswith("-")
    assert yaml.safe_load(to_yaml(found)) == found
    command = job_of(found)["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command == ["python", "-P", "-m", "trainworks.backends.kubernetes.node", f"/runs/{name}"]


def test_runs_of_the_same_name_in_other_folders_are_other_jobs() -> None:
    names = {name_of(RunDir(Path(folder))) for folder in ("/home/ada/runs/demo-1", "/home/bob/runs/demo-1")}
    names |= {name_of(RUN_DIR, machine) for machine in ("laptop-1", "laptop-2")}
    assert len(names) == 4 and all(name.startswith("demo-1-") for name in names)


@pytest.mark.parametrize(
    ("asked", "where", "error"),
    [
        (spec(), Kubernetes(volume="runs"), "the pods have no image"),
        (spec(), Kubernetes(image="x"), "4 nodes need a shared run directory"),
        (spec(priority=60), WHERE, "does not support a numeric `job.priority`"),
        (spec(), WHERE.model_copy(update={"topology": "rack"}), "`cluster.kubernetes.topology` needs Kueue"),
        (spec(preemptible=False), WHERE, "the priority class decides whether a job is preempted"),
    ],
)
def test_what_cannot_be_is_refused(asked: JobSpec, where: Kubernetes, error: str) -> None:
    with pytest.raises(UsageError, match=error) as refused:
        manifest(asked, where)
    assert refused.value.hint is not None


def test_one_node_without_a_volume_writes_to_its_own_disk() -> None:
    found = job_of(manifest(spec(min_nodes=1, max_nodes=1), Kubernetes(image="x")))
    assert {"name": "runs", "emptyDir": {}} in found["spec"]["template"]["spec"]["volumes"]


@pytest.mark.parametrize(("asked", "where"), [(spec(), WHERE), (ALL_WISHES, EVERYTHING)])
def test_a_namespace_that_is_restricted_takes_the_pods(asked: JobSpec, where: Kubernetes) -> None:
    as_user = where.model_copy(update={"run_as_user": 2000})
    pod = job_of(manifest(asked, as_user))["spec"]["template"]["spec"]
    assert violations(pod) == []
    assert pod["securityContext"]["fsGroup"] == 2000


def test_the_pod_that_reads_a_record_takes_no_accelerator_and_no_quota() -> None:
    where = EVERYTHING.model_copy(update={"run_as_user": 2000})
    found = reader(where, "a-name-as-long-as-a-name-of-a-run-can-be", b"{}")
    pod = job_of(found)["spec"]["template"]["spec"]
    assert violations(pod) == [] and len(found["metadata"]["name"]) <= LONGEST_NAME
    assert pod["containers"][0]["resources"] == {"requests": {"cpu": "0.1"}}
    assert "nvidia.com/gpu" in [one["key"] for one in pod["tolerations"]]  # on a cluster of such nodes alone
    assert QUEUE_LABEL not in found["metadata"]["labels"] and "suspend" not in found["spec"]


def test_without_a_user_only_the_user_is_missing() -> None:
    found = manifest(ALL_WISHES, EVERYTHING)
    pod = job_of(found)["spec"]["template"]["spec"]
    assert violations(pod) == ["node: runAsNonRoot != true", "node: runAsUser=0"]
    run_as(found, 1000)
    assert violations(job_of(found)["spec"]["template"]["spec"]) == []


def test_tpus_are_asked_for_by_their_resource_on_nodes_of_their_topology() -> None:
    node = NodeResources(accelerators=4, accelerator="tpu-v5e")
    pod = job_of(manifest(spec(node=node), WHERE))["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert "google.com/tpu" in [one["key"] for one in pod["tolerations"]]
    own = WHERE.model_copy(update={"node_selector": {"cloud.google.com/gke-tpu-topology": "2x8"}})
    chosen = job_of(manifest(spec(node=node), own))["spec"]["template"]["spec"]["nodeSelector"]
    assert chosen["cloud.google.com/gke-tpu-topology"] == "2x8"


def test_a_held_job_is_in_no_queue_yet() -> None:
    metadata = manifest(spec(hold=True), EVERYTHING)["metadata"]
    assert "kueue.x-k8s.io/queue-name" not in metadata["labels"] and "trainworks/held" in metadata["annotations"]


def test_nodes_that_come_and_go_are_asked_for_and_not_taken_away_under_a_job() -> None:
    autoscale = Autoscale.model_validate({"kubernetes": {"provisioning_class": "queued-provisioning.gke.io"}})
    found = jobset(ALL_WISHES, EVERYTHING, RUN_DIR, autoscale=autoscale)
    jsonschema.validate(found, SCHEMA)
    kubernetes_validate.validate(job_of(found), KUBERNETES, strict=True)
    assert found["metadata"]["annotations"]["provreq.kueue.x-k8s.io/maxRunDurationSeconds"] == "95400"
    pod = job_of(found)["spec"]["template"]["metadata"]
    assert pod["annotations"] == {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    with pytest.raises(UsageError, match="needs a Kueue queue"):
        jobset(spec(), WHERE, RUN_DIR, autoscale=autoscale)
