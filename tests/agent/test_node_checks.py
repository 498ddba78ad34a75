"""`job.health` on this machine: a node that fails its check gets no rank, and the run says why."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

import trainworks
from tests.fakes import FakeClock, FakeNodes, resolved_command
from trainworks.agent.node_agents import ThisMachine
from trainworks.agent.recovery import Recovery
from trainworks.api.proving.node_check import main
from trainworks.api.run_handle import Run
from trainworks.api.run_request import job_in_format, read_request
from trainworks.config.run_file import RunFile
from trainworks.errors import UsageError
from trainworks.jobs.state import JobState
from trainworks.record.events.log import read_events
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir


def started(tmp_path: Path, **job: object) -> Run:
    cluster = job.pop("cluster", {})
    target = {"name": "t", "run": "touch ran", "workdir": str(tmp_path), "job": job, "cluster": cluster}
    return trainworks.run(target, folder=tmp_path / "runs", wait=False)


def test_a_machine_that_passes_runs_the_job(tmp_path: Path) -> None:
    run = started(tmp_path, health="true")
    assert (run.wait(), (tmp_path / "ran").exists()) == (JobState.SUCCEEDED, True)


def test_a_machine_that_fails_gets_no_rank(tmp_path: Path) -> None:
    run = started(tmp_path, health="echo looking; echo the disk is worn; exit 4")
    assert (run.wait(), (tmp_path / "ran").exists()) == (JobState.FAILED, False)
    assert (run.status.cause, run.status.hint) == ("node_unhealthy", "repair the node, or correct `job.health`")
    message = run.status.message or ""
    assert message.startswith("1 node failed the health check: ")
    assert message.endswith(": the disk is worn (exit code 4)")
    assert "looking" in run.run_dir.node_log(0).read_text()


def test_the_described_cluster_says_what_the_node_should_have(tmp_path: Path) -> None:
    cluster = {"engine": "slurm", "of": "2 nodes of 8x H100-SXM-80GB"}
    run_file = RunFile.model_validate({"name": "t", "run": "true", "cluster": cluster, "job": {"health": True}})
    run_dir = create_run_dir(tmp_path, "t")
    run_dir.write_resolved(resolved_command(run_file=run_file))
    assert main(str(run_dir.path), "0") == 1
    assert "0 GPUs answer, 8 expected" in read_events(run_dir.events_file)[-1]["message"]


def test_the_checks_of_health_pass_or_name_what_failed(tmp_path: Path) -> None:
    run = started(tmp_path, health=True)
    failed = [result.complaint for result in trainworks.health().failed]
    assert run.wait() is (JobState.FAILED if failed else JobState.SUCCEEDED)
    assert all(complaint.partition(":")[0] in (run.status.message or "") for complaint in failed)


def test_a_stop_does_not_wait_for_the_check(tmp_path: Path) -> None:
    run = started(tmp_path, health="sleep 100")
    run.stop()
    assert run.wait() is JobState.STOPPED


def test_a_stop_leaves_no_check_behind(run_dir: RunDir, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = resolved_command(node_check=("true",))
    hosts = ThisMachine(1)
    monkeypatch.setattr(ThisMachine, "command", lambda *_: ["sleep", "600"])
    nodes = FakeNodes(run_dir, resolved, clock, [])
    recovery = Recovery(run_dir, resolved, nodes, hosts, clock, is_stopping=lambda: True)
    assert recovery.may_begin()
    assert [one for one in psutil.Process().children() if one.name() == "sleep"] == []


@pytest.mark.parametrize("language", ["jobset", "lsf", "skypilot"])
def test_a_job_for_use_without_trainworks_cannot_check_its_nodes(language: str) -> None:
    with pytest.raises(UsageError, match="cannot check its nodes"):
        job_in_format(read_request({"name": "t", "run": "true", "job": {"health": True}}), language)


FAILS_ONCE = "test -e ran || { touch ran; exit 9; }"


def test_a_machine_is_checked_again_before_its_ranks_start_again(tmp_path: Path) -> None:
    target = {"name": "t", "run": FAILS_ONCE, "workdir": str(tmp_path), "recover": {"max_restarts": 1}}
    run = trainworks.run(target | {"job": {"health": "echo looked"}}, folder=tmp_path / "runs", wait=False)
    assert run.wait() is JobState.SUCCEEDED
    checks = [event for event in read_events(run.run_dir.events_file) if event["kind"] == "node_check"]
    assert [check["message"] for check in checks] == ["", ""]


def test_ranks_do_not_start_again_on_a_machine_that_has_become_unfit(tmp_path: Path) -> None:
    check = f"test ! -e {tmp_path}/ran || {{ echo the fan is broken; exit 4; }}"
    target = {"name": "t", "run": FAILS_ONCE, "workdir": str(tmp_path), "recover": {"max_restarts": 1}}
    run = trainworks.run(target | {"job": {"health": check}}, folder=tmp_path / "runs", wait=False)
    assert run.wait() is JobState.FAILED
    assert run.status.cause == "node_unhealthy"
    assert (run.status.message or "").endswith(": the fan is broken (exit code 4)")
    kinds = [event["kind"] for event in read_events(run.run_dir.events_file)]
    assert "restart" not in kinds
    assert kinds.count("nodes_unhealthy") == 1
