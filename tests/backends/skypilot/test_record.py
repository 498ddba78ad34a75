"""The record of a run in a store, as its rented nodes send it and as it comes home; moto's server is the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.skypilot.test_backend import FakeSky
from tests.backends.skypilot.test_rented import WORKLOAD
from tests.fakes import FakeClock, resolved_command, spec
from tests.worker.object_store import s3_server
from trainworks.backends.skypilot.backend import SkyPilotBackend
from trainworks.backends.skypilot.client import SkyPilotClient, SkyPilotRefusedError
from trainworks.backends.skypilot.node import bring
from trainworks.backends.skypilot.rented import TOKEN, RentedNode
from trainworks.config.run_file import RunFile
from trainworks.config.spec import CheckpointCopy
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.host.copies import record_copy
from trainworks.host.copies.record_copy import RecordCopy
from trainworks.host.process import Output
from trainworks.jobs.job_spec import NodeResources
from trainworks.jobs.state import JobState
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir
from trainworks.record.status import RunStatus


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """Moto's server, to which the environment points."""
    with s3_server():
        yield


@pytest.fixture
def store(tmp_path: Path) -> CheckpointCopy:
    """A prefix of this test."""
    return CheckpointCopy(to=f"s3://bucket/{tmp_path.name}")


def workload(run_dir: RunDir, store: CheckpointCopy, *, created_at: float = 1.0) -> RunDir:
    """A run directory of a workload for rented nodes."""
    options = {"image": "docker:trainworks:1", "store": store.model_dump()}
    file = RunFile.model_validate(
        {"name": "demo", "workload": WORKLOAD, "cluster": {"engine": "skypilot", "skypilot": options}}
    )
    run_dir.write_resolved(resolved_command(run_file=file, created_at=created_at))
    return run_dir


def backend(run_dir: RunDir, fake: FakeSky) -> SkyPilotBackend:
    file = run_dir.read_resolved().run_file
    client = SkyPilotClient(run=fake, lines=fake.lines, env={})
    program = SkyPilotBackend.workload_program(file)
    return SkyPilotBackend(file.cluster.skypilot, program=program, client=client, clock=FakeClock())


def submit(run_dir: RunDir, fake: FakeSky) -> str:
    one = backend(run_dir, fake)
    job = spec(node=NodeResources(accelerators=8, accelerator="H100"), min_nodes=1, max_nodes=1)
    return one.submit(one.render(job, run_dir), run_dir)


def other(tmp_path: Path) -> RunDir:
    """An empty run directory of the same run, as on a new node."""
    folder = tmp_path / "there" / "demo-1"
    folder.mkdir(parents=True)
    return RunDir(folder)


def rows(count: int) -> str:
    return "".join(f'{{"step": {step}}}\n' for step in range(count))


def test_a_record_arrives_whole_and_only_what_is_new_is_sent_again(
    run_dir: RunDir, store: CheckpointCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_copy, "_BLOCK_BYTES", 64)
    workload(run_dir, store)
    run_dir.rank_log(0).write_text("hello\n" * 40)
    run_dir.metrics_file.write_text(rows(20) + '{"step": 2')  # a rank is writing this line
    run_dir.write_status(RunStatus(state="RUNNING"))
    record, there = RecordCopy.of(store, "demo-1"), other(tmp_path)
    record.send(run_dir)
    assert record.fetch(there)
    assert there.metrics_file.read_text() == rows(20)
    assert there.rank_log(0).read_text() == "hello\n" * 40
    assert there.read_status().state == "RUNNING" and there.read_resolved() == run_dir.read_resolved()
    sent: list[str] = []
    put = record._s3.put_object
    monkeypatch.setattr(record._s3, "put_object", lambda **given: (sent.append(given["Key"]), put(**given)))
    run_dir.metrics_file.write_text(rows(21))
    record.send(run_dir)
    record.fetch(there)
    assert there.metrics_file.read_text() == rows(21)
    names = [key.rpartition("/record/")[2] for key in sent]
    assert (
        names[0].startswith("metrics.jsonl/")
        and names[0] != "metrics.jsonl/000000"
        and names[-1] == ("status.json/000000")
    )
    assert not [name for name in names if name.startswith(("logs", "resolved"))]


def test_a_record_that_went_on_from_an_earlier_state_replaces_what_is_here(
    run_dir: RunDir, store: CheckpointCopy, tmp_path: Path
) -> None:
    workload(run_dir, store)
    run_dir.metrics_file.write_text(rows(9))
    there = workload(other(tmp_path), store)
    there.metrics_file.write_text(rows(4) + '{"step": "lost with its node"}\n')
    record = RecordCopy.of(store, "demo-1")
    record.send(run_dir)
    record.fetch(there)
    assert there.metrics_file.read_text() == rows(9)


