"""A job in every language: what is written, that its readers take it, and that it does the same."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

from tests.jobs.formats.jobs import HOSTILE, pods, run, run_container, run_file
from tests.lanes import examples
from trainworks.config.load import parse_run_file
from trainworks.config.run_file import RunFile
from trainworks.errors import UsageError
from trainworks.jobs.formats import jobset, shell, skypilot
from trainworks.jobs.formats.manifest import KubernetesJob
from trainworks.jobs.program import program_of
from trainworks.jobs.spec_of_run import spec_of

SCHEMA = Path(__file__).parents[2] / "data" / "jobset_v1alpha2.json"
LARGE: dict[str, Any] = {
    "name": "Llama-8b",
    "num_nodes": 4,
    "resources": {"accelerators": "H100:8", "cpus": "96+", "memory": "512+"},
    "cluster": {"processes_per_node": 8},
    "envs": {"WANDB_MODE": "offline", "HF_TOKEN": None},
    "setup": "pip install -r requirements.txt",
    "run": 'python train.py --lr 1e-4 --name "$RUN_NAME"',
}
WISHES = {"job": {"time_limit": "12h", "grace": "5m", "exclude": ["node7", "node9"], "hold": True}}
ON_KUBERNETES = {
    "recover": {"max_restarts": 3},
    "kubernetes": {
        "queue": "research",
        "namespace": "ml",
        "volume": "shared",
        "priority_class": "high",
        "service_account": "trainer",
        "node_selector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
    },
}
FORMATS: dict[str, Callable[[KubernetesJob], str]] = {
    "jobset": jobset.render,
    "trainjob": jobset.render_trainjob,
    "skypilot": lambda job: skypilot.render(job.spec, job.program, autoscale=job.autoscale),
    "lsf": lambda job: shell.render_lsf(job.spec, job.program),
}


def strict(schema: Any) -> Any:
    """The schema with unknown fields refused, as an API server refuses them."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {}
    return closed | {key: strict(value) for key, value in schema.items()}


SHOW_ROLE = (
    'echo "$TRAINWORKS_ROLE $TRAINWORKS_ROLE_INDEX/$TRAINWORKS_ROLE_SIZE rank $RANK/$WORLD_SIZE at '
    '$TRAINWORKS_ADDRESSES_ROLLOUT"; echo "$A $TRAINWORKS_PORT $TRAINWORKS_ADDRESSES_FETCH"'
)


def check_jobset(document: dict[str, Any]) -> None:
    """Against the schema of the API."""
    schema = strict(json.loads(SCHEMA.read_text()))
    schema["properties"]["metadata"] = {"type": "object"}
    jsonschema.validate(document, schema)


def test_a_job_in_every_language(golden) -> None:
    golden("job_as_jobset.yaml", jobset.render(pods(**(LARGE | WISHES | ON_KUBERNETES))))
    without = {key: value for key, value in ON_KUBERNETES["kubernetes"].items() if key != "priority_class"}
    golden("job_as_trainjob.yaml", jobset.render_trainjob(pods(**(LARGE | WISHES | {"kubernetes": without}))))
    golden("job_as_skypilot.yaml", FORMATS["skypilot"](pods(**LARGE)))
    golden("job_as_lsf.sh", FORMATS["lsf"](pods(**(LARGE | WISHES))))


@pytest.mark.parametrize("keys", [{}, LARGE, LARGE | WISHES | ON_KUBERNETES, {"envs": {"A": "yes"}, "setup": "true"}])
def test_a_jobset_is_one_of_its_api(keys: dict[str, Any]) -> None:
    check_jobset(yaml.safe_load(jobset.render(pods(**keys))))


ROLES: dict[str, dict[str, Any]] = {
    "trainer": {"run": "train", "nodes": 2, "resources": {"accelerators": "gpu:8"}, "depends_on": ["fetch"]},
    "rollout": {"run": SHOW_ROLE, "nodes": 2, "decides": False, "image": "vllm:1", "envs": {"A": "own $(A)"}},
    "fetch": {"run": "get", "setup": "true"},
}


