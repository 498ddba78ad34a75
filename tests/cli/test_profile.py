"""What `trainworks profile` refuses, and what it asks for."""

from __future__ import annotations

import pytest

from tests.report.conftest import RunWriter, make_plan
from trainworks.api.observing.why import profile_request
from trainworks.errors import UsageError
from trainworks.host import process
from trainworks.record.profile import ProfileRequest, write_request


@pytest.fixture
def going(tmp_path):
    """A run of 300 steps, 2 ranks and 40 recorded steps, whose supervisor is this process."""
    run = RunWriter(tmp_path, make_plan(), None).launch().steps(40)
    pid, started_at = process.identity()
    run.status("RUNNING", supervisor_pid=pid, supervisor_started_at=started_at)
    return run.run_dir


def test_steps_and_ranks_become_a_request(going):
    assert profile_request(going, "70:75", "1,0") == ProfileRequest(first_step=70, last_step=75, ranks=(0, 1))


@pytest.mark.parametrize(
    ("steps", "ranks", "message"),
    [
        ("20:25", "0", "step 20 is past, or too near: step 40 is done, and the ranks look for requests every 10 steps"),
        ("50:51", "0", "step 50 is past, or too near"),
        ("290:301", "0", "step 301 is beyond the last step, 300"),
        ("70:75", "2", "rank 2 does not exist: the run has ranks 0 to 1"),
        ("70:75", "all", "`all` names no ranks"),
        ("70:200", "0", "`70:200` names 131 steps, more than 50"),
        ("9:7", "0", "`9:7` is not a range of steps"),
        ("", "0", "no steps are named"),
    ],
)
def test_what_cannot_be_recorded_is_refused(going, steps, ranks, message):
    with pytest.raises(UsageError) as refused:
        profile_request(going, steps, ranks)
    assert refused.value.message.startswith(message)


def test_a_second_request_waits_for_the_first(going):
    write_request(going, ProfileRequest(first_step=70, last_step=75))
    with pytest.raises(UsageError, match="has other steps to profile"):
        profile_request(going, "80:85", "0")


def test_a_run_that_has_ended_is_not_profiled(tmp_path):
    run = RunWriter(tmp_path, make_plan(), None).launch().steps(300).finish()
    with pytest.raises(UsageError, match="is SUCCEEDED"):
        profile_request(run.run_dir, "1:2", "0")


def test_a_command_is_not_profiled(tmp_path):
    run = RunWriter(tmp_path, None, "sleep 1").launch()
    with pytest.raises(UsageError, match="only a workload"):
        profile_request(run.run_dir, "1:2", "0")
