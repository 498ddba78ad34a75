"""Random kills of the queue of three users: nothing is lost, nothing runs twice, restarts and times are right."""

from __future__ import annotations

import pytest

from benchmarks.queue_kills import run_trial
from tests.backends.ssh_hosts import NEEDS_SSHD
from tests.lanes import amount

KILLS = amount(test=8, test_all=8, nightly=200)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.timeout(amount(test=900, test_all=900, nightly=3600))
@pytest.mark.lane("test-all")
@pytest.mark.parametrize(
    "backend",
    [
        "local",
        pytest.param("ssh", marks=[NEEDS_SSHD, pytest.mark.lane("nightly")]),
        pytest.param("kubernetes", marks=[pytest.mark.kubernetes, pytest.mark.lane("nightly")]),
    ],
)
def test_no_job_of_three_users_is_lost_or_runs_twice_whatever_is_killed(backend: str) -> None:
    trial = run_trial(jobs=10, kills=KILLS, seed=1, seconds=None, array=3, backend=backend)
    assert trial.problems == []
    assert trial.accepted and trial.kills.total() >= KILLS
