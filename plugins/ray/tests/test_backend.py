"""What the backend asks of Ray's dashboard, over HTTP, and what it makes of the answers that Ray 2.60.0 gave."""

from __future__ import annotations

import io
import json
import socket
import zipfile
from pathlib import Path
from typing import Any

import pytest

from plugins.ray.tests.dashboard import RECORDED, FakeDashboard
from tests.fakes import FakeClock, spec
from trainworks.errors import EnvironmentProblem, UnreachableError, UsageError
from trainworks.jobs.job_spec import NodeResources
from trainworks.jobs.program import Program
from trainworks.jobs.state import JobState
from trainworks.record.run_dir import RunDir
from trainworks_ray import gang
from trainworks_ray.backend import RayBackend
from trainworks_ray.client import RayClient, RayRefusedError
from trainworks_ray.options import RayOptions
from trainworks_ray.render import id_prefix

Dashboard = tuple[FakeDashboard, str]


def backend_of(address: str | None, *, clock: FakeClock | None = None, env: Any = None, **program: Any) -> RayBackend:
    options = RayOptions(address=address, python=program.pop("python", "python"), **program.pop("options", {}))
    runs = Program(**({"script": "python train.py", "starts": "per_node"} | program))
    return RayBackend(options, program=runs, client=RayClient(options, env=env or {}), clock=clock or FakeClock())


def submitted(one: RayBackend, run_dir: RunDir, **changes: Any) -> str:
    return one.submit(one.render(spec(**changes), run_dir), run_dir)