def of_roles(**changes: dict[str, Any]) -> RunFile:
    """A job of three roles."""
    roles = {name: role | changes.get(name, {}) for name, role in ROLES.items()}
    return RunFile.model_validate(run_file().model_dump(exclude_unset=True) | {"run": None, "roles": roles})


def test_a_job_with_roles_is_a_jobset_of_a_group_for_each(tmp_path: Path) -> None:
    text = jobset.render_roles(of_roles())
    document = yaml.safe_load(text)
    check_jobset(document)
    groups = {group["name"]: group for group in document["spec"]["replicatedJobs"]}
    assert list(groups) == ["rollout", "fetch", "trainer"]
    assert groups["trainer"]["dependsOn"] == [{"name": "fetch", "status": "Complete"}]
    assert document["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["fetch", "trainer"]}
    pods = {name: group["template"]["spec"] for name, group in groups.items()}
    assert [pods[name]["parallelism"] for name in groups] == [2, 1, 2]
    containers = {name: pod["template"]["spec"]["containers"][0] for name, pod in pods.items()}
    assert (containers["rollout"]["image"], containers["fetch"]["image"]) == ("vllm:1", "ghcr.io/ada/train:1")
    assert containers["trainer"]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    done = run_container(containers["rollout"], tmp_path, node=1)
    assert done.stdout.splitlines() == [
        "rollout 1/2 rank 1/2 at demo-rollout-0-0.demo:24000,demo-rollout-0-1.demo:24000",
        "own $(A) 24000 demo-fetch-0-0.demo:24000",
    ]
    assert "# in a JobSet an early end of `rollout` does not fail the job" in text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rollout": {"restarts": 1}}, "a JobSet does not support `roles.rollout.restarts`"),
        (
            {"trainer": {"depends_on": ["fetch", "other"]}},
            "in a JobSet a role depends on one other, and `trainer` on 2",
        ),
    ],
)
def test_what_a_jobset_cannot_do_for_roles_is_refused(changes: dict[str, Any], problem: str) -> None:
    asked = of_roles(**{name: change for name, change in changes.items() if "depends_on" not in change})
    if "trainer" in changes:
        roles = {**asked.roles, "other": asked.roles["fetch"]}
        roles["trainer"] = roles["trainer"].model_copy(update=changes["trainer"])
        asked = asked.model_copy(update={"roles": roles})
    with pytest.raises(UsageError, match=problem):
        jobset.render_roles(asked)


def test_other_languages_have_no_roles() -> None:
    with pytest.raises(UsageError, match="a job as trainjob does not support `roles`"):
        jobset.render_roles(of_roles(), "trainjob")


def test_the_schema_refuses_what_an_api_server_refuses() -> None:
    document = yaml.safe_load(jobset.render(pods()))
    document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["contaners"] = []
    with pytest.raises(jsonschema.ValidationError, match="contaners"):
        check_jobset(document)


@pytest.mark.parametrize("keys", [{}, LARGE, LARGE | WISHES | {"kubernetes": {"queue": "q", "volume": "v"}}])
def test_a_trainjob_is_one_of_its_api(keys: dict[str, Any]) -> None:
    document = yaml.safe_load(jobset.render_trainjob(pods(**keys)))
    assert TrainerV1alpha1TrainJob.from_dict(document).to_dict() == document


@pytest.mark.parametrize("language", ["jobset", "trainjob"])
def test_every_quantity_is_text(language: str) -> None:
    document = yaml.safe_load(FORMATS[language](pods(**LARGE)))
    spec = document["spec"]
    resources = (
        spec["trainer"]["resourcesPerNode"]
        if language == "trainjob"
        else spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["resources"]
    )
    assert resources["requests"] == {"cpu": "96", "memory": "512G", "nvidia.com/gpu": "8"}
    assert resources["limits"] == {"memory": "512G", "nvidia.com/gpu": "8"}