def test_a_name_in_the_store_leads_nowhere_else(run_dir: RunDir, store: CheckpointCopy, tmp_path: Path) -> None:
    workload(run_dir, store)
    record = RecordCopy.of(store, "demo-1")
    record.send(run_dir)
    for name in ("../../evil.json", "logs/../../evil.json", ".bashrc"):
        record._put(name, 0, b"x")
    there = other(tmp_path)
    record.fetch(there)
    assert sorted(file.name for file in tmp_path.rglob("*") if file.is_file() and "there" in file.parts) == [
        "resolved.json"
    ]


def test_the_run_is_in_its_store_before_its_nodes_are_rented(run_dir: RunDir, store: CheckpointCopy) -> None:
    fake = FakeSky()
    assert submit(workload(run_dir, store), fake) == "17"
    [launch] = fake.asked("launch")
    assert launch[3:5] == ["--secret", TOKEN] and len(fake.env[TOKEN]) == 64
    assert fake.env[TOKEN] not in json.dumps(fake.tasks) + json.dumps(fake.calls)
    assert RecordCopy.of(store, "demo-1").check(run_dir)


def test_a_refused_job_leaves_nothing_in_the_store(run_dir: RunDir, store: CheckpointCopy, tmp_path: Path) -> None:
    with pytest.raises(SkyPilotRefusedError):
        submit(workload(run_dir, store), FakeSky(launch=Output(1, "", "ValueError: no such cloud\n")))
    assert not RecordCopy.of(store, "demo-1").fetch(other(tmp_path))


def test_another_run_of_the_name_is_not_taken_for_this_one(
    run_dir: RunDir, store: CheckpointCopy, tmp_path: Path
) -> None:
    submit(workload(run_dir, store), FakeSky())
    again, fake = workload(create_run_dir(tmp_path / "elsewhere", "demo"), store, created_at=2.0), FakeSky()
    with pytest.raises(UsageError, match=r"demo-1` holds another run of this name") as refused:
        submit(again, fake)
    assert refused.value.hint is not None and "another `name`" in refused.value.hint
    assert fake.asked("launch") == []


def test_checkpoints_without_a_record_are_of_another_run(run_dir: RunDir, store: CheckpointCopy) -> None:
    record = RecordCopy.of(store, "demo-1")
    record._s3.put_object(
        Bucket="bucket", Key=f"{store.to[12:]}/demo-1/step-00000010/manifest.json", Body=b"{}".strip()
    )
    with pytest.raises(UsageError, match="holds another run"):
        record.check(workload(run_dir, store))


def test_the_end_of_a_run_comes_home_once_skypilot_says_that_it_has_ended(
    run_dir: RunDir, store: CheckpointCopy, tmp_path: Path
) -> None:
    fake = FakeSky()
    submit(workload(run_dir, store), fake)
    there, record = workload(other(tmp_path), store), RecordCopy.of(store, "demo-1")
    there.write_status(RunStatus(state="FAILED", cause="environment", message="no space left", exit_code=3))
    record.send(there)
    one = backend(run_dir, fake)
    run_dir.write_status(RunStatus(state=JobState.RUNNING))
    one.fetch([run_dir])
    assert run_dir.read_status().state == "RUNNING"
    run_dir.write_status(RunStatus(state=JobState.FAILED, cause="user_error"))
    one.fetch([run_dir])
    assert (run_dir.read_status().cause, run_dir.read_status().message) == ("environment", "no space left")


def test_the_store_of_a_workload_knows_why_it_failed_and_one_that_is_silent_loses_nothing(
    run_dir: RunDir, store: CheckpointCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = backend(workload(run_dir, store), FakeSky())
    assert one.last_status(run_dir).state == "UNKNOWN"
    there = workload(other(tmp_path), store)
    there.write_status(RunStatus(state="FAILED", cause="environment", message="no space left", exit_code=3))
    RecordCopy.of(store, "demo-1").send(there)
    assert one.last_status(run_dir).cause == "environment"

    def silent(self: RecordCopy) -> RunStatus:
        raise EnvironmentProblem("no answer")

    monkeypatch.setattr(RecordCopy, "status", silent)
    assert one.last_status(run_dir).state == "UNKNOWN"


def node_of(run_dir: RunDir, store: CheckpointCopy, **changes: Any) -> RentedNode:
    facts = {"index": 0, "addresses": ("127.0.0.1",), "accelerators": 0, "token": "t"} | changes
    return RentedNode(run_dir=run_dir, store=store, **facts)


def test_a_new_node_gets_the_run_and_one_without_a_record_says_so(
    run_dir: RunDir, store: CheckpointCopy, tmp_path: Path
) -> None:
    there, record = RunDir(tmp_path / "new" / "demo-1"), RecordCopy.of(store, "demo-1")
    with pytest.raises(EnvironmentProblem, match="has no record of the run"):
        bring(node_of(there, store), record)
    submit(workload(run_dir, store), FakeSky())
    bring(node_of(there, store), record)
    assert there.read_resolved() == run_dir.read_resolved()
    assert there.resolved_file.stat().st_mode & 0o777 == 0o600
