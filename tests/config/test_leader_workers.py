"""LeaderWorkerSets as roles of a run file."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.config.test_manifests import read, refused
from trainworks.jobs.formats.jobset import render_roles

SHM = {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "15Gi"}}
JOINS = """sh -c 'join '"${LWS_LEADER_ADDRESS}"' $LWS_WORKER_INDEX $(OTHER)'"""
MOUNT = {"name": "dshm", "mountPath": "/dev/shm"}


def pods(command: str, **keys: Any) -> dict[str, Any]:
    """Spec of pods that run a text in a shell, on eight GPUs each."""
    container = {"name": "serve", "image": "serve:1", "command": ["sh", "-c", command], "volumeMounts": [MOUNT]}
    resources = {"limits": {"nvidia.com/gpu": "8"}}
    return {"containers": [container | {"resources": resources} | keys], "volumes": [SHM]}


def leader_worker_set(template: dict[str, Any] | None = None, **spec: Any) -> str:
    """One group of a leader and three workers."""
    leader = pods(
        "serve --nodes $(LWS_GROUP_SIZE) --rank $(LWS_WORKER_INDEX) --port $(PORT)",
        env=[{"name": "PORT", "value": "8080"}],
        ports=[{"containerPort": 8080}],
        readinessProbe={"tcpSocket": {"port": 8080}},
    )
    group = {
        "size": 4,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": {"metadata": {"labels": {"role": "leader"}}, "spec": leader},
        "workerTemplate": {"spec": pods("join $(LWS_LEADER_ADDRESS) $LWS_WORKER_INDEX $(OTHER)")},
    }
    body = {"leaderWorkerTemplate": group | (template or {}), **spec}
    kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "demo"}}
    return yaml.safe_dump(kind | {"spec": body})


def test_a_leader_and_its_workers_are_roles_that_know_each_other() -> None:
    run_file, unused = read(leader_worker_set(startupPolicy="LeaderReady"))
    leader, worker = run_file.roles["leader"], run_file.roles["worker"]
    assert leader.run.splitlines() == [
        'export LWS_LEADER_ADDRESS="${TRAINWORKS_ADDRESSES_LEADER%%:*}"',
        "export LWS_GROUP_SIZE=4",
        "export LWS_WORKER_INDEX=0",
        """sh -c 'serve --nodes '"${LWS_GROUP_SIZE}"' --rank '"${LWS_WORKER_INDEX}"' --port '"${PORT}\"""",
    ]
    assert worker.run.splitlines()[2:] == ["export LWS_WORKER_INDEX=$((TRAINWORKS_ROLE_INDEX + 1))", JOINS]
    assert (leader.nodes, leader.decides, worker.nodes, worker.decides, worker.may_end) == (1, True, 3, False, False)
    assert (leader.image, leader.envs, worker.envs) == ("serve:1", {"PORT": "8080"}, {})
    assert [str(one) for one in (worker.resources and worker.resources.accelerators) or ()] == ["gpu:8"]
    assert run_file.cluster.kubernetes.shared_memory == 15 << 30
    group = "spec.leaderWorkerTemplate"
    noted = {text.partition("  ")[2].partition(" has no effect: ")[0] for text in unused}
    assert noted == {
        f"{group}.restartPolicy",
        "spec.startupPolicy",
        f"{group}.leaderTemplate.metadata.labels.role",
        f"{group}.leaderTemplate.spec.containers.0.ports",
        f"{group}.leaderTemplate.spec.containers.0.readinessProbe",
    }
    document = yaml.safe_load(render_roles(run_file))
    assert [group["name"] for group in document["spec"]["replicatedJobs"]] == ["leader", "worker"]


def test_pods_of_one_template_are_a_leader_and_workers_too() -> None:
    run_file, _ = read(leader_worker_set({"leaderTemplate": None, "size": 2}))
    assert [role.nodes for role in run_file.roles.values()] == [1, 1]
    assert run_file.roles["leader"].run.splitlines()[3:] == run_file.roles["worker"].run.splitlines()[3:]


def test_a_leader_without_workers_is_a_job_of_one_node() -> None:
    run_file, _ = read(leader_worker_set({"size": 1}))
    assert (run_file.nodes, run_file.roles) == (1, {})
    assert run_file.run is not None and 'export LWS_LEADER_ADDRESS="$MASTER_ADDR"' in run_file.run


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (leader_worker_set(replicas=2), "2 groups of a leader and its workers"),
        (leader_worker_set({"size": "$SIZE"}), "`size` must be a positive integer, got `$SIZE`; fill it in"),
        (leader_worker_set({"volumeClaimTemplates": [{}]}), "Trainworks creates no volumes"),
        (leader_worker_set({"workerTemplate": {"spec": pods("join demo-0.demo")}}), "`demo-0.demo` is the name of a"),
        (leader_worker_set({"workerTemplate": {"spec": pods("join", workingDir="/x")}}), "`workdir` of `leader` and"),
        (leader_worker_set(replicass=1), "unknown key `replicass`"),
    ],
)
def test_what_a_job_cannot_be_is_refused(text: str, problem: str) -> None:
    assert any(problem in found for found in refused(text))
