"""From a resolved run to the job that a scheduler is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import processes, resolved_command
from tests.plan.shapes import workload
from trainworks.config.run_file import RunFile
from trainworks.jobs.request import JobRequest, job_request, max_restarts

COMMAND = {"run": "true"}
WORKLOAD = {"workload": workload()}


def run_file(work: dict[str, Any], **sections: Any) -> RunFile:
    """A run file of a command or a workload."""
    return RunFile.model_validate({"name": "demo"} | work | sections)


@pytest.mark.parametrize(("work", "restarts"), [(WORKLOAD, 3), (COMMAND, 0)])
def test_a_workload_is_restarted_and_a_command_is_not(work: dict[str, Any], restarts: int) -> None:
    assert max_restarts(run_file(work)) == restarts


@pytest.mark.parametrize("work", [WORKLOAD, COMMAND])
@pytest.mark.parametrize("wanted", [0, 7])
def test_the_run_file_s_word_counts(work: dict[str, Any], wanted: int) -> None:
    assert max_restarts(run_file(work, recover={"max_restarts": wanted})) == wanted


def test_a_request_is_what_the_resolved_run_says() -> None:
    wanted = run_file(COMMAND, recover={"max_restarts": 2}, cluster={"rendezvous_port": 29500})
    request = job_request(resolved_command(run_file=wanted, processes=processes(2, 4)))
    assert request == JobRequest(
        run_id="demo-1", kind="command", processes=processes(2, 4), max_restarts=2, rendezvous_port=29500
    )


def test_a_workload_is_a_training_job() -> None:
    assert job_request(resolved_command(run_file=run_file(WORKLOAD))).kind == "training"
