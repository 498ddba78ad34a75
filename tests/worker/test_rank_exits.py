"""The agent writes how ranks ended that could not, and says whether they start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainworks.record.events.log import append_event, read_events
from trainworks.record.run_dir import RunDir
from trainworks.recover.decisions import NO_RESTART_LEFT, Action, Verdict
from trainworks.recover.restarts import RANK_RESTART, RestartLimit
from trainworks.worker.health.hang import Watched
from trainworks.worker.health.heartbeat import Beat, Phase
from trainworks.worker.health.rank_exits import RankExit, RankExits, fork_server_is_lost

RENDEZVOUS = "127.0.0.1:1"


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run_dir = RunDir(tmp_path)
    append_event(run_dir.events_file, {"kind": "submitted"})
    return run_dir


@pytest.fixture
def exits(run_dir: RunDir) -> RankExits:
    """Of two ranks in step 9 of their first attempt."""
    exits = RankExits(
        run_dir, 0, lambda rank: Watched(rank, rank, 100 + rank, Beat(40, Phase.COMPUTE, 9)), RestartLimit(1)
    )
    exits.begin(RENDEZVOUS)
    append_event(run_dir.events_file, {"kind": "attempt", "attempt": 1, "resumed_from_step": 0})
    return exits


def say(run_dir: RunDir, rank: int, cause: str) -> None:
    """A rank's own account."""
    about = {"rank": rank, "pid": 100 + rank, "node": 0, "step": 9, "fingerprint": "a"}
    append_event(run_dir.events_file, {"kind": "failure", "cause": cause, **about})


def written(run_dir: RunDir, kind: str) -> list[dict]:
    return [event for event in read_events(run_dir.events_file) if event["kind"] == kind]


def test_an_exit_without_an_account_is_named_by_its_code_and_place(run_dir, exits):
    assert exits.judge([RankExit(1, 101, 13)]) is Verdict.RESTART
    (failure,) = written(run_dir, "failure")
    assert (failure["cause"], failure["message"]) == ("unknown", "exited with code 13 without an error message")
    assert (failure["rank"], failure["step"], failure["phase"]) == (1, 9, "forward and backward")
    assert (exits.first_bad_code, failure["rendezvous"]) == (13, RENDEZVOUS)


def test_a_rank_that_a_signal_ended_is_named_by_it(run_dir, exits):
    assert exits.judge([RankExit(0, 100, -signal.SIGSEGV)]) is Verdict.RESTART
    (failure,) = written(run_dir, "failure")
    assert (failure["cause"], failure["signal"], failure["message"]) == ("killed", "SIGSEGV", "killed by SIGSEGV")


def test_a_rank_that_gave_an_account_is_not_noted_again(run_dir, exits):
    say(run_dir, 0, "gpu_fault")
    assert exits.judge([RankExit(0, 100, 74)]) is Verdict.RESTART
    assert len(written(run_dir, "failure")) == 1


def test_the_exit_code_is_that_of_the_rank_that_did_not_lose_its_peer(run_dir, exits):
    say(run_dir, 0, "peer_lost")
    say(run_dir, 1, "gpu_fault")
    assert exits.judge([RankExit(0, 100, 75), RankExit(1, 101, 74)]) is Verdict.RESTART
    assert exits.first_bad_code == 74


def test_one_final_failure_is_enough(run_dir, exits):
    say(run_dir, 0, "gpu_fault")
    say(run_dir, 1, "oom")
    assert exits.judge([RankExit(0, 100, 74), RankExit(1, 101, 1)]) is not Verdict.RESTART


def test_what_ended_an_earlier_start_at_the_same_step_is_final(run_dir, exits):
    say(run_dir, 0, "user_error")
    assert exits.judge([RankExit(0, 100, 1)]) is Verdict.RESTART
    exits.begin("127.0.0.1:2")
    append_event(run_dir.events_file, {"kind": "attempt", "attempt": 2, "resumed_from_step": 5})
    say(run_dir, 0, "user_error")
    assert exits.judge([RankExit(0, 100, 1)]) is not Verdict.RESTART
    (refused,) = written(run_dir, "restart_refused")
    assert (refused["rank"], refused["cause"]) == (0, "user_error") and "at the same step" in refused["message"]


@pytest.mark.parametrize("start", [("submitted", {"restarts": 1}), ("agent_started", {"node": 0})])
def test_an_agent_that_was_given_up_judges_its_ranks_and_writes_nothing(run_dir, exits, start, monkeypatch):
    kind, fields = start
    assert not exits.is_superseded
    monkeypatch.setattr(os, "getpid", lambda: 1)  # the later start is another process
    append_event(run_dir.events_file, {"kind": kind, **fields})
    monkeypatch.undo()
    before = read_events(run_dir.events_file)
    assert exits.judge([RankExit(1, 101, 13), RankExit(0, 100, -signal.SIGKILL)]) is not None
    assert exits.is_superseded and read_events(run_dir.events_file) == before


def test_ranks_start_again_as_long_as_the_job_has_a_restart(run_dir, exits):
    append_event(run_dir.events_file, RANK_RESTART)
    say(run_dir, 0, "gpu_fault")
    exits.judge([RankExit(0, 100, 74)])
    assert exits.decide().action is Action.IN_PLACE
    append_event(run_dir.events_file, RANK_RESTART)
    assert (exits.decide().action, exits.decide().reason) == (Action.STOP, NO_RESTART_LEFT)


def test_a_final_failure_is_decided_though_restarts_are_left(run_dir, exits):
    say(run_dir, 0, "oom")
    exits.judge([RankExit(0, 100, 1)])
    assert (exits.decide().action, exits.decide().reason) == (Action.STOP, str(Verdict.FINAL_CAUSE))


def test_another_agent_of_the_same_run_comes_to_the_same_decision(run_dir, exits):
    say(run_dir, 0, "user_error")
    fresh = RankExits(run_dir, 0, lambda rank: Watched(rank, rank, 100 + rank), RestartLimit(1))
    fresh.begin("127.0.0.1:2")
    say(run_dir, 0, "user_error")
    assert fresh.judge([RankExit(0, 100, 1)]) is not Verdict.RESTART


def test_a_rank_that_lives_without_a_report_of_its_end_has_lost_its_fork_server():
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert fork_server_is_lost([RankExit(0, rank.pid, 255)])
        assert not fork_server_is_lost([RankExit(0, rank.pid, 13)])
    finally:
        rank.kill()
        rank.wait()
    assert not fork_server_is_lost([RankExit(0, rank.pid, 255)])


def test_ranks_without_their_fork_server_are_ended(run_dir, exits):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as rank:
        exits.note_lost_fork_server([rank.pid])
    assert rank.returncode == -signal.SIGKILL
    assert [failure["cause"] for failure in written(run_dir, "failure")] == ["agent_lost"]
