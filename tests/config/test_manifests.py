"""Manifests of Kubernetes as run files: what is taken over, what is named, what is refused, and with which place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.formats.jobs import HOSTILE, expanded, pods, run
from tests.jobs.formats.test_formats import FORMATS, LARGE, ON_KUBERNETES
from trainworks.api.inputs import load_run
from trainworks.api.run_request import job_in_format, read_run_file
from trainworks.config.manifests.container import shell_text
from trainworks.config.run_description import is_manifest, parse_tasks
from trainworks.config.run_file import RunFile
from trainworks.errors import RunFileError
from trainworks.jobs.formats.jobset import render_roles
from trainworks.jobs.program import program_of
from trainworks.jobs.spec_of_run import spec_of

SINGLE = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}
"""Nodes whose parts by MIG are all alike, and have the resource of whole GPUs."""
POD = {"containers": [{"name": "main", "image": "registry/train:1", "command": ["torchrun", "train.py"]}]}


def jobset(pod: Any = POD, *, pods: int = 2, job: Any = None, group: Any = None, spec: Any = None, **keys: Any) -> str:
    template = {"spec": {"parallelism": pods, "template": {"spec": pod}, **(job or {})}}
    body = {"replicatedJobs": [{"name": "workers", "template": template, **(group or {})}], **(spec or {})}
    metadata = {"name": "demo", **keys}
    return yaml.safe_dump(
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": body}
    )


def groups(*pods: Any, **last: Any) -> str:
    """A JobSet with a group of one more pod for each of these; the last group may have more keys."""
    jobs = [{"template": {"spec": {"parallelism": 1 + at, "template": {"spec": pod}}}} for at, pod in enumerate(pods)]
    named = [{"name": f"group-{at}", **job} for at, job in enumerate(jobs)]
    policy = {"successPolicy": last.pop("successPolicy")} if "successPolicy" in last else {}
    return jobset(spec={"replicatedJobs": [*named[:-1], named[-1] | last], **policy})


def job(pod: Any = POD, pods: int = 4, **spec: Any) -> str:
    body = {"parallelism": pods, "completions": pods, "template": {"spec": pod}} | spec
    return yaml.safe_dump({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "demo"}, "spec": body})


def pytorchjob(master: Any = None, worker: Any = None, workers: int = 3, **spec: Any) -> str:
    replicas = {
        "Master": {"replicas": 1, "template": {"spec": master or POD}},
        "Worker": {"replicas": workers, "template": {"spec": worker or master or POD}},
    }
    body = {"pytorchReplicaSpecs": replicas, **spec}
    return yaml.safe_dump(
        {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "demo"}, "spec": body}
    )


def trainjob(trainer: Any = None, runtime: str = "torch-distributed", **spec: Any) -> str:
    trainer = {"image": "registry/train:1", "command": ["torchrun", "train.py"], "numNodes": 4} | (trainer or {})
    body = {"runtimeRef": {"name": runtime}, "trainer": trainer, **spec}
    document = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "demo"}}
    return yaml.safe_dump({**document, "spec": body})


def container(**keys: Any) -> dict[str, Any]:
    return {"containers": [POD["containers"][0] | keys]}


def read(text: str) -> tuple[RunFile, list[str]]:
    run_file, source = parse_tasks(text, name="job.yaml")[0]
    return run_file, source.unused


def refused(text: str) -> list[str]:
    with pytest.raises(RunFileError) as error:
        parse_tasks(text, name="job.yaml")[0]
    return [f"{problem.place}: {problem.message}; {problem.hint}" for problem in error.value.problems]


def test_groups_that_are_alike_are_one() -> None:
    worker = {"containers": [POD["containers"][0] | {"name": "worker"}]}
    policy = {"operator": "All", "targetReplicatedJobs": ["group-1"]}
    run_file, unused = read(groups(POD, worker, groupName="b", successPolicy=policy))
    assert (run_file.num_nodes, run_file.run, len(unused)) == (3, "torchrun train.py", 2)
    assert "spec.successPolicy has no effect" in unused[0]
    assert "spec.replicatedJobs.1.groupName has no effect" in unused[1]


def test_groups_that_differ_are_roles() -> None:
    serve = container(image="serve:1", command=["vllm", "serve"], ports=[{"containerPort": 8000}])
    train = container(env=[{"name": "A", "value": "1"}], resources={"limits": {"nvidia.com/gpu": 8}})
    policy = {"operator": "All", "targetReplicatedJobs": ["group-2"]}
    needs = [{"name": "group-0", "status": "Complete"}, {"name": "group-1", "status": "Ready"}]
    run_file, unused = read(groups(container(command=["get"]), serve, train, dependsOn=needs, successPolicy=policy))
    fetch, server, trainer = run_file.roles.values()
    assert (fetch.run, server.run, trainer.run) == ("get", "vllm serve", "torchrun train.py")
    assert (fetch.nodes, server.nodes, trainer.nodes) == (1, 2, 3)
    assert (server.image, server.decides, server.may_end, trainer.decides) == ("serve:1", False, True, True)
    assert (trainer.depends_on, trainer.envs) == (("group-0",), {"A": "1"})
    assert [str(one) for one in (trainer.resources and trainer.resources.accelerators) or ()] == ["gpu:8"]
    assert [text.partition(" has no effect: ")[2] for text in unused] == [
        "`ports` open no port of a pod",
        "roles start together, and find each other at `$TRAINWORKS_ADDRESSES_...`",
    ]
    document = yaml.safe_load(render_roles(run_file))
    assert document["spec"]["successPolicy"] == policy
    assert document["spec"]["replicatedJobs"][2]["dependsOn"] == needs[:1]


def test_a_role_that_waits_for_a_ready_one_starts_no_earlier_than_that_one() -> None:
    ready = container(startupProbe={"exec": {"command": ["true"]}}, command=["serve"])
    text = yaml.safe_load(groups(container(command=["get"]), ready, POD))
    _, second, third = text["spec"]["replicatedJobs"]
    second["dependsOn"] = [{"name": "group-0", "status": "Complete"}]
    third["dependsOn"] = [{"name": "group-1", "status": "Ready"}]
    run_file, unused = read(yaml.safe_dump(text))
    assert [role.depends_on for role in run_file.roles.values()] == [(), ("group-0",), ("group-0",)]
    assert [note.partition(" has no effect")[0].rpartition(".")[2] for note in unused] == ["startupProbe", "0"]


def test_a_wrong_value_of_a_role_is_named_where_it_is_in_the_manifest() -> None:
    text = groups(POD, container(image="bad image"))
    (problem,) = refused(text)
    assert "spec.replicatedJobs.1.template.spec.template.spec.containers.0.image" in problem


@pytest.mark.parametrize("text", [job(), jobset(pods=4), pytorchjob(), trainjob()])
def test_every_kind_is_one_command_per_node(text: str) -> None:
    run_file, _ = read(text)
    assert (run_file.run, run_file.nodes, run_file.starts) == ("torchrun train.py", 4, "per_node")
    assert (run_file.cluster.engine, run_file.cluster.kubernetes.image) == ("kubernetes", "registry/train:1")


def test_a_plain_job_beside_the_one_that_trains_is_not_created() -> None:
    run_file, unused = read(job(pods=1) + "---\n" + trainjob())
    assert (run_file.nodes, unused) == (4, ["job.yaml:2  kind: `Job` is not created: use `kubectl apply`"])


def test_a_run_file_is_no_manifest() -> None:
    assert not is_manifest("name: a\nrun: |\n  apiVersion: v1\n  kind: Job\n")
    assert read("name: a\nrun: 'true'\n")[0].cluster.engine == "local"


def test_commands_read_a_manifest_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(pytorchjob())
    assert load_run(tmp_path / "job.yaml")[0].nodes == 4


@pytest.mark.parametrize(
    ("pod", "field", "value"),
    [
        ({"nodeSelector": {"pool": "train"}}, "node_selector", {"pool": "train"}),
        ({"tolerations": [{"key": "a", "operator": "Exists"}]}, "tolerations", [{"key": "a", "operator": "Exists"}]),
        ({"imagePullSecrets": [{"name": "registry"}]}, "pull_secrets", ["registry"]),
        ({"serviceAccountName": "trainer"}, "service_account", "trainer"),
        ({"priorityClassName": "high"}, "priority_class", "high"),
        ({"securityContext": {"runAsUser": 1000, "fsGroup": 1000}}, "run_as_user", 1000),
        (container(resources={"limits": {"rdma/hca": 1}}), "devices", {"rdma/hca": 1}),
        ({"hostNetwork": True}, "patch", {"spec": {"hostNetwork": True}}),
        ({"securityContext": {"runAsUser": 0}}, "patch", {"spec": {"securityContext": {"runAsUser": 0}}}),
        (
            container(securityContext={"privileged": True}),
            "patch",
            {"spec": {"containers": [{"name": "node", "securityContext": {"privileged": True}}]}},
        ),
    ],
)  # fmt: skip
def test_a_field_of_the_pod_has_its_place_in_the_run_file(pod: Any, field: str, value: Any) -> None:
    written = read(jobset(POD | pod))[0].cluster.kubernetes.model_dump(mode="json", exclude_unset=True)
    assert written[field] == value


def test_shared_memory_and_the_first_claim_are_fields_and_other_volumes_a_patch() -> None:
    mounts = [{"name": "dshm", "mountPath": "/dev/shm"}, {"name": "data", "mountPath": "/data"}]
    volumes = [
        {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "team"}},
    ]
    run_file, unused = read(jobset(container(volumeMounts=mounts) | {"volumes": volumes}))
    options = run_file.cluster.kubernetes
    assert (options.shared_memory, options.volume) == (64 << 30, "team")
    assert options.patch["spec"] == {
        "volumes": volumes[1:],
        "containers": [{"name": "node", "volumeMounts": mounts[1:]}],
    }
    assert [line.partition(": ")[2] for line in unused] == ["the run directories are on the claim `team`, too"]


@pytest.mark.parametrize(
    ("resources", "labels", "accelerators", "cores", "memory"),
    [
        ({"limits": {"nvidia.com/gpu": 8}}, {}, "gpu:8", None, None),
        (
            {"limits": {"nvidia.com/gpu": "8"}, "requests": {"cpu": "500m", "memory": "2Gi"}},
            {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            "H100:8",
            0.5,
            2.147483648,
        ),
        (
            {"limits": {"google.com/tpu": 4}},
            {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice"},
            "tpu-v6e:4",
            None,
            None,
        ),
        ({"limits": {"nvidia.com/mig-1g.10gb": 2}}, {}, "1g.10gb:2", None, None),
        ({"limits": {"nvidia.com/mig-1g.5gb.me": 1}}, {}, "1g.5gb.me:1", None, None),
        ({"limits": {"nvidia.com/gpu": 1}}, SINGLE, "A100-1g.5gb:1", None, None),
        (
            {"limits": {"nvidia.com/gpu": 1}},
            {"cloud.google.com/gke-gpu-partition-size": "2g.10gb"},
            "2g.10gb:1",
            None,
            None,
        ),
    ],
)
def test_resources_are_those_of_a_node(
    resources: Any, labels: dict[str, str], accelerators: str, cores: float | None, memory: float | None
) -> None:
    found = read(jobset(container(resources=resources) | {"nodeSelector": labels}))[0].resources
    assert found is not None
    assert found.accelerators is not None
    assert (str(found.accelerators[0]), found.cpus, found.memory) == (accelerators, cores, memory)


def test_limits_that_trainworks_would_not_set_are_in_the_patch() -> None:
    resources = {"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"cpu": 4, "memory": "8Gi"}}
    patch = read(jobset(container(resources=resources)))[0].cluster.kubernetes.patch
    assert patch["spec"]["containers"][0]["resources"] == {"limits": {"cpu": 4, "memory": "8Gi"}}


def test_variables_with_a_text_are_envs_and_kubernetes_resolves_the_others() -> None:
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    header = {"name": "HEADER", "value": "Bearer $(TOKEN)"}
    env = [{"name": "A", "value": "x$$"}, secret, header, {"name": "B", "value": "$(A)/$(C)"}]
    run_file, _ = read(jobset(container(env=env)))
    assert run_file.envs == {"A": "x$", "B": "x$/$(C)"}
    assert run_file.cluster.kubernetes.patch["spec"]["containers"][0]["env"] == [secret, header]


def test_addresses_of_the_manifests_own_pods_are_left_to_trainworks() -> None:
    env = [{"name": "MASTER_ADDR", "value": "demo-workers-0-0.demo"}, {"name": "MASTER_PORT", "value": "3389"}]
    run_file, unused = read(jobset(container(env=env)))
    assert run_file.envs == {}
    assert len(unused) == 2
    assert "Trainworks sets `MASTER_ADDR` on every node" in unused[0]


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        (jobset(spec={"failurePolicy": {"maxRestarts": 3}}), "recover", {"max_restarts": 3}),
        (jobset(job={"activeDeadlineSeconds": 60}), "job", {"time_limit": 60.0}),
        (jobset(spec={"suspend": True}), "job", {"hold": True}),
        (jobset(POD | {"terminationGracePeriodSeconds": 300}), "job", {"grace": 300.0}),
        (job(), "recover", {"max_restarts": 6}),
        (job(backoffLimit=0), "recover", {"max_restarts": 0}),
        (job(suspend=True, pods=1), "job", {"hold": True}),
        (pytorchjob(runPolicy={"backoffLimit": 2}), "recover", {"max_restarts": 2}),
        (pytorchjob(nprocPerNode="8"), "envs", {"PET_NPROC_PER_NODE": "8"}),
        (trainjob({"numProcPerNode": 2}), "envs", {"PET_NPROC_PER_NODE": "2"}),
        (trainjob(activeDeadlineSeconds=60), "job", {"time_limit": 60.0}),
        (trainjob(runtime="jax-distributed"), "framework", "jax"),
    ],
)
def test_a_field_of_the_job_has_its_place_in_the_run_file(text: str, field: str, value: Any) -> None:
    assert read(text)[0].model_dump(exclude_unset=True)[field] == value


def test_a_job_in_a_queue_of_kueue_is_suspended_until_it_is_admitted() -> None:
    text = jobset(spec={"suspend": True}, labels={"kueue.x-k8s.io/queue-name": "train"})
    run_file, unused = read(text)
    assert (run_file.cluster.kubernetes.queue, run_file.job.hold, unused) == ("train", False, [])


def test_an_elastic_job_meets_at_the_address_of_trainworks_and_its_range_is_named() -> None:
    policy = {"rdzvBackend": "c10d", "minReplicas": 1, "maxReplicas": 8, "maxRestarts": 5, "nProcPerNode": 4}
    run_file, unused = read(pytorchjob(elasticPolicy=policy))
    assert run_file.envs == {"PET_RDZV_BACKEND": "c10d", "PET_MAX_RESTARTS": "5", "PET_NPROC_PER_NODE": "4"}
    assert run_file.run == 'export PET_RDZV_ENDPOINT="$MASTER_ADDR:$MASTER_PORT"\ntorchrun train.py'
    assert [line.split()[1] for line in unused] == [
        f"spec.elasticPolicy.{key}" for key in ("maxReplicas", "minReplicas")
    ]


@pytest.mark.parametrize(
    "patches",
    [
        {"podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "spec": {"serviceAccountName": "ada"}}]},
        {"podSpecOverrides": [{"targetJobs": [{"name": "node"}], "serviceAccountName": "ada"}]},
        {
            "runtimePatches": [
                {
                    "manager": "team",
                    "trainingRuntimeSpec": {
                        "template": {
                            "spec": {
                                "replicatedJobs": [
                                    {
                                        "name": "node",
                                        "template": {"spec": {"template": {"spec": {"serviceAccountName": "ada"}}}},
                                    }
                                ]
                            }
                        }
                    },
                }
            ]
        },
    ],
)
def test_patches_of_a_trainjobs_runtime_are_those_of_its_pods(patches: Any) -> None:
    run_file, source = parse_tasks(trainjob(**patches), name="job.yaml")[0]
    assert run_file.cluster.kubernetes.service_account == "ada"
    assert next(iter(patches)) in source.place(("cluster", "kubernetes", "service_account"))


def test_a_second_container_becomes_a_sidecar() -> None:
    logger = {"name": "logger", "image": "fluent-bit"}
    run_file, unused = read(jobset({"containers": [*POD["containers"], logger]}))
    assert run_file.cluster.kubernetes.patch["spec"]["initContainers"] == [logger | {"restartPolicy": "Always"}]
    assert "stays beside the job" in unused[0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (jobset(container(command=None, args=["--lr", "1"])), "the command is that of the image"),
        (jobset(container(command=["torchrun", 1])), "`command` must be a list of texts"),
        (jobset(container(command=["torchrun", "--master_addr=demo-workers-0-0.demo"])), "is the name of a pod"),
        (jobset(container(env=[{"name": "A", "value": 1}])), "the value of `A` must be text"),
        (jobset(container(resources={"limits": {"nvidia.com/gpu": "eight"}})), "`eight` is not a quantity"),
        (jobset(container(resources={"limits": {"nvidia.com/gpu": "$GPUS"}})), "Kubernetes; fill it in"),
        (
            jobset(container(resources={"limits": {"nvidia.com/gpu": "500m"}})),
            "whole, got 0.5 of `nvidia.com/gpu`; request a",
        ),
        (
            jobset(container(resources={"limits": {"rdma/hca": 1.5}})),
            "whole, got 1.5 of `rdma/hca`; write a whole number",
        ),
        (jobset(container(image="$REPOSITORY")), "got `$REPOSITORY`; fill it in"),
        (jobset(POD | {"volumes": [{"name": "runs", "emptyDir": {}}]}), "Trainworks has a volume `runs` itself"),
        (jobset(job={"completions": 8}), "8 completions of 2 pods at a time are a queue of tasks"),
        (job(completions=8), "8 completions of 4 pods at a time are a queue of tasks"),
        (job(completions=None), "4 pods without `completions` share a queue of tasks"),
        (job(container(command=["a", "--to=demo-0.demo"])), "is the name of a pod"),
        (job() + "---\n" + job(), "the file has 2 jobs"),
        (jobset(spec={"replicatedJobs": []}), "`replicatedJobs` has no group of pods"),
        (groups(POD, container(image="b") | {"serviceAccountName": "b"}), "`cluster.kubernetes.service_account` of"),
        (groups(container(args=["$JOB_COMPLETION_INDEX"]), container(args=["$JOB_COMPLETION_INDEX"])), "pods number"),
        (groups(POD, POD, dependsOn=[{"name": "group-0", "status": "Ready"}]), "depends on no other group"),
        (groups(container(command=["a", "--to=demo-group-1-0-0.demo"]), POD), "is the name of a pod"),
        (groups(*[container(command=["a", "--to=demo-group-1-0-0.demo"])] * 2), "is the name of a pod"),
        (jobset(spec={"sucessPolicy": {}}), "unknown key `sucessPolicy`; did you mean `successPolicy`?"),
        (jobset(container(args=["$JOB_COMPLETION_INDEX"]), group={"replicas": 2}), "the pods number themselves"),
        (jobset(annotations={"trainworks/run": "a"}), "which Trainworks has submitted"),
        (pytorchjob(POD, container(image="other")), "`spec.containers.0.image` of `Master` and `Worker` differ"),
        (pytorchjob().replace("replicas: 3", "replicas: $NODES"), "got `$NODES`; fill it in"),
        (pytorchjob(container(command=["a", "demo-master-0"])), "`demo-master-0` is the name of a pod"),
        (trainjob({"image": None}), "`image` is that of the runtime"),
        (trainjob(runtime="deepspeed-distributed"), "starts the ranks with a launcher of deepspeed"),
        (trainjob(initializer={"dataset": {}}), "the program and the volume of an initializer"),
        (trainjob({"numNodes": "many"}), "`num_nodes` must be an integer, got `many`"),
        (jobset() + "---\n" + jobset(), "the file has 2 jobs"),
        ("apiVersion: kubeflow.org/v1\nkind: MPIJob\n", "`MPIJob` is not a job that can be read"),
        (
            trainjob().replace("trainer.kubeflow.org/v1alpha1", "kubeflow.org/v2alpha1"),
            "of `kubeflow.org/v2alpha1` is not read",
        ),
    ],
)
def test_what_a_run_cannot_be_is_refused(text: str, problem: str) -> None:
    problems = refused(text)
    assert len(problems) == 1
    assert problem in problems[0]


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob", "PyTorchJob"])
@pytest.mark.parametrize("value", [None, "text", [1], {"a": [None]}, 7])
@pytest.mark.parametrize("key", ["spec", "metadata"])
def test_any_value_is_a_problem_with_a_place_and_no_crash(kind: str, key: str, value: Any) -> None:
    versions = {"JobSet": "jobset.x-k8s.io/v1alpha2", "TrainJob": "trainer.kubeflow.org/v1alpha1"}
    document = {
        "apiVersion": versions.get(kind, "kubeflow.org/v1"),
        "kind": kind,
        "metadata": {"name": "a"},
        key: value,
    }
    assert all(problem.startswith("job.yaml:") for problem in refused(yaml.safe_dump(document)))


VALUES = (
    st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["", "a", "$X", "1Gi"]) | st.just({}) | st.just([])
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [place for key, inner in items for place in _places(inner, (*path, key))]


@given(st.data())
def test_a_manifest_with_one_wrong_value_is_read_or_refused(data: st.DataObject) -> None:
    full = container(
        env=[{"name": "A", "value": "b"}],
        resources={"limits": {"nvidia.com/gpu": 8, "memory": "1Gi"}},
        volumeMounts=[{"name": "d", "mountPath": "/dev/shm"}],
    ) | {"volumes": [{"name": "d", "emptyDir": {"medium": "Memory"}}], "tolerations": [{"key": "a"}], "affinity": {}}
    text = data.draw(
        st.sampled_from(
            [job(full), jobset(full, spec={"failurePolicy": {"rules": [{}]}}), pytorchjob(full), trainjob()]
        )
    )
    document = yaml.safe_load(text)
    *path, last = data.draw(st.sampled_from([place for place in _places(document["spec"]) if place]))
    inner = document["spec"]
    for key in path:
        inner = inner[key]
    inner[last] = data.draw(VALUES)
    try:
        read(yaml.safe_dump(document))
    except RunFileError as error:
        assert all(problem.place for problem in error.problems)


@pytest.mark.parametrize(
    ("resource", "labels"), [("nvidia.com/mig-1g.10gb", {}), ("nvidia.com/gpu", SINGLE)], ids=["mixed", "single"]
)
@pytest.mark.parametrize("language", ["jobset", "trainjob"])
def test_a_part_by_mig_keeps_its_resource(resource: str, labels: dict[str, str], language: str) -> None:
    pod = container(resources={"limits": {resource: 2}}) | {"nodeSelector": labels}
    text = job_in_format(read_run_file(job(pod, pods=1, backoffLimit=0)), language)
    assert f"{resource}: '2'" in text and text.count("nvidia.com/") == 2 + len(labels)
    assert same(read(text)[0]) == same(read(job(pod, pods=1, backoffLimit=0))[0])


RULE = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}


@pytest.mark.parametrize(
    ("rule", "is_named"),
    [(RULE, False), (RULE | {"action": "Ignore"}, True), (RULE | {"onPodConditions": [], "onExitCodes": {}}, True)],
)
def test_a_rule_about_failed_pods_is_named_unless_it_is_that_of_trainworks(rule: Any, is_named: bool) -> None:
    assert bool(read(job(podFailurePolicy={"rules": [rule]}, pods=1))[1]) is is_named


def test_the_order_in_a_queue_of_kueue_is_kept() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "train", "kueue.x-k8s.io/priority-class": "urgent"}
    run_file, unused = read(jobset(labels=labels))
    assert (run_file.cluster.kubernetes.queue_priority, unused) == ("urgent", [])
    document = yaml.safe_load(job_in_format(read_run_file(jobset(labels=labels)), "jobset"))
    assert document["metadata"]["labels"].items() >= labels.items()


def test_other_documents_are_named_and_their_secrets_kept_out() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hf"}, "stringData": {"token": "hf_secret"}}
    text = yaml.safe_dump(secret) + "---\n" + jobset() + "---\n# nothing\n"
    run_file, source = parse_tasks(text, name="job.yaml")[0]
    assert source.unused == ["job.yaml:2  kind: `Secret` is not created: use `kubectl apply`"]
    assert "hf_secret" not in source.text + run_file.model_dump_json()
    assert source.place(("num_nodes",)) == "job.yaml:17  spec.replicatedJobs.0.template.spec.parallelism"


@given(st.lists(HOSTILE, max_size=3))
def test_a_command_has_the_words_that_kubernetes_gives_it(words: list[str]) -> None:
    argv, env = ["printf", r"%s\n", "$(A)", *words], {"A": "b c"}
    done = run(["/bin/bash", "-c", shell_text(argv, env)], Path("/"), **env)
    assert done.stdout == "".join(f"{expanded(word, env)}\n" for word in argv[2:])


def same(run_file: RunFile) -> tuple[Any, ...]:
    """What a job is, whatever it was read from."""
    spec = spec_of(run_file, run_id="a-1", working_folder="/")
    options = run_file.cluster.kubernetes.model_dump(exclude={"namespace"})
    program = replace(program_of(run_file), resources=None)  # those of the spec; only SkyPilot reads more
    return spec, program, options, run_file.cluster.kubernetes.namespace


JOBS = st.fixed_dictionaries(
    {"run": HOSTILE.filter(bool), "name": st.sampled_from(["a", "Llama-8b"])},
    optional={
        "num_nodes": st.integers(1, 9),
        "setup": HOSTILE,
        "framework": st.sampled_from(["torch", "jax"]),
        "envs": st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.none() | HOSTILE, max_size=3),
        "resources": st.fixed_dictionaries(
            {}, optional={"accelerators": st.sampled_from(["H100:8", "gpu:2"]), "memory": st.just("64+")}
        ),
        "cluster": st.just({"processes_per_node": 2}),
        "job": st.fixed_dictionaries(
            {"grace": st.just("5m")},
            optional={"time_limit": st.just("12h"), "exclude": st.just(["n1", "n2"]), "hold": st.booleans()},
        ),
    },
)  # fmt: skip
CLUSTERS = st.fixed_dictionaries(
    {},
    optional={
        "queue": st.just("train"), "namespace": st.just("ml"), "volume": st.just("shared"), "run_as_user": st.just(7),
        "service_account": st.just("ada"), "pull_secrets": st.just(["registry"]), "node_selector": st.just({"a": "b"}),
        "tolerations": st.just([{"key": "a", "operator": "Equal", "value": "b"}]), "devices": st.just({"rdma/hca": 1}),
        "shared_memory": st.just("64GiB"),
    },
)  # fmt: skip


@given(JOBS, CLUSTERS, st.sampled_from(["jobset", "trainjob"]))
def test_a_written_manifest_is_read_back_as_the_same_job(keys: dict[str, Any], options: Any, language: str) -> None:
    if options.get("queue"):
        keys.get("job", {}).pop("hold", None)  # Kueue suspends all of its jobs
    job = pods(kubernetes=options, **keys)
    written = RunFile.model_validate(
        {
            "run": "python train.py",
            **keys,
            "cluster": keys.get("cluster", {})
            | {"engine": "kubernetes", "kubernetes": {"image": "ghcr.io/ada/train:1"} | options},
        }
    )
    again, source = parse_tasks(FORMATS[language](job), name="job.yaml")[0]
    assert source.unused == []
    assert same(again) == same(written)


def test_a_jobset_keeps_restarts_priority_time_and_patches() -> None:
    patch = {"spec": {"hostNetwork": True, "containers": [{"name": "node", "env": [{"name": "P", "value": "1"}]}]}}
    options = ON_KUBERNETES["kubernetes"] | {"keep": "1h", "patch": patch}
    keys = LARGE | {"job": {"time_limit": "12h", "exclude": ["node7"]}, "recover": {"max_restarts": 3}}
    again, _ = read(FORMATS["jobset"](pods(**keys, kubernetes=options)))
    found = again.cluster.kubernetes
    assert (again.recover.max_restarts, found.priority_class, found.keep) == (3, "high", 3600.0)
    assert (found.patch, again.envs["P"]) == ({"spec": {"hostNetwork": True}}, "1")


def test_a_command_that_was_edited_counts_and_not_the_one_that_was_written() -> None:
    document = yaml.safe_load(FORMATS["jobset"](pods(run="python old.py")))
    node = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    node["command"] = ["python", "new.py"]
    assert read(yaml.safe_dump(document))[0].run == "python new.py"
