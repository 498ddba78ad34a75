"""Jobs with roles on SkyPilot: what becomes of them in a job group, on a cloud on this machine, and in its queue."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.backends.skypilot.cloud import jobs, opened
from trainworks.api.observing.logs import logs
from trainworks.api.run_handle import Run
from trainworks.api.run_request import job_in_format, read_run_file
from trainworks.api.runs import submit
from trainworks.backends.registry import backend_of_run
from trainworks.backends.skypilot.client import SkyPilotClient
from trainworks.backends.skypilot.states import job_status, role_of_node
from trainworks.config.load import parse_run_file
from trainworks.config.run_file import RunFile
from trainworks.errors import RunFileError, UsageError
from trainworks.jobs.formats.skypilot import render_managed_job
from trainworks.jobs.program import program_of
from trainworks.jobs.spec_of_run import spec_of
from trainworks.jobs.state import Cause, JobState

LONG_S = 240.0
LOADS = """
import sys
from sky.utils import dag_utils
dag = dag_utils.load_dag_from_yaml_str(sys.stdin.read())
print(dag.is_job_group(), dag.primary_tasks, dag.termination_delay, dag.inter_connection)
for task in dag.tasks:
    print(task.name, task.num_nodes, sorted(task.envs), [str(one.accelerators) for one in task.resources])
