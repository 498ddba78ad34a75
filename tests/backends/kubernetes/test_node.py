"""The first pod of a job, before its supervisor starts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.fakes import FakeClock, resolved_command
from trainworks.backends.kubernetes import node
from trainworks.backends.kubernetes.node import FirstPod
from trainworks.backends.kubernetes.pod import RESOLVED, Pod
from trainworks.config.run_file import RunFile
from trainworks.files import take_lock
from trainworks.jobs.state import Cause, JobState
from trainworks.record.events.job import SubmittedEvent
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus

POD = Pod(index=0, address="", node="a", cores=1, accelerators=0, names=("",), token="")


@pytest.mark.parametrize(("envs", "mode"), [({"WANDB_API_KEY": "x"}, 0o600), ({"LR": "1"}, 0o644)])
def test_a_run_on_a_volume_shows_its_secrets_to_its_user_alone(envs: dict[str, str], mode: int, tmp_path: Path) -> None:
    resolved = resolved_command(run_file=RunFile.model_validate({"name": "a", "run": "true", "envs": envs}))
    (tmp_path / RESOLVED).write_text(resolved.model_dump_json())
    run_dir = RunDir(tmp_path / "runs" / "demo-1")
    run_dir.path.mkdir(parents=True)
    lock = take_lock(run_dir.lock_file)  # so that the pod ends there
    assert lock is not None
    before = signal.getsignal(signal.SIGTERM)
    try:
        FirstPod(POD, run_dir, tmp_path, FakeClock()).run()
    finally:
        signal.signal(signal.SIGTERM, before)
        os.close(lock)
    assert run_dir.resolved_file.stat().st_mode & 0o777 == mode
    assert run_dir.read_resolved() == resolved


@pytest.mark.parametrize(("state", "cause"), [(JobState.SUCCEEDED, None), (JobState.STOPPED, Cause.IDLE)])
def test_a_job_that_has_ended_does_not_run_again_if_kubernetes_creates_its_pods_anew(
    state: JobState, cause: Cause | None, run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pod was lost before it could leave, and Kubernetes restarts all pods of a JobSet together."""
    run_dir.write_resolved(resolved_command())
    run_dir.note(SubmittedEvent(kind="submitted", nodes=1, processes_per_node=1, restarts=0, job=POD.job))
    run_dir.write_status(RunStatus(state=state, cause=cause, exit_code=0))
    events = run_dir.events_file.read_bytes()
    monkeypatch.setattr(node, "write_termination_message", lambda end, **where: None)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert FirstPod(POD, run_dir, tmp_path, FakeClock()).run() == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert run_dir.read_status().state == state
    assert run_dir.events_file.read_bytes() == events
