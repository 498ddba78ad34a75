"""Where a drill can run, and what it cannot do there."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import trainworks
from tests.backends.small_backend import Site, SmallBackend
from tests.fakes import FakeClock, resolved_command
from trainworks.api.proving.drilled_job import DrilledJob
from trainworks.backends.slurm.backend import SlurmBackend
from trainworks.backends.slurm.client import SlurmClient
from trainworks.config.engines import Slurm
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.host import process
from trainworks.measure.drill.drill_fault import DrillFault
from trainworks.measure.drill.drilled_run import OnThisMachine
from trainworks.measure.drill.victims import Victim, agents_of, main
from trainworks.record.events.log import append_event
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir

WORKLOAD: dict[str, Any] = {
    "name": "d",
    "workload": {
        "task": "causal-lm",
        "model": {"architecture": "llama", "layers": 1, "hidden": 8, "heads": 1},
        "data": {"source": "python-stdlib", "sequence_length": 8, "vocabulary": 300},
        "global_batch": 1,
        "train_for": "1 steps",
    },
}


@pytest.mark.parametrize(
    ("run_file", "soak", "problem"),
    [
        ({"name": "d", "run": "true"}, None, "needs a `workload`"),
        (WORKLOAD | {"cluster": {"engine": "kubernetes"}}, None, "kubernetes shares no files"),
        (WORKLOAD | {"cluster": {"engine": "slurm"}}, "1m", "a soak measures the processes of this machine"),
    ],
)
def test_a_drill_is_refused_where_it_cannot_see_the_run(
    run_file: dict[str, Any], soak: str | None, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=problem):
        trainworks.drill(run_file, soak=soak, folder=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_every_fault_can_be_injected_somewhere_or_says_why_not() -> None:
    job = DrilledJob(SmallBackend(Site()), FakeClock())
    on_cluster = {fault for fault in DrillFault if job.why_not(fault) is None}
    here = OnThisMachine(FakeClock())
    assert here.why_not(DrillFault.LOSE_NODE) is not None
    if os.geteuid() == 0:
        assert {fault for fault in DrillFault if here.why_not(fault) is None} | on_cluster == set(DrillFault)
    assert on_cluster == set(DrillFault) - {DrillFault.CUT_NETWORK, DrillFault.FULL_DISK, DrillFault.FAIL_STORE}


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = create_run_dir(tmp_path, "d")
    made.write_resolved(resolved_command(made.run_id))
    append_event(made.events_file, {"kind": "submitted", "hosts": ["n1", "n2"]})
    return made


def test_what_a_backend_cannot_do_or_what_it_does_not_run_is_an_error_with_its_name(run_dir: RunDir) -> None:
    job = DrilledJob(SmallBackend(Site()), FakeClock())
    with pytest.raises(EnvironmentProblem, match="small has no job of run d-1"):
        job.hit(run_dir, Victim.RANK, 0, signal.SIGKILL)
    with pytest.raises(UsageError, match="small cannot declare a node down"):
        job.lose_node(run_dir, 1)


def test_slurm_requeues_a_preempted_job_and_sets_a_lost_node_down(run_dir: RunDir) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> process.Output:
        asked.append(command)
        return process.Output(0, "", "")

    backend = SlurmBackend(Slurm(), client=SlurmClient(run=run, env={}))
    backend.preempt("42")
    DrilledJob(backend, FakeClock()).lose_node(run_dir, 1)()
    assert [words[words.index("scontrol") + 1 :] for words in asked] == [
        ["requeue", "42"],
        ["update", "NodeName=n2", "State=DOWN", "Reason=drill of d-1"],
        ["update", "NodeName=n2", "State=RESUME"],
    ]


def test_a_victim_is_found_beside_the_ranks_and_hit_once(run_dir: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    marked = os.environ | {"TRAINWORKS_RUN_DIR": str(run_dir.path)}
    rank = process.spawn(["sleep", "60"], log=run_dir.path / "log", env=marked)
    append_event(run_dir.events_file, {"kind": "attempt", "attempt": 1, "pids": [rank.pid]})
    assert main(str(run_dir.path), "rank", "0", str(int(signal.SIGKILL)), "0") == 0
    assert float(capfd.readouterr().out) > 0 and rank.wait(30) == -signal.SIGKILL
    assert main(str(run_dir.path), "agent", "0", "9", "0") == 3
    assert "run d-1 has no agent 0 here" in capfd.readouterr().err
    assert agents_of(run_dir) == {}
