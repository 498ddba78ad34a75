"""What a workload on rented nodes needs, before anything is rented."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.backends.skypilot.test_backend import FakeSky
from tests.fakes import FakeClock, on_engine, resolved_command, spec
from trainworks.backends.skypilot.backend import SkyPilotBackend, job_name
from trainworks.backends.skypilot.client import SkyPilotClient
from trainworks.backends.skypilot.node import RentedTurn
from trainworks.backends.skypilot.rented import TOKEN, held_seconds, rented_node
from trainworks.config.run_file import RunFile
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.state import Cause, JobState
from trainworks.record.events.job import SubmittedEvent
from trainworks.record.exit_code import End
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus

WORKLOAD = {
    "task": "causal-lm",
    "model": {"architecture": "llama", "layers": 2, "hidden": 32, "heads": 4},
    "data": {"source": "python-stdlib", "sequence_length": 32},
    "global_batch": 8,
    "train_for": "10 steps",
}
WHOLE = {"image": "docker:trainworks:1", "store": {"to": "s3://bucket/runs", "endpoint": "https://s3.example"}}
H100 = NodeResources(accelerators=8, accelerator="H100")


def asked(**changes: Any) -> JobSpec:
    """One node of eight accelerators."""
    return spec(**{"node": H100, "min_nodes": 1, "max_nodes": 1} | changes)


def run_file(**options: Any) -> RunFile:
    cluster = {"engine": "skypilot", "skypilot": options}
    content = {"name": "demo", "workload": WORKLOAD, "cluster": cluster, "envs": {"AWS_ACCESS_KEY_ID": None, "A": "1"}}
    return RunFile.model_validate(content | {"resources": {"accelerators": "H100:8"}})


def backend(fake: FakeSky | None = None, **options: Any) -> SkyPilotBackend:
    file, sky = run_file(**options), fake or FakeSky()
    client = SkyPilotClient(run=sky, lines=sky.lines, env={"AWS_ACCESS_KEY_ID": "k"})
    program = SkyPilotBackend.workload_program(file)
    return SkyPilotBackend(file.cluster.skypilot, program=program, client=client, clock=FakeClock())


@pytest.mark.parametrize(
    ("options", "changes", "message", "hint"),
    [
        ({}, {}, "need a store that outlives rented nodes", r"`cluster\.skypilot\.store`"),
        ({"store": "s3://bucket/x"}, {}, "nothing gives Trainworks to the nodes", "`environment.image`"),
        (WHOLE, {"min_nodes": 2, "max_nodes": 2}, "2 rented nodes needs a folder that all of them see", "volume"),
        (
            {"store": "s3://bucket/x", "wheel": "no.whl", "constraints": "no.txt"},
            {},
            r"`cluster\.skypilot\.wheel` is `no\.whl`, which is not a file",
            "relative to the current folder",
        ),
        (
            WHOLE,
            {"node": NodeResources(accelerators=8, accelerator="H100", alternatives=("A100:8",))},
            "planned for one kind of accelerator",
            "H100:8",
        ),
    ],
)
def test_a_workload_that_could_not_train_or_would_lose_its_checkpoints_is_refused(
    options: dict[str, Any], changes: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        backend(**options).check(asked(**changes))
    assert refused.value.hint is not None and hint.replace("\\", "") in refused.value.hint


def test_a_store_is_a_bucket_and_a_wheel_comes_with_exact_versions() -> None:
    with pytest.raises(ValueError, match="ends with the nodes"):
        run_file(store="/mnt/copies")
    with pytest.raises(ValueError, match="`wheel` and `constraints` together"):
        run_file(wheel="trainworks.whl")


def test_the_task_of_a_workload_names_its_run_and_hides_what_is_secret(run_dir: RunDir) -> None:
    one = backend(**WHOLE, python="/opt/it's/python")
    one.check(asked())
    task = yaml.safe_load(one.render(asked(max_restarts=3), run_dir).text)
    place = json.loads(task["envs"].pop("TRAINWORKS_RENTED"))
    assert place["folder"] == f"~/trainworks-runs/{job_name(run_dir)}/demo-1"
    assert place["store"] == {"to": "s3://bucket/runs", "endpoint": "https://s3.example"}
    assert task["envs"] == {"A": "1"} and task["secrets"] == {"AWS_ACCESS_KEY_ID": None, TOKEN: None}
    assert task["run"] == "exec '/opt/it'\"'\"'s/python' -P -m trainworks.backends.skypilot.node\n"
    assert task["resources"]["accelerators"] == "H100:8" and task["resources"]["image_id"] == "docker:trainworks:1"
    assert task["resources"]["job_recovery"] == {"strategy": "EAGER_NEXT_REGION", "recover_on_exit_codes": [75]}
    assert "setup" not in task and "file_mounts" not in task


def test_a_wheel_is_installed_with_the_versions_of_its_constraints(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("trainworks-0.1.0-py3-none-any.whl", "constraints.txt"):
        (tmp_path / name).touch()
    one = backend(store="s3://bucket/x", wheel="trainworks-0.1.0-py3-none-any.whl", constraints="constraints.txt")
    one.check(asked())
    task = yaml.safe_load(one.render(asked(), run_dir).text)
    assert task["file_mounts"] == {
        "~/.trainworks/constraints.txt": str(tmp_path / "constraints.txt"),
        "~/.trainworks/trainworks-0.1.0-py3-none-any.whl": str(tmp_path / "trainworks-0.1.0-py3-none-any.whl"),
    }
    assert task["run"] == 'exec "$HOME/.trainworks/env/bin/python" -P -m trainworks.backends.skypilot.node\n'
    uv, home = tmp_path / "home" / ".local" / "bin" / "uv", tmp_path / "home"
    uv.parent.mkdir(parents=True)
    uv.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" >> {tmp_path}/words\n')
    uv.chmod(0o755)
    subprocess.run(["bash", "-c", task["setup"]], check=True, env={"HOME": str(home), "PATH": os.environ["PATH"]})
    words = (tmp_path / "words").read_text().splitlines()
    assert words[words.index("--constraint") + 1] == f"{home}/.trainworks/constraints.txt"
    wheel = f"file://{home}/.trainworks/trainworks-0.1.0-py3-none-any.whl"
    assert words[-1] == f"trainworks[train,s3,data] @ {wheel}"


def turn(run_dir: RunDir, tmp_path: Path, *, spot: bool = True) -> RentedTurn:
    """A turn of a submission that has had one before."""
    resolved = on_engine(resolved_command(), "skypilot")
    options = resolved.run_file.cluster.skypilot.model_copy(update={"use_spot": spot})
    cluster = resolved.run_file.cluster.model_copy(update={"skypilot": options})
    run = resolved.run_file.model_copy(update={"cluster": cluster})
    run_dir.write_resolved(resolved.model_copy(update={"run_file": run}))
    env = {
        "TRAINWORKS_RENTED": json.dumps({"folder": str(run_dir.path), "store": {"to": "s3://bucket/x"}}),
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "8",
        TOKEN: "t",
    }
    node = rented_node(env)
    assert (node.addresses, node.accelerators) == (("10.0.0.1", "10.0.0.2"), 8)
    run_dir.note(SubmittedEvent(kind="submitted", nodes=2, processes_per_node=8, restarts=0, job=node.job))
    return RentedTurn(node, FakeClock())


@pytest.mark.parametrize(
    ("state", "cause", "seen"),
    [
        ("RUNNING", None, (JobState.QUEUED, Cause.NODE_LOST)),
        ("STOPPED", None, (JobState.PREEMPTED, Cause.PREEMPTED)),  # the cloud ended it, for SkyPilot starts it again
        ("STOPPED", "idle", ("STOPPED", "idle")),
        ("SUCCEEDED", None, ("SUCCEEDED", None)),
        ("PREEMPTED", "preempted", ("PREEMPTED", "preempted")),
    ],
)
def test_new_nodes_know_how_the_nodes_before_them_ended(
    state: str, cause: str | None, seen: tuple[str, str | None], run_dir: RunDir, tmp_path: Path
) -> None:
    one = turn(run_dir, tmp_path)
    last = RunStatus(state=state, cause=cause)
    run_dir.write_status(last)
    end = one.last_end(last)
    assert end is not None and (end.state, end.cause) == seen


def test_nodes_of_another_submission_begin_a_first_turn(run_dir: RunDir, tmp_path: Path) -> None:
    one = turn(run_dir, tmp_path)
    run_dir.events_file.write_text("")
    assert one.last_end(RunStatus(state="FAILED", cause="user_error")) is None


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (End(JobState.SUCCEEDED), 0),
        (End(JobState.PREEMPTED, Cause.PREEMPTED), 75),
        (End(JobState.FAILED, exit_code=3), 3),
        (End(JobState.FAILED, exit_code=75), 1),
        (End(JobState.STOPPED), 0),
    ],
)
def test_the_exit_code_of_the_first_node_asks_for_others_or_ends_the_job(
    end: End, code: int, run_dir: RunDir, tmp_path: Path
) -> None:
    assert turn(run_dir, tmp_path).finish(end) == code


@pytest.mark.parametrize(("spot", "state"), [(True, JobState.PREEMPTED), (False, None)])
def test_a_term_signal_is_a_preemption_where_the_cloud_may_send_it(
    spot: bool, state: JobState | None, run_dir: RunDir, tmp_path: Path
) -> None:
    one = turn(run_dir, tmp_path, spot=spot)
    one.heard.append(signal.SIGTERM)
    end = one.taken()
    assert (end.state if end else None) == state and one.is_limited is not spot


def test_a_process_elsewhere_is_no_rented_node() -> None:
    with pytest.raises(EnvironmentProblem, match="'TRAINWORKS_RENTED' is not set"):
        rented_node({})


def test_a_run_holds_its_nodes_from_each_start_to_its_end_or_its_last_sign_of_life() -> None:
    events: list[Any] = [
        {"kind": "submitted", "t": 100.0},
        {"kind": "attempt", "t": 150.0},  # then the node was lost
        {"kind": "submitted", "t": 1000.0},
        {"kind": "state", "state": "RUNNING", "t": 1010.0},
        {"kind": "state", "state": "FAILED", "t": 1100.0},
        {"kind": "changed", "t": 9000.0},
        {"kind": "submitted", "t": 9010.0},
        {"kind": "attempt", "t": 9015.0},
    ]
    assert held_seconds(events) == 50.0 + 100.0 + 5.0


READS = """
import json, sys, yaml
import sky
names = ("AWS_ACCESS_KEY_ID", "TRAINWORKS_TOKEN")
task = sky.Task.from_yaml_config(yaml.safe_load(sys.stdin.read()), secrets_overrides=[(name, "x") for name in names])
[resources] = task.resources
print(json.dumps([task.num_nodes, resources.accelerators, resources.job_recovery, sorted(task.secrets), task.run]))
"""


@pytest.mark.sky
def test_skypilot_itself_reads_the_task_of_a_workload(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`TRAINWORKS_TEST_SKY` names a Python that has SkyPilot."""
    python = os.environ.get("TRAINWORKS_TEST_SKY")
    if python is None:
        pytest.skip("NOT TESTED: SkyPilot's own reader; set TRAINWORKS_TEST_SKY to a Python that has skypilot")
    monkeypatch.chdir(tmp_path)
    for name in ("trainworks.whl", "constraints.txt"):
        (tmp_path / name).touch()
    one = backend(store="s3://bucket/x", wheel="trainworks.whl", constraints="constraints.txt", use_spot=True)
    text = one.render(asked(), run_dir).text
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([python, "-c", READS], input=text, text=True, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    recovery = {"strategy": "EAGER_NEXT_REGION", "recover_on_exit_codes": [75]}
    secrets = ["AWS_ACCESS_KEY_ID", TOKEN]
    assert json.loads(done.stdout.splitlines()[-1]) == [1, {"H100": 8}, recovery, secrets, yaml.safe_load(text)["run"]]
