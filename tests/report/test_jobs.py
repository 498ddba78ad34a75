"""The list of jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.users import FIRST_UID
from trainworks.host.users import this_host
from trainworks.jobs.job_row import Attempt, JobRow, Placement
from trainworks.jobs.job_spec import JobSpec, NodeResources, RoleSpec
from trainworks.jobs.state import JobState
from trainworks.record.exit_code import End
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.report.jobs import detail_document, list_document
from trainworks.report.rendering.text import render_text
from trainworks.system import user_id
from trainworks.units import Money


@contextmanager
def without_rights_of_root() -> Iterator[None]:
    own = os.geteuid()
    if own == 0:
        os.seteuid(FIRST_UID)
    try:
        yield
    finally:
        os.seteuid(own)


SPEC = JobSpec(run_id="demo-1", name="demo", min_nodes=1, max_nodes=1, node=NodeResources())
JOB = JobRow(
    id=1,
    run_id="demo-1",
    run_dir="/runs/demo-1",
    name="demo",
    owner="ada",
    engine="slurm",
    spec=SPEC,
    end=End(JobState.RUNNING),
    submitted_at=900.0,
    changed_at=900.0,
    version=1,
)


def test_owner_and_submission_are_listed_where_jobs_of_several_users_are() -> None:
    own, other = replace(JOB, uid=user_id(), host=this_host()), replace(JOB, id=2, uid=user_id() + 1, owner="grace")
    alone = render_text(list_document([own], now=1000.0), width=200)
    assert "owner" not in alone and "submitted" not in alone
    listed = render_text(list_document([own, other], now=1000.0), width=200)
    assert all(word in listed for word in ("owner", "submitted", "ada", "grace", "1m 40s ago"))


def test_a_job_is_listed_though_its_run_directory_is_closed_to_the_reader(run_dir: RunDir, tmp_path: Path) -> None:
    run_dir.write_status(RunStatus(state=JobState.RUNNING, idle_since=940.0))
    job = replace(JOB, run_dir=str(run_dir.path))
    assert "RUNNING, idle for 1m 0s" in str(list_document([job], now=1000.0))
    tmp_path.chmod(0)
    try:
        with without_rights_of_root():
            listed = str(list_document([job], now=1000.0))
    finally:
        tmp_path.chmod(0o700)
    assert "RUNNING" in listed and "idle" not in listed


@pytest.mark.parametrize(
    ("accelerators", "places", "held"),
    [
        (4, 3, "4 accelerator hours, 8.00 USD at 2 an hour"),
        (4, 1, "4 accelerator hours, 8.00 USD at 2 an hour"),  # this machine, which all roles share
        (0, 3, "10 core hours"),
        (0, 1, "10 core hours"),
    ],
)
def test_a_job_with_roles_has_held_what_each_of_them_requests(accelerators: int, places: int, held: str) -> None:
    trainer, server = NodeResources(cores=8.0, accelerators=accelerators), NodeResources(cores=1.0)
    roles = (RoleSpec(name="trainer", nodes=1, node=trainer), RoleSpec(name="server", nodes=2, node=server))
    job = replace(JOB, spec=replace(SPEC, min_nodes=3, max_nodes=3, node=trainer, roles=roles))
    cores = [8.0, 1.0, 1.0] if places == 3 else [10.0]
    on = tuple(Placement(f"node{number}", count, ()) for number, count in enumerate(cores))
    attempt = Attempt(job_id=1, number=1, started_at=1000.0, end=End(JobState.SUCCEEDED, at=4600.0), placement=on)
    document = detail_document(job, [attempt], price=Money(2.0, "USD"), code=None, failure=(), now=9000.0)
    assert f"'{held}'" in repr(document.sections[0].blocks[0])
