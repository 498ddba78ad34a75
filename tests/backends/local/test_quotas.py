"""Quotas of the users of this machine: who may set them, whose they are, and what a job that waits for one says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.backends.local.test_dispatcher import Queue
from tests.fakes import FakeClock
from tests.queueing.queues import shape
from trainworks.backends.local import quotas
from trainworks.backends.local.quotas import AcceleratorHours, QueuePolicy, machine_ledger, queue_policy
from trainworks.errors import EnvironmentProblem, RunFileError, UsageError
from trainworks.host.ledger import Claim, Share, claim_key
from trainworks.jobs.job_row import month_of
from trainworks.jobs.job_spec import NodeResources
from trainworks.jobs.state import JobState

ANN, BOB = os.getuid(), 2**31 + 5
POLICY = f"teams:\n  vision: {{members: [{ANN}, {BOB}], max_accelerators: 3}}\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the quotas of this test are."""
    monkeypatch.setattr(quotas, "POLICY_FILE", tmp_path / "none.yaml")
    monkeypatch.setenv("TRAINWORKS_QUEUE_POLICY", str(tmp_path / "queue.yaml"))
    return tmp_path / "queue.yaml"


def of_bob(*devices: int, team: str = "") -> Claim:
    """What a job of Bob holds."""
    return Claim(BOB, Share(run="lm-7", key=claim_key("/bob/lm-7"), cores=0.0, devices=devices, team=team))


def test_a_job_waits_for_its_team_until_another_member_has_ended(tmp_path: Path, clock: FakeClock, file: Path) -> None:
    file.write_text(POLICY)
    queue = Queue(tmp_path, clock, cores=8.0, devices=8)
    queue.machine.others = {of_bob(0, 1)}
    wide = queue.submit("wide", node=NodeResources(cores=1.0, accelerators=2))
    queue.look()
    row = queue.job(wide)
    assert (row.state, row.reason) == (JobState.QUEUED, "Quota")
    needs = "needs 2 accelerators and 1 core"
    assert row.detail == f"{needs}; team vision holds 2 of its 3 accelerators, by uid {BOB} (lm-7)"
    queue.machine.others.clear()
    queue.look()
    assert queue.state(wide) is JobState.STARTING


def test_naming_another_team_in_a_claim_changes_nothing(tmp_path: Path, clock: FakeClock, file: Path) -> None:
    file.write_text(POLICY + "  speech: {max_accelerators: 8}\n")
    queue = Queue(tmp_path, clock, cores=8.0, devices=8)
    queue.machine.others = {of_bob(0, 1, 2, team="speech")}
    job = queue.submit(node=NodeResources(cores=1.0, accelerators=1))
    queue.look()
    assert queue.job(job).reason == "Quota"


def test_a_user_has_a_limit_of_their_own(tmp_path: Path, clock: FakeClock, file: Path) -> None:
    file.write_text("per_user: {max_cores: 2}\n")
    queue = Queue(tmp_path, clock, cores=8.0)
    jobs = [queue.submit(f"job{number}") for number in range(3)]
    queue.look()
    assert [queue.state(job) for job in jobs] == [JobState.STARTING, JobState.STARTING, JobState.QUEUED]
    assert "holds 2 of its 2 cores" in (queue.job(jobs[2]).detail or "")


def test_no_job_starts_while_the_quotas_cannot_be_read(tmp_path: Path, clock: FakeClock, file: Path) -> None:
    file.write_text("teams: {vision: {member: [ann]}}\n")
    queue = Queue(tmp_path, clock)
    job = queue.submit()
    queue.look()
    assert "queue.yaml:1" in (queue.job(job).detail or ""), queue.job(job)
    file.unlink()
    queue.look()
    assert queue.state(job) is JobState.STARTING


def test_quotas_that_users_can_change_are_refused(file: Path) -> None:
    file.write_text(POLICY)
    file.chmod(0o666)
    with pytest.raises(EnvironmentProblem, match="users other than root can change"):
        queue_policy()


def test_the_file_of_the_machine_goes_before_that_of_a_user(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(POLICY)
    monkeypatch.setattr(quotas, "POLICY_FILE", machine := file.with_name("machine.yaml"))
    monkeypatch.setattr(quotas.os, "geteuid", lambda: BOB)
    machine.write_text("per_user: {max_cores: 1}\n")
    if os.getuid() == 0:
        policy = queue_policy()
        assert policy is not None and not policy.teams
    else:
        with pytest.raises(EnvironmentProblem, match="users other than root"):
            queue_policy()


def test_no_variable_moves_the_ledger_of_a_machine_with_quotas(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, common = file.with_name("own"), file.with_name("common")
    monkeypatch.setenv("TRAINWORKS_LEDGER", str(own))
    assert machine_ledger().folder == own
    file.write_text(f"ledger: {common}\n")
    with pytest.raises(EnvironmentProblem, match="is missing"):
        machine_ledger()
    common.mkdir()
    assert machine_ledger().folder == common
    monkeypatch.setattr(quotas, "POLICY_FILE", file)
    for text in ("per_user: {max_cores: 1}\n", "per_user: [a mistake]\n"):
        file.write_text(text)
        assert machine_ledger().folder not in (own, common)


@pytest.mark.parametrize(
    ("text", "place"), [("- vision\n", ":1"), ("teams: [", ":1"), ("per_user: {max_cores: x}", ":1")]
)
def test_a_mistake_in_the_quotas_is_named_with_its_line(file: Path, text: str, place: str) -> None:
    file.write_text(text)
    with pytest.raises(RunFileError) as raised:
        queue_policy()
    assert "queue.yaml:1" in str(raised.value.render())


def test_a_team_without_the_user_is_refused() -> None:
    policy = QueuePolicy.model_validate({"teams": {"speech": {}, "vision": {"members": [ANN]}}})
    with pytest.raises(UsageError, match="not a member of the team `speech`"):
        policy.check_team("speech")
    policy.check_team("vision")
    policy.check_team("only-billed")


def test_a_job_is_refused_beside_others_and_alone() -> None:
    policy = QueuePolicy.model_validate({"teams": {"vision": {"members": [ANN, BOB], "max_accelerators": 3}}})
    assert policy.refusal(shape(2), "", [of_bob(0)]) is None
    assert "team vision holds 2 of its 3 accelerators" in (policy.refusal(shape(2), "", [of_bob(0, 1)]) or "")
    assert policy.refusal(shape(4), "") == "needs 4 accelerators, and team vision may hold 3 accelerators at once"


def test_a_run_outside_the_queue_is_refused_once_the_hours_of_its_user_are_used_up() -> None:
    policy = QueuePolicy.model_validate({"per_user": {"accelerator_hours_per_month": 10}})
    hours = AcceleratorHours(month_of(0.0), {(ANN, "vision"): 6.0, (ANN, ""): 4.5, (BOB, ""): 1.0})
    said = policy.refusal(shape(1), "", (), hours)
    assert said is not None and "has used 10.5 of its 10 accelerator hours in 1970-01; the next month begins" in said
    assert policy.refusal(shape(1), "") is None
    assert policy.refusal(shape(0), "", (), hours) is None