"""


def climb(**changes: Any) -> RunFile:
    """A trainer that decides, and two nodes of a server."""
    reward = {"run": "serve", "nodes": 2, "decides": False, "restarts": 3, "resources": {"cpus": 2}}
    return RunFile.model_validate(
        {
            "name": "climb.v1",
            "envs": {"LEVEL": "3"},
            "roles": {
                "trainer": {"run": "train", "resources": {"accelerators": "H100:8"}, "image": "ada/train:1"},
                "reward": reward | changes.pop("reward", {}),
            },
            "cluster": {"engine": "skypilot", "skypilot": {"infra": ["k8s/lab"]} | changes.pop("skypilot", {})},
        }
        | changes
    )


def rendered(run_file: RunFile) -> list[dict[str, Any]]:
    """The documents of the job group that a run file becomes as a managed job."""
    return list(yaml.safe_load_all(text_of(run_file)))


def text_of(run_file: RunFile) -> str:
    spec = spec_of(run_file, run_id="climb-1", working_folder=".")
    return render_managed_job(spec, program_of(run_file), run_file.cluster.skypilot, "climb-1-0f")


def test_a_job_group_has_a_task_for_each_role(golden) -> None:
    golden("skypilot_job_group.yaml", text_of(climb()))


def test_every_role_finds_the_others_by_the_names_that_skypilot_gives_their_nodes() -> None:
    trainer, reward = rendered(climb())[1:]
    places = "reward-0.climb-1-0f:24000,reward-1.climb-1-0f:24000"
    assert trainer["envs"]["TRAINWORKS_ADDRESSES_REWARD"] == reward["envs"]["TRAINWORKS_ADDRESSES_REWARD"] == places
    assert [one["envs"]["TRAINWORKS_ROLE"] for one in (trainer, reward)] == ["trainer", "reward"]
    assert [one["envs"]["TRAINWORKS_ROLE_SIZE"] for one in (trainer, reward)] == ["1", "2"]
    ranks = {"SKYPILOT_NODE_RANK": "1", "PATH": os.environ["PATH"]}
    script = reward["run"].replace("serve", 'echo "$TRAINWORKS_ROLE_INDEX"')
    assert subprocess.check_output(["bash", "-c", script], env=ranks, text=True) == "1\n"


def test_roles_that_call_no_other_get_no_addresses_and_may_run_anywhere() -> None:
    apart = {"infra": ["aws"], "group": {"inter_connection": False, "termination_delay": "30s"}}
    header, trainer, _ = rendered(climb(skypilot=apart))
    assert (header["inter_connection"], header["termination_delay"]) == (False, "30s")
    assert not any(name.startswith("TRAINWORKS_ADDRESSES") for name in trainer["envs"])
    assert trainer["envs"]["TRAINWORKS_ROLE"] == "trainer"


def test_options_of_a_role_stand_in_place_of_those_of_the_job() -> None:
    own = {"skypilot": {"use_spot": True, "infra": ["k8s/other"], "resources": {"job_recovery": {"strategy": "X"}}}}
    trainer, reward = (one["resources"] for one in rendered(climb(reward=own, skypilot={"disk_size": 64}))[1:])
    assert (trainer["infra"], trainer["image_id"]) == ("k8s/lab", "docker:ada/train:1")
    assert (reward["infra"], reward["use_spot"], reward["disk_size"]) == ("k8s/other", True, 64)
    assert reward["job_recovery"] == {"strategy": "X", "max_restarts_on_errors": 3}
    assert "use_spot" not in trainer and "image_id" not in reward


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recover": {"max_restarts": 2}}, "does not support `recover.max_restarts`"),
        ({"reward": {"decides": True, "depends_on": ["trainer"]}}, "starts all roles at once, and `reward` depends"),
        ({"skypilot": {"infra": ["aws", "gcp/us-central1"]}}, "on Kubernetes alone, and `infra` of `trainer` is aws"),
        ({"reward": {"skypilot": {"infra": ["aws"]}}}, "`infra` of `reward` is aws"),
    ],
)
def test_what_a_job_group_does_not_keep_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        text_of(climb(**changes))


def test_rules_that_a_job_group_keeps_otherwise_are_notes_at_their_lines() -> None:
    text = "name: a\ncluster: skypilot\nroles:\n  b:\n    run: b\n    decides: false\n  c: {run: c}\n  d: {run: d}\n"
    after = "after a failure of one of `c`, `d` SkyPilot lets the others end by themselves, and then fails the job"
    runs_on = "SkyPilot lets the other roles run on when `b` fails, or ends early"
    notes = parse_run_file(text, name="a.yaml")[1].unused
    assert notes == [f"a.yaml:3  roles: {after}", f"a.yaml:6  roles.b.decides: {runs_on}"]
    assert parse_run_file(text.replace("skypilot", "local"), name="a.yaml")[1].unused == []


@pytest.mark.parametrize("key", ["program", "folder", "python", "group"])
def test_an_option_of_the_whole_job_is_unknown_in_a_role(key: str) -> None:
    text = f"name: a\nroles:\n  b:\n    run: b\n    skypilot: {{{key}: /a/b}}\n"
    with pytest.raises(RunFileError, match=f"unknown key `{key}`"):
        parse_run_file(text, name="a.yaml")


def record(role: str, status: str, **facts: Any) -> dict[str, Any]:
    """A task of job 7 in the queue; `trainer` comes first, and decides."""
    number = ["trainer", "reward"].index(role)
    known = {"job_id": 7, "job_name": "climb-1-0f", "task_name": role, "task_id": number, "status": status}
    ended = {"end_at": 100.0 + number} if status not in ("RUNNING", "STARTING", "PENDING", "RECOVERING") else {}
    common = {"is_primary_in_job_group": number == 0, "schedule_state": "ALIVE", "resources": f"{number + 1}x[CPU:1]"}
    return known | common | ended | facts


@pytest.mark.parametrize(
    ("trainer", "reward", "state"),
    [
        ("PENDING", "PENDING", JobState.QUEUED),
        ("STARTING", "PENDING", JobState.STARTING),
        ("RUNNING", "RUNNING", JobState.RUNNING),
        ("RUNNING", "RECOVERING", JobState.RUNNING),
        ("RECOVERING", "SUCCEEDED", JobState.RECOVERING),
        ("RUNNING", "FAILED", JobState.RUNNING),
        ("SUCCEEDED", "RUNNING", JobState.RUNNING),
        ("SUCCEEDED", "CANCELLED", JobState.SUCCEEDED),
        ("SUCCEEDED", "FAILED", JobState.SUCCEEDED),
        ("FAILED", "CANCELLED", JobState.FAILED),
        ("CANCELLED", "CANCELLED", JobState.STOPPED),
        ("CANCELLED", "FAILED", JobState.STOPPED),
        ("CANCELLED", "FAILED_SETUP", JobState.FAILED),
        ("HIBERNATING", "PENDING", JobState.QUEUED),
    ],
)
def test_the_states_of_the_tasks_join_into_that_of_the_job(trainer: str, reward: str, state: JobState) -> None:
    is_over = not {trainer, reward} & {"PENDING", "STARTING", "RUNNING", "RECOVERING"}
    controller = {"schedule_state": "DONE" if is_over else "ALIVE"}
    seen = job_status([record("reward", reward, **controller), record("trainer", trainer, **controller)])
    assert seen.state is state
    assert seen.raw == (trainer if trainer == reward else f"trainer {trainer}, reward {reward}")


def test_a_group_ends_when_its_machines_are_gone() -> None:
    tasks = [record("trainer", "SUCCEEDED"), record("reward", "CANCELLED")]
    assert (job_status(tasks).state, job_status(tasks).reason) == (
        JobState.RUNNING,
        "SkyPilot returns the machines of the job",
    )


def test_the_cause_of_a_failed_group_is_the_first_failure_of_any_role() -> None:
    exited = "Job exited with exit code {}. To see the details, run: sky jobs logs 7"
    done = {"schedule_state": "DONE"}
    tasks = [
        record("trainer", "FAILED", failure_reason=exited.format(1), end_at=90.0, **done),
        record("reward", "FAILED", failure_reason=exited.format(3), end_at=80.0, **done),
    ]
    seen = job_status(tasks)
    assert (seen.state, seen.cause, seen.exit_code, seen.ended_at) == (JobState.FAILED, Cause.USER_ERROR, 3, 90.0)
    assert seen.reason == f"role `reward`: {exited.format(3)}"


def test_the_nodes_of_a_group_are_those_of_its_roles_in_their_order() -> None:
    tasks = [record("reward", "SUCCEEDED"), record("trainer", "RUNNING", node_names="i-9")]
    assert job_status(tasks).nodes == ("i-9", "reward-0", "reward-1")
    assert [role_of_node(tasks, node) for node in range(4)] == [("trainer", 0), ("reward", 0), ("reward", 1), None]


def test_lines_of_all_roles_come_as_they_are_written_and_name_their_role() -> None:
    seen: list[Mapping[str, Sequence[str]]] = []

    def merged(commands: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
        seen.append(commands)
        yield from [("b", "\x1b[36m(head, rank=0, pid=1)\x1b[0m up\n"), ("a", "waits\r\n")]

    client = SkyPilotClient(merged=merged, lines=lambda command: iter([f"{command[-1]}\n"]), env={})
    assert list(client.logs_of_tasks("7", ["a", "b"], follow=True)) == [
        ("b", "(head, rank=0, pid=1) up"),
        ("a", "waits"),
    ]
    assert [list(command[-2:]) for command in seen[0].values()] == [["7", "a"], ["7", "b"]]
    assert list(client.logs_of_tasks("7", ["a", "b"], follow=False)) == [("a", "a"), ("b", "b")]


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a cloud, and an empty folder of code."""
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    with opened(tmp_path / "cloud") as folder:
        yield folder