@pytest.mark.parametrize(
    ("language", "keys", "wish"),
    [
        ("jobset", {"job": {"depends_on": ["a-1"]}}, "job.depends_on"),
        ("jobset", {"num_nodes": 4, "job": {"min_nodes": 2}}, "job.min_nodes"),
        ("jobset", {"job": {"priority": 70}}, "priority"),
        ("trainjob", {"recover": {"max_restarts": 1}}, "recover.max_restarts"),
        ("trainjob", {"workdir": "/app"}, "workdir"),
        ("skypilot", WISHES, "job.time_limit"),
        ("skypilot", {"job": {"hold": True}}, "job.hold"),
        ("lsf", {"recover": {"max_restarts": 1}}, "recover.max_restarts"),
    ],
)
def test_what_a_language_cannot_say_is_refused(language: str, keys: dict[str, Any], wish: str) -> None:
    with pytest.raises(UsageError, match=f"does not support (a numeric )?`{wish}`"):
        FORMATS[language](pods(**keys))


@pytest.mark.parametrize("language", ["jobset", "trainjob"])
def test_pods_need_an_image(language: str) -> None:
    with pytest.raises(UsageError, match="the pods have no image"):
        FORMATS[language](pods(kubernetes={"image": None}))


def test_kubeflow_has_no_runtime_of_tensorflow() -> None:
    with pytest.raises(UsageError, match="no runtime for tensorflow"):
        jobset.render_trainjob(pods(framework="tensorflow"))


def test_a_workload_cannot_leave() -> None:
    asked = run_file().model_copy(update={"run": None})
    with pytest.raises(UsageError, match="a workload is trained by Trainworks itself"):
        program_of(asked)


@pytest.mark.parametrize("kind", [None, "gpu"])
def test_skypilot_wants_to_know_the_kind_of_accelerator(kind: str | None) -> None:
    with pytest.raises(UsageError, match="needs the accelerator type"):
        FORMATS["skypilot"](pods(resources={"accelerators": f"{kind or 'gpu'}:8"}))


def test_skypilot_has_no_parts_by_mig() -> None:
    with pytest.raises(UsageError, match=r"has no parts by MIG, got `1g.10gb:2`"):
        FORMATS["skypilot"](pods(resources={"accelerators": "1g.10gb:2"}))


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("H100:8", "num=8/host:j_exclusive=yes"),
        ("1g.10gb:2", "num=2/host:mig=1"),
        ("1c.3g.20gb:1", "num=1/host:mig=3/1"),
    ],
)
def test_lsf_counts_whole_accelerators_or_parts_by_mig(kind: str, option: str) -> None:
    text = FORMATS["lsf"](pods(resources={"accelerators": kind}))
    assert f'#BSUB -gpu "{option}"\n' in text
    assert ("any accelerator is accepted" in text) is kind.startswith("H100")


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
TASKS = st.fixed_dictionaries(
    {"run": HOSTILE.filter(bool), "num_nodes": st.integers(1, 9)},
    optional={
        "setup": HOSTILE,
        "workdir": HOSTILE,
        "envs": st.dictionaries(NAMES, st.none() | HOSTILE, max_size=3),
        "resources": st.fixed_dictionaries(
            {}, optional={"accelerators": st.just("A100:8"), "cpus": st.just("16+"), "memory": st.just("64+")}
        ),
    },
)  # fmt: skip


@given(TASKS)
def test_a_skypilot_task_comes_back_as_it_was(task: dict[str, Any]) -> None:
    written, _ = parse_run_file(json.dumps(task), name="task.yaml")
    spec = spec_of(written, run_id="task-1", working_folder="/")
    again, _ = parse_run_file(skypilot.render(spec, program_of(written)), name="task.yaml")
    asked = again.resources
    assert (again.run, again.setup, again.workdir) == (written.run, written.setup, written.workdir)
    assert (again.envs, again.nodes, again.starts) == (written.envs, written.nodes, written.starts)
    assert asked is None or spec_of(again, run_id="task-1", working_folder="/") == spec


