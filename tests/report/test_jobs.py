"""The list of jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.users import FIRST_UID
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.state import JobState
from trainworks.record.exit_code import End
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.report.jobs import list_document


@contextmanager
def without_rights_of_root() -> Iterator[None]:
    own = os.geteuid()
    if own == 0:
        os.seteuid(FIRST_UID)
    try:
        yield
    finally:
        os.seteuid(own)


def test_a_job_is_listed_though_its_run_directory_is_closed_to_the_reader(run_dir: RunDir, tmp_path: Path) -> None:
    run_dir.write_status(RunStatus(state=JobState.RUNNING, idle_since=940.0))
    job = JobRow(
        id=1,
        run_id="demo-1",
        run_dir=str(run_dir.path),
        name="demo",
        owner="ada",
        engine="slurm",
        spec=JobSpec(run_id="demo-1", name="demo", min_nodes=1, max_nodes=1, node=NodeResources()),
        end=End(JobState.RUNNING),
        submitted_at=900.0,
        changed_at=900.0,
        version=1,
    )
    assert "RUNNING, idle for 1m 0s" in str(list_document([job], now=1000.0))
    tmp_path.chmod(0)
    try:
        with without_rights_of_root():
            listed = str(list_document([job], now=1000.0))
    finally:
        tmp_path.chmod(0o700)
    assert "RUNNING" in listed and "idle" not in listed