def started(cloud: Path, **roles: dict[str, Any]) -> Run:
    """A submitted job with these roles."""
    every = {name: {"resources": {"cpus": 1}, **role} for name, role in roles.items()}
    cluster = {"engine": "skypilot", "skypilot": {"program": str(cloud / "sky")}}
    text = yaml.safe_dump({"name": "t", "roles": every, "cluster": cluster}, sort_keys=False)
    with pytest.warns(UserWarning, match="SkyPilot lets the other roles run on when `server` fails"):
        return submit(read_run_file(text), folder=cloud.parent / "runs")


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.2)


SERVER = {"run": "echo up; exec sleep 600", "nodes": 2, "decides": False}


def test_the_roles_of_a_job_start_together_and_the_deciding_one_ends_it(cloud: Path) -> None:
    asks = 'echo "$TRAINWORKS_ROLE $RANK/$WORLD_SIZE"; echo $TRAINWORKS_ADDRESSES_SERVER | tr , "\\n" | wc -l'
    run = started(cloud, server=SERVER, trainer={"run": f"sleep 1; {asks}", "nodes": 2, "processes_per_node": 1})
    assert run.wait() is JobState.SUCCEEDED
    assert run.job is not None and run.job.row.attempt == 1 and run.job.row.raw == "server CANCELLED, trainer SUCCEEDED"
    assert [[line.text for line in logs(run, node=node)] for node in range(4)] == [
        *[["up"], ["up"], ["trainer 0/2", "2"], ["trainer 1/2", "2"]]
    ]
    assert {line.text for line in logs(run)} == {
        *("[server-0] up", "[server-1] up", "[trainer-0] trainer 0/2", "[trainer-0] 2"),
        *("[trainer-1] trainer 1/2", "[trainer-1] 2"),
    }
    assert not list(cloud.glob("**/machine-*"))