@given(HOSTILE, HOSTILE)
@settings(max_examples=examples(15))
def test_skypilot_runs_the_same_processes(text: str, value: str) -> None:
    script = f"""printf '%s/%s/%s\\n' "$RANK" {shlex.quote(text)} "$HOSTILE" """
    job = pods(run=script, envs={"HOSTILE": value}, num_nodes=2, cluster={"processes_per_node": 2})
    task = yaml.safe_load(FORMATS["skypilot"](job))
    env = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    with TemporaryDirectory() as folder:
        done = run(["/bin/bash", "-c", task["run"]], Path(folder), **env, **task["envs"])
    assert sorted(done.stdout) == sorted(f"2/{text}/{value}\n3/{text}/{value}\n")
    assert done.returncode == 0


def lsf_machine(folder: Path) -> dict[str, str]:
    """Variables of an allocation of two nodes, and a blaunch whose other side is a shell."""
    (folder / "blaunch").write_text('#!/bin/bash\nshift\nexec /bin/sh -c "exec $*"\n')
    (folder / "blaunch").chmod(0o755)
    (folder / "hosts").write_text("b01\nb01\nb02\nb02\n")
    hosts = {"LSB_DJOB_HOSTFILE": str(folder / "hosts"), "LSB_JOBID": "7", "HOME": str(folder)}
    return hosts | {"PATH": f"{folder}:{os.environ['PATH']}"}


@given(HOSTILE, HOSTILE)
@settings(max_examples=examples(15))
def test_lsf_runs_the_same_processes(text: str, value: str) -> None:
    script = f"""printf '%s/%s/%s/%s\\n' "$RANK" "$MASTER_ADDR" {shlex.quote(text)} "$HOSTILE" """
    job = pods(run=script, envs={"HOSTILE": value}, num_nodes=2)
    with TemporaryDirectory() as folder:
        (Path(folder) / "job.lsf").write_text(FORMATS["lsf"](job))
        done = run(["/bin/bash", "job.lsf"], Path(folder), **lsf_machine(Path(folder)))
        left = [path.name for path in Path(folder).iterdir() if path.name.startswith(".trainworks")]
    assert sorted(done.stdout) == sorted(f"0/b01/{text}/{value}\n1/b01/{text}/{value}\n")
    assert (done.returncode, left) == (0, [])


def test_lsf_starts_in_the_folder_of_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "a b'$(id)"
    folder.mkdir()
    (tmp_path / "job.lsf").write_text(FORMATS["lsf"](pods(run="pwd", num_nodes=2, workdir=str(folder))))
    done = run(["/bin/bash", "job.lsf"], tmp_path, **lsf_machine(tmp_path))
    assert done.stdout == f"{folder}\n" * 2


def test_lsf_fails_as_the_program_fails(tmp_path: Path) -> None:
    (tmp_path / "job.lsf").write_text(FORMATS["lsf"](pods(run='[ "$RANK" = 1 ] && exit 5; sleep 600', num_nodes=2)))
    assert run(["/bin/bash", "job.lsf"], tmp_path, **lsf_machine(tmp_path)).returncode == 5


def test_lsf_needs_the_variables_that_have_no_value(tmp_path: Path) -> None:
    (tmp_path / "job.lsf").write_text(FORMATS["lsf"](pods(run='echo "$TOKEN"', num_nodes=2, envs={"TOKEN": None})))
    machine = lsf_machine(tmp_path)
    assert "TOKEN: is not set where bsub was called" in run(["/bin/bash", "job.lsf"], tmp_path, **machine).stderr
    assert run(["/bin/bash", "job.lsf"], tmp_path, TOKEN="x y", **machine).stdout == "x y\nx y\n"


@given(HOSTILE)
@settings(max_examples=examples(10))
def test_a_trainjob_runs_what_a_jobset_runs(text: str) -> None:
    job = pods(run=f"printf %s {shlex.quote(text)}", envs={"A": text}, setup="true")
    trainer = yaml.safe_load(jobset.render_trainjob(job))["spec"]["trainer"]
    with TemporaryDirectory() as folder:
        assert run_container(trainer, Path(folder)).stdout == text