def unpacked(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_what_the_driver_is_told(golden, run_dir: RunDir) -> None:
    node = NodeResources(cores=96, accelerators=8, accelerator="h100", memory_bytes=512 * 10**9)
    asked = spec(node=node, max_restarts=3, time_limit_s=3600.0)
    one = backend_of(
        None,
        script='python train.py --name "$RUN_NAME"',
        starts="per_rank",
        processes_per_node=8,
        setup="pip install -r requirements.txt",
        envs={"WANDB_MODE": "offline", "HF_TOKEN": None},
        options={"resources": {"spot": 1}},
    )
    text = one.render(asked, run_dir).text
    told = json.loads(text)
    golden("ray_node.sh", told.pop("text"))
    golden("ray_gang.json", json.dumps(told | {"id": "demo-1"}, indent=2) + "\n")


@pytest.mark.parametrize(
    ("wanted", "found"), [("A100-SXM-80GB", "A100-80G"), ("a100", "A100"), ("H100-SXM-80GB", None)]
)
def test_an_accelerator_gets_the_name_that_ray_gives_it(
    wanted: str, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = {"resources_total": {"GPU": 8.0, "accelerator_type:A100-80G": 1.0, "accelerator_type:A100": 1.0}}
    monkeypatch.setattr(RayClient, "state", lambda self, kind: [node])
    asked = spec(node=NodeResources(accelerators=8, accelerator=wanted))
    assert backend_of("http://ray-head:8265").adapted(asked).node.accelerator == (found or wanted)


def test_parts_by_mig_are_refused(run_dir: RunDir) -> None:
    asked = spec(node=NodeResources(accelerators=1, accelerator="1g.10gb"))
    with pytest.raises(UsageError, match=r"a Ray job has no parts by MIG, got `1g.10gb`"):
        backend_of("http://ray-head:8265", script="python train.py").check(asked)


def test_a_job_is_submitted_with_its_driver(dashboard: Dashboard, run_dir: RunDir) -> None:
    fake, address = dashboard
    one = backend_of(address, envs={"A": "it's"}, python="/opt/ray/bin/python")
    name = submitted(one, run_dir, grace_s=30.0)
    job = fake.jobs[name]
    assert name == f"{id_prefix(run_dir)}-1" and job["entrypoint"] == "/opt/ray/bin/python -m trainworks_gang"
    assert job["runtime_env"]["env_vars"] == {"RAY_JOB_STOP_WAIT_TIME_S": "50"}
    [package] = fake.packages
    assert job["runtime_env"]["py_modules"] == [f"gcs://{package}"] and "working_dir" not in job["runtime_env"]
    files = unpacked(fake.packages[package])
    assert files["trainworks_gang/__main__.py"] == Path(gang.__file__).read_bytes()
    told = json.loads(files["trainworks_gang/gang.json"])
    assert (told["id"], told["envs"]) == (name, {"A": "it's"})


def test_a_secret_never_leaves_this_machine(dashboard: Dashboard, run_dir: RunDir) -> None:
    fake, address = dashboard
    one = backend_of(address, env={"HF_TOKEN": "s3cret"}, envs={"HF_TOKEN": None})
    submitted(one, run_dir)
    [content] = fake.packages.values()
    assert b"s3cret" not in b"".join(unpacked(content).values()) and "s3cret" not in json.dumps(fake.jobs)


def test_a_folder_is_sent_once_with_its_modes_and_without_what_is_made_anew(
    dashboard: Dashboard, run_dir: RunDir, tmp_path: Path
) -> None:
    fake, address = dashboard
    folder = tmp_path / "it's $(code)"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text("secret")
    (folder / "train.py").write_text("print(1)\n")
    (folder / "go.sh").write_text("#!/bin/sh\n")
    (folder / "go.sh").chmod(0o755)
    one = backend_of(address, working_folder="/no/such")
    name = submitted(one, run_dir, keep_code=True, working_folder=str(folder))
    package = fake.jobs[name]["runtime_env"]["working_dir"].removeprefix("gcs://")
    with zipfile.ZipFile(io.BytesIO(fake.packages[package])) as file:
        modes = {entry.filename: entry.external_attr >> 16 & 0o777 for entry in file.infolist()}
    assert modes == {"go.sh": 0o755, "train.py": 0o644}
    fake.jobs[name]["status"] = "FAILED"
    submitted(backend_of(address, working_folder=str(folder)), run_dir)
    assert fake.asked.count(f"PUT /api/packages/gcs/{package}") == 1


def test_a_folder_that_is_not_here_is_refused(dashboard: Dashboard, run_dir: RunDir) -> None:
    with pytest.raises(UsageError, match="`/no/such` does not exist") as found:
        submitted(backend_of(dashboard[1], working_folder="/no/such"), run_dir)
    assert found.value.hint == "set it to a folder on this machine, which is uploaded to the nodes"
    assert dashboard[0].jobs == {}


def test_a_folder_that_is_too_large_is_refused(dashboard: Dashboard, run_dir: RunDir, tmp_path: Path) -> None:
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(101 * 2**20)
    with pytest.raises(UsageError, match="is larger than 100 MiB"):
        submitted(backend_of(dashboard[1], working_folder=str(tmp_path)), run_dir)


def test_a_run_that_waits_already_is_not_submitted_again(dashboard: Dashboard, run_dir: RunDir) -> None:
    fake, address = dashboard
    one = backend_of(address)
    assert submitted(one, run_dir) == submitted(one, run_dir) and fake.asked.count("POST /api/jobs/") == 1


def test_a_run_that_has_ended_is_submitted_anew_under_the_next_number(dashboard: Dashboard, run_dir: RunDir) -> None:
    fake, address = dashboard
    one = backend_of(address)
    first = submitted(one, run_dir)
    fake.jobs[first]["status"] = "FAILED"
    assert submitted(one, run_dir) == f"{id_prefix(run_dir)}-2"


def test_two_submissions_at_once_are_one_job(dashboard: Dashboard, run_dir: RunDir) -> None:
    fake, address = dashboard
    first = submitted(backend_of(address), run_dir)
    fake.answers["GET /api/jobs/"] = [(200, "[]")]
    assert submitted(backend_of(address), run_dir) == first and len(fake.jobs) == 1


def test_a_job_whose_answer_was_lost_is_found(dashboard: Dashboard, run_dir: RunDir, clock: FakeClock) -> None:
    fake, address = dashboard
    name = f"{id_prefix(run_dir)}-1"
    fake.answers["POST /api/jobs/"] = (504, "gateway timeout")
    fake.answers[f"GET /api/jobs/{name}"] = [(503, "away"), (200, json.dumps(RECORDED["pending"]["job"]))]
    assert submitted(backend_of(address, clock=clock), run_dir) == name


def test_a_submission_that_nobody_answers_is_an_error(dashboard: Dashboard, run_dir: RunDir, clock: FakeClock) -> None:
    dashboard[0].answers["POST /api/jobs/"] = (500, "No available agent to submit job, please try again later.")
    with pytest.raises(UnreachableError, match="No available agent"):
        submitted(backend_of(dashboard[1], clock=clock), run_dir)


def test_a_refusal_is_passed_on_in_ray_s_words(dashboard: Dashboard, run_dir: RunDir) -> None:
    bad = RECORDED["answer_bad"]
    dashboard[0].answers["POST /api/jobs/"] = (bad["code"], bad["text"])
    with pytest.raises(RayRefusedError, match=r"^Ray: .*entrypiont"):
        submitted(backend_of(dashboard[1]), run_dir)


def test_jobs_and_their_placement_groups_are_asked_for_once(dashboard: Dashboard) -> None:
    fake, address = dashboard
    for name in ("runs", "failed"):
        fake.jobs[RECORDED[name]["job"]["submission_id"]] = RECORDED[name]["job"]
        fake.groups += RECORDED[name]["groups"]
    runs, failed = fake.jobs
    seen = backend_of(address).poll([runs, failed, "gone-1"])
    assert {name: one.state for name, one in seen.items()} == {runs: JobState.RUNNING, failed: JobState.FAILED}
    assert fake.asked == ["GET /api/jobs/", "GET /api/v0/placement_groups"]


def test_nobody_is_asked_about_no_job(dashboard: Dashboard) -> None:
    assert (backend_of(dashboard[1]).poll([]), dashboard[0].asked) == ({}, [])


def test_without_jobs_that_run_nobody_asks_for_placement_groups(dashboard: Dashboard) -> None:
    fake, address = dashboard
    job = RECORDED["failed"]["job"]
    fake.jobs[job["submission_id"]] = job
    backend_of(address).poll([job["submission_id"]])
    assert fake.asked == ["GET /api/jobs/"]


def test_a_stop_asks_ray(dashboard: Dashboard, run_dir: RunDir) -> None:
    fake, address = dashboard
    one = backend_of(address)
    name = submitted(one, run_dir)
    one.stop(name)
    assert fake.asked[-1] == f"POST /api/jobs/{name}/stop" and len(fake.jobs) == 1


def test_a_stop_at_once_sends_somebody_to_the_nodes(dashboard: Dashboard, run_dir: RunDir) -> None:
    fake, address = dashboard
    one = backend_of(address)
    name = submitted(one, run_dir)
    one.stop(name, at_once=True)
    one.stop(name, at_once=True)
    end = fake.jobs[f"{name}-end"]
    assert end["entrypoint"] == "python -m trainworks_gang end"
    assert end["runtime_env"]["py_modules"] == fake.jobs[name]["runtime_env"]["py_modules"]


def test_a_job_that_has_ended_is_left_alone(dashboard: Dashboard) -> None:
    fake, address = dashboard
    job = RECORDED["failed"]["job"]
    fake.jobs[job["submission_id"]] = job
    for name in (job["submission_id"], "gone-1"):
        backend_of(address).stop(name, at_once=True)
    assert [asked for asked in fake.asked if asked.startswith("POST")] == []


def test_what_the_nodes_have_printed(dashboard: Dashboard) -> None:
    fake, address = dashboard
    job = RECORDED["failed"]["job"]
    name = job["submission_id"]
    fake.jobs[name] = job
    fake.answers[f"GET /api/jobs/{name}/logs"] = (
        200,
        json.dumps({"logs": "Ray's own\n[node 0] a\n[node 1] b  \n[node 10] c\n"}),
    )
    one = backend_of(address)
    assert list(one.output(name)) == ["Ray's own", "[node 0] a", "[node 1] b  ", "[node 10] c"]
    assert list(one.output(name, node=1)) == ["b  "]
    assert list(one.output("gone-1")) == []


def test_output_is_followed_line_by_line_to_the_end_of_the_job(dashboard: Dashboard, clock: FakeClock) -> None:
    fake, address = dashboard
    runs, done = (json.dumps(RECORDED[name]["job"]) for name in ("starts", "failed"))
    fake.answers["GET /api/jobs/a-1"] = [(200, runs), (200, runs), (200, done)]
    said = ["[node 0] 1\n[node 0] 2", "[node 0] 1\n[node 0] 22\n", "[node 0] 1\n[node 0] 22\n[node 0] 3\n"]
    fake.answers["GET /api/jobs/a-1/logs"] = [(200, json.dumps({"logs": text})) for text in said]
    assert list(backend_of(address, clock=clock).output("a-1", node=0, follow=True)) == ["1", "22", "3"]


def test_nodes_are_listed(dashboard: Dashboard) -> None:
    dashboard[0].groups = RECORDED["nodes"]["groups"]
    first, second = backend_of(dashboard[1]).nodes()
    assert first.name < second.name and (first.state, first.cores_taken) == ("taken", 2.0)


def test_the_token_is_sent_and_follows_nobody_elsewhere(dashboard: Dashboard) -> None:
    fake, address = dashboard
    fake.answers["GET /api/jobs/"] = (302, "http://127.0.0.1:1/")
    with pytest.raises(RayRefusedError, match="Ray: "):
        backend_of(address, env={"RAY_AUTH_TOKEN": " s3cret\n"}).poll(["a"])
    assert fake.headers[0]["Authorization"] == "Bearer s3cret" and len(fake.asked) == 1


def test_another_variable_may_hold_the_token(dashboard: Dashboard) -> None:
    fake, address = dashboard
    backend_of(address, env={"A": "1", "RAY_AUTH_TOKEN": "2"}, options={"token_from": "A"}).poll(["a"])
    assert fake.headers[0]["Authorization"] == "Bearer 1"


def test_without_a_token_none_is_sent(dashboard: Dashboard) -> None:
    backend_of(dashboard[1]).poll(["a"])
    assert "Authorization" not in dashboard[0].headers[0]


@pytest.mark.parametrize("code", [401, 403])
def test_a_token_that_is_refused_is_named_and_not_shown(dashboard: Dashboard, code: int) -> None:
    dashboard[0].answers["GET /api/jobs/"] = (code, "Unauthorized: Invalid authentication token")
    with pytest.raises(EnvironmentProblem, match="refused the token: Unauthorized") as found:
        backend_of(dashboard[1], env={"RAY_AUTH_TOKEN": "s3cret"}).poll(["a"])
    assert found.value.hint == "set RAY_AUTH_TOKEN to the cluster's token" and "s3cret" not in found.value.render()


@pytest.mark.parametrize("code", [502, 503, 504])
def test_a_proxy_without_ray_behind_it_says_nothing_of_any_job(dashboard: Dashboard, code: int) -> None:
    dashboard[0].answers["GET /api/jobs/"] = (code, "<html>\nBad Gateway\n</html>\n")
    with pytest.raises(UnreachableError, match="Ray does not answer"):
        backend_of(dashboard[1]).poll(["a"])


def test_a_dashboard_that_is_away_says_nothing_of_any_job() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UnreachableError, match=f"Ray does not answer at http://127.0.0.1:{port}: .*refused"):
        backend_of(f"http://127.0.0.1:{port}").poll(["a"])


def test_a_dashboard_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = RayOptions(address=f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(UnreachableError, match="timed out"):
            RayBackend(options, client=RayClient(options, env={}, timeout_s=0.1)).poll(["a"])


@pytest.mark.parametrize("text", ["<html>hello</html>", '{"a": 1}'])
def test_something_else_that_answers_is_no_ray(dashboard: Dashboard, text: str) -> None:
    dashboard[0].answers["GET /api/jobs/"] = (200, text)
    with pytest.raises(EnvironmentProblem, match="is not a Ray dashboard"):
        backend_of(dashboard[1]).poll(["a"])


def test_a_certificate_file_that_is_not_there_is_a_mistake() -> None:
    options = {"ca_file": "/no/such.pem"}
    with pytest.raises(UsageError, match=r"cannot read `cluster\.ray\.ca_file`"):
        backend_of("https://127.0.0.1:1", options=options).poll(["a"])


@pytest.mark.parametrize(
    ("changes", "wish"),
    [
        ({"priority": 70}, "priority"),
        ({"hold": True}, "hold"),
        ({"exclude": ("node7",)}, "exclude"),
        ({"depends_on": ("7",)}, "depends_on"),
        ({"min_nodes": 2}, "min_nodes"),
    ],
)
def test_what_ray_does_not_do_is_refused(changes: dict[str, Any], wish: str) -> None:
    with pytest.raises(UsageError, match=f"ray does not support `{wish}`"):
        backend_of("http://127.0.0.1:1").check(spec(**changes))


def test_a_cluster_needs_an_address() -> None:
    with pytest.raises(UsageError, match=r"`cluster\.ray\.address` is missing"):
        backend_of(None).check(spec())


def test_a_launcher_that_the_nodes_do_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot write `framework: mpi`"):
        backend_of("http://127.0.0.1:1", framework="mpi").check(spec())


def test_nothing_is_held_or_drained() -> None:
    one = backend_of("http://127.0.0.1:1")
    for wish in (
        lambda: one.hold("1"),
        lambda: one.release("1"),
        lambda: one.drain("a", "b"),
        lambda: one.undrain("a"),
    ):
        with pytest.raises(UsageError, match="ray does not support"):
            wish()