def test_a_role_starts_again_alone_and_its_last_failure_is_the_cause(cloud: Path) -> None:
    run = started(cloud, server=SERVER, trainer={"run": "echo up; exit 3", "restarts": 1})
    assert run.wait() is JobState.FAILED
    assert [(task["task_name"], task["status"], task["recovery_count"]) for task in reversed(jobs(cloud))] == [
        ("trainer", "FAILED", 1),
        ("server", "CANCELLED", 0),
    ]
    end = run.status
    assert (end.cause, end.exit_code) == (Cause.USER_ERROR, 3)
    assert end.message is not None and "role `trainer`: Job exited with exit code 3" in end.message


def test_a_stop_ends_all_roles(cloud: Path) -> None:
    run = started(cloud, server=SERVER, trainer={"run": "echo up; exec sleep 600"})
    wait_until(lambda: [task["status"] for task in jobs(cloud)] == ["RUNNING", "RUNNING"])
    run.stop()
    assert run.wait() is JobState.STOPPED
    assert not list(cloud.glob("**/machine-*"))


@pytest.mark.sky
def test_skypilot_itself_loads_the_job_group() -> None:
    """`TRAINWORKS_TEST_SKY` names a Python that has SkyPilot, which loads the file as `sky jobs launch` does."""
    python = os.environ.get("TRAINWORKS_TEST_SKY")
    if python is None:
        pytest.skip("NOT TESTED: SkyPilot's own reader of job groups; set TRAINWORKS_TEST_SKY to a Python that has it")
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    delayed = climb(skypilot={"group": {"termination_delay": "30s"}})
    done = subprocess.run(
        [python, "-c", LOADS], input=text_of(delayed), text=True, env=env, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    header, trainer, reward = done.stdout.splitlines()[-3:]
    assert header == "True ['trainer'] 30s True"
    assert trainer.startswith("trainer 1 ") and "{'H100': 8}" in trainer and reward.startswith("reward 2 ")


def test_the_backend_gets_the_programs_of_all_roles(cloud: Path) -> None:
    run = started(cloud, server=SERVER, trainer={"run": "true", "envs": {"PATH": None}})
    backend = backend_of_run(run.resolved)
    text = backend.render(spec_of(run.resolved.run_file, run_id=run.id, working_folder="."), run.run_dir).text
    header, *tasks = yaml.safe_load_all(text)
    assert (header["primary_tasks"], [task["name"] for task in tasks]) == (["trainer"], ["server", "trainer"])
    assert tasks[1]["secrets"] == {"PATH": None}
    run.stop()


def test_a_written_job_group_is_read_as_the_roles_that_it_was(tmp_path: Path) -> None:
    text = yaml.safe_dump(climb().model_dump(mode="json", exclude_unset=True) | {"envs": {}}, sort_keys=False)
    request = read_run_file(text.replace("image: ada/train:1", "skypilot: {image: 'docker:ada/train:1'}"))
    again = read_run_file(job_in_format(request, "skypilot"))
    assert again.run_file.roles["reward"] == request.run_file.roles["reward"].model_copy(update={"may_end": True})
    trainer = again.run_file.roles["trainer"]
    assert trainer.run == "train" and trainer.resources == request.run_file.roles["trainer"].resources
