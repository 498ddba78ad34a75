"""The supervisor takes a job from its start to a final state, whatever its nodes do."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.fakes import FakeClock, FakeNodes, Life, job
from trainworks.agent.command_nodes import CommandNodes
from trainworks.agent.node_agents import NODE_LEAVES, ThisMachine, TrainingNodes
from trainworks.agent.supervisor import Supervisor, supervise
from trainworks.backends.slurm.allocation import StepHosts
from trainworks.files import take_lock
from trainworks.host import process
from trainworks.jobs.state import JobState
from trainworks.record.events.log import append_event, read_events
from trainworks.record.exit_code import ExitCode
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir

MET = ("attempt", {"attempt": 1, "world_size": 1, "resumed_from_step": 0})
FINISHED = ("finished", {"step": 300})
KILLED = -signal.SIGKILL
FOREVER = 1e9


def failure(cause: str, message: str, t: float, **fields: object) -> tuple[str, dict[str, object]]:
    """A rank's own account of its end."""
    return "failure", {"t": t, "cause": cause, "message": message, "rank": 0, "node": 0} | fields


class Run:
    """One job on fake nodes."""

    def __init__(self, run_dir: RunDir, clock: FakeClock, resolved: ResolvedRun, *lives: list[Life]) -> None:
        self.run_dir = run_dir
        self.clock = clock
        self.nodes = FakeNodes(run_dir, resolved, clock, lives)
        self.supervisor = Supervisor(run_dir, resolved, self.nodes, clock)

    def signal_after(self, seconds: float) -> None:
        """Somebody presses Ctrl-C."""
        self.clock.after(seconds, lambda: self.supervisor.ask_to_stop(signal.SIGINT, None))

    def states(self) -> list[str]:
        """Run to the end; all states in order."""
        self.supervisor.run()
        return [event["state"] for event in read_events(self.run_dir.events_file) if event["kind"] == "state"]


@pytest.fixture
def start(run_dir: RunDir, clock: FakeClock):
    """A function that makes the run of a request and of its nodes' lives."""
    return lambda resolved, *lives: Run(run_dir, clock, resolved, *lives)


def test_a_job_that_finishes_has_succeeded(start) -> None:
    run = start(job(), [Life(0, says=[MET, FINISHED])])
    assert run.states() == ["STARTING", "RUNNING", "SUCCEEDED"]
    assert run.run_dir.read_status().exit_code == 0


def test_a_command_has_succeeded_when_its_ranks_return_0(start) -> None:
    assert start(job("command"), [Life(0)]).states()[-1] == "SUCCEEDED"


def test_training_that_ends_without_its_last_step_has_failed(start) -> None:
    assert start(job(), [Life(0, says=[MET])]).states()[-1] == "FAILED"


def test_a_killed_node_is_started_again(start) -> None:
    run = start(job(max_restarts=1), [Life(KILLED, says=[MET]), Life(0, says=[MET, FINISHED])])
    assert run.states() == ["STARTING", "RUNNING", "RECOVERING", "RUNNING", "SUCCEEDED"]
    assert run.nodes.asked.starts == [0, 0]


@pytest.mark.parametrize(
    ("number", "said", "end", "starts"),
    [
        (signal.SIGKILL, [], "SUCCEEDED", [0, 0]),
        (None, [], "FAILED", [0]),  # its job is no longer there
        (signal.SIGKILL, [failure("oom", "killed by the kernel", 1.0, exit_code=-9)], "FAILED", [0]),
    ],
)
def test_an_agent_that_another_program_started_was_killed_if_its_ranks_do_not_explain_its_end(
    start, monkeypatch: pytest.MonkeyPatch, number: int | None, said: list, end: str, starts: list[int]
) -> None:
    monkeypatch.setattr(ThisMachine, "killed_by", lambda hosts, exit_code: number)
    run = start(job(max_restarts=1), [Life(137, says=[MET, *said]), Life(0, says=[MET, FINISHED])])
    assert (run.states()[-1], run.nodes.asked.starts) == (end, starts)


def test_how_an_agent_ends_after_the_last_step_does_not_matter(start) -> None:
    run = start(job(max_restarts=3), [Life(-signal.SIGABRT, says=[MET, FINISHED])])
    assert (run.states()[-1], run.nodes.asked.starts) == ("SUCCEEDED", [0])


def test_the_other_nodes_are_not_started_again(start) -> None:
    lives = [Life(0, 9, says=[MET])], [Life(KILLED), Life(0, 8, says=[FINISHED])]
    run = start(job(nodes=2, max_restarts=1), *lives)
    assert (run.states()[-1], run.nodes.asked.starts) == ("SUCCEEDED", [0, 1, 1])


@pytest.mark.parametrize("max_restarts", [0, 1, 3])
def test_a_node_is_started_again_as_often_as_allowed(start, max_restarts: int) -> None:
    run = start(job(max_restarts=max_restarts), [Life(KILLED)] * 9)
    assert (run.states()[-1], len(run.nodes.asked.starts)) == ("FAILED", 1 + max_restarts)


def test_two_nodes_of_a_workload_share_one_budget(start) -> None:
    again = Life(0, FOREVER, says=[("ranks_started", {})])
    lives = [Life(KILLED, 3), again], [Life(KILLED, 6), again]
    run = start(job(nodes=2, max_restarts=1), *lives)
    assert (run.states()[-1], run.nodes.asked.starts) == ("FAILED", [0, 1, 0])


def test_restarts_of_an_earlier_turn_are_used(start) -> None:
    run = start(job("command", max_restarts=1), [Life(KILLED)] * 9)
    for kind, words in (
        ("submitted", {"restarts": 0}),
        ("state", {"state": "RUNNING"}),
        ("submitted", {"restarts": 1}),
    ):
        append_event(run.run_dir.events_file, {"kind": kind, **words})
    assert (run.states()[-1], run.nodes.asked.starts) == ("FAILED", [0])


def test_a_command_on_two_nodes_is_started_again_as_often_as_allowed(start) -> None:
    run = start(job("command", nodes=2, max_restarts=1), [Life(KILLED)] * 9, [Life(0, FOREVER)])
    run.supervisor.run()
    assert run.nodes.asked.starts.count(0) == 2


def test_nodes_of_a_command_that_are_lost_together_are_one_restart(start) -> None:
    lives = [Life(KILLED), Life(0), Life(0)]
    run = start(job("command", nodes=2, max_restarts=1), list(lives), list(lives))
    run.nodes.together = True
    assert (run.states()[-1], run.nodes.asked.starts) == ("SUCCEEDED", [0, 1, 0, 1])


def test_what_a_restart_cannot_help_is_not_restarted(start) -> None:
    run = start(job(max_restarts=3), [Life(1, says=[MET])])
    assert (run.states()[-1], run.nodes.asked.starts) == ("FAILED", [0])


def test_every_lost_node_is_noted_once(start) -> None:
    run = start(job(max_restarts=2), [Life(KILLED), Life(KILLED), Life(0, says=[MET, FINISHED])])
    run.supervisor.run()
    lost = [event for event in read_events(run.run_dir.events_file) if event["kind"] == "agent_lost"]
    assert [(event["node"], event["exit_code"]) for event in lost] == [(0, KILLED), (0, KILLED)]


def test_a_failed_job_names_the_first_failure_that_is_no_consequence(start) -> None:
    lost = failure("peer_lost", "connection closed", 1.0, rank=0)
    first, second = failure("oom", "out of memory", 2.0, hint="smaller"), failure("user_error", "KeyError", 3.0)
    run = start(job(), [Life(1, says=[MET, lost, second, first])])
    run.supervisor.run()
    status = run.run_dir.read_status()
    assert (status.cause, status.message, status.hint, status.exit_code) == ("oom", "out of memory", "smaller", 1)


def test_a_failed_job_without_any_account_names_its_exit_codes(start) -> None:
    run = start(job(), [Life(3)])
    run.supervisor.run()
    status = run.run_dir.read_status()
    assert (status.cause, status.message, status.exit_code) == ("agent_lost", "the node agents ended with codes [3]", 3)


def test_a_recovering_job_says_why(start) -> None:
    dies = Life(KILLED, says=[MET, failure("killed", "killed by SIGKILL", 1.0)])
    run = start(job(max_restarts=1), [dies, Life(0, says=[FINISHED])])
    run.supervisor.run()
    (recovering,) = [e for e in read_events(run.run_dir.events_file) if e.get("state") == "RECOVERING"]
    assert (recovering["cause"], recovering["message"]) == ("killed", "killed by SIGKILL")


def recovering_causes(run: Run) -> list[tuple[str, str]]:
    """Cause and message of every RECOVERING state that was written."""
    run.supervisor.run()
    events = [e for e in read_events(run.run_dir.events_file) if e.get("state") == "RECOVERING"]
    return [(event["cause"], event["message"]) for event in events]


def test_a_recovering_job_names_the_killed_rank_when_its_peers_wrote_first(start) -> None:
    lost, killed = failure("peer_lost", "lost contact", 1.0), failure("killed", "killed by SIGKILL", 1.1)
    run = start(job(max_restarts=1), [Life(KILLED, says=[MET, lost, killed]), Life(0, says=[FINISHED])])
    assert recovering_causes(run) == [("peer_lost", "lost contact"), ("killed", "killed by SIGKILL")]


def test_a_recovering_job_keeps_the_first_cause(start) -> None:
    first, second = failure("gpu_fault", "ECC", 1.0), failure("killed", "killed by SIGKILL", 1.1)
    run = start(job(max_restarts=1), [Life(KILLED, says=[MET, first, second]), Life(0, says=[FINISHED])])
    assert recovering_causes(run) == [("gpu_fault", "ECC")]


@pytest.mark.parametrize(
    ("exit_code", "cause"),
    [
        (-signal.SIGTERM, ("agent_lost", "the node agent was killed by SIGTERM")),
        (75, ("agent_lost", "the agent of node 0 ended with code 75")),
    ],
)
def test_a_job_that_recovers_from_a_lost_agent_says_so(start, exit_code: int, cause: tuple[str, str]) -> None:
    run = start(job(max_restarts=1), [Life(exit_code, says=[MET]), Life(0, says=[FINISHED])])
    assert recovering_causes(run) == [cause]


@pytest.mark.parametrize(
    ("exit_code", "lost"),
    [
        (-signal.SIGKILL, ("step_lost", "the step of the node agent was ended by SIGKILL")),  # its srun was killed
        (137, ("agent_lost", "the node agent was killed by SIGKILL")),  # as srun reports it
        (-signal.SIGHUP, ("node_lost", "the connection to the node was lost")),
    ],
)
def test_a_loss_elsewhere_has_the_part_that_was_lost_as_its_cause(
    start, monkeypatch: pytest.MonkeyPatch, exit_code: int, lost: tuple[str, str]
) -> None:
    monkeypatch.setattr(ThisMachine, "are_here", False)
    monkeypatch.setattr(ThisMachine, "lost_part", StepHosts.lost_part)
    monkeypatch.setattr(ThisMachine, "killed_by", lambda hosts, code: code - 128)
    run = start(job("command", max_restarts=1), [Life(exit_code, says=[MET]), Life(0, says=[FINISHED])])
    assert recovering_causes(run) == [lost]


def test_a_job_that_is_asked_to_stop_has_stopped(start) -> None:
    run = start(job(), [Life(0, FOREVER, says=[MET])])
    run.signal_after(5)
    assert run.states() == ["STARTING", "RUNNING", "STOPPED"]
    assert (run.run_dir.read_status().exit_code, run.nodes.asked.stops, run.nodes.asked.kills) == (0, 1, 0)


def test_a_command_that_is_asked_to_stop_has_stopped(start) -> None:
    run = start(job("command"), [Life(0, FOREVER)])
    run.signal_after(5)
    assert run.states()[-1] == "STOPPED"


def test_a_command_that_ends_by_the_signal_has_stopped(start) -> None:
    """Its agents return 128 + 15."""
    run = start(job("command"), [Life(0, FOREVER, says=[MET])])
    run.nodes.answer = 143
    run.signal_after(5)
    assert run.states()[-1] == "STOPPED"


def test_a_job_that_finishes_before_it_stops_has_succeeded(start) -> None:
    run = start(job(), [Life(0, 6, says=[MET, FINISHED])])
    run.nodes.answer = None
    run.signal_after(5)
    assert run.states()[-1] == "SUCCEEDED"


def test_a_second_signal_ends_the_job_at_once(start) -> None:
    run = start(job(), [Life(0, FOREVER, says=[MET])])
    run.nodes.answer = None
    run.signal_after(5)
    run.signal_after(6)
    before = run.clock.now()
    assert run.states()[-1] == "STOPPED"
    assert run.clock.now() - before < 7


def test_a_job_that_does_not_stop_is_ended_after_two_minutes(start) -> None:
    run = start(job(), [Life(0, FOREVER, says=[MET])])
    run.nodes.answer = None
    run.signal_after(0)
    before = run.clock.now()
    assert run.states()[-1] == "STOPPED"
    assert run.clock.now() - before == pytest.approx(120, abs=1)


def test_a_node_lost_while_stopping_is_not_started_again(start) -> None:
    run = start(job(nodes=2, max_restarts=3), [Life(0, FOREVER, says=[MET])], [Life(KILLED, 6)])
    run.nodes.answer = None
    run.signal_after(5)
    run.signal_after(9)
    assert (run.states()[-1], run.nodes.asked.starts) == ("STOPPED", [0, 1])


LOST_A_PEER = failure("peer_lost", "lost contact", 1.0)


@pytest.mark.parametrize("stopped_after", [1, 2])
def test_a_stopped_job_whose_ranks_lost_a_peer_hears_how_it_ended(start, stopped_after: int) -> None:
    """By its exit code the next turn knows that a node was lost; the ranks write of it before that agent has ended."""
    run = start(job(nodes=2), [Life(0, FOREVER, says=[MET, LOST_A_PEER])], [Life(75, stopped_after + 1)])
    run.nodes.answer = None
    run.signal_after(stopped_after)
    before = run.clock.now()
    assert run.states()[-1] == "STOPPED"
    assert 75 in run.nodes.exit_codes()
    assert run.clock.now() - before < stopped_after + 2


def test_a_stopped_job_does_not_wait_long_for_a_lost_peer(start) -> None:
    run = start(job(nodes=2), [Life(0, FOREVER, says=[MET, LOST_A_PEER])], [Life(0, FOREVER)])
    run.nodes.answer = None
    run.signal_after(1)
    before = run.clock.now()
    assert run.states()[-1] == "STOPPED"
    assert run.clock.now() - before == pytest.approx(11, abs=1)


def notice(run: Run, left_s: float, *, ends: bool = True) -> None:
    """The cloud takes node 0 back, or advises to leave it."""
    fields = {"node": 0, "cloud": "gcp", "what": "preemption", "ends": ends, "deadline_at": run.clock.now() + left_s}
    append_event(run.run_dir.events_file, {"kind": "notice", **fields})


SAVED = ("checkpoint", {"step": 20, "stall_s": 0.0, "write_s": 10.0})


def test_a_job_saves_and_leaves_a_node_that_its_cloud_takes_back(start) -> None:
    run = start(job(max_restarts=3), [Life(0, FOREVER, says=[MET, SAVED])])
    run.clock.after(5, lambda: notice(run, 30.0))
    assert run.states() == ["STARTING", "RUNNING", "FAILED"]
    status = run.run_dir.read_status()
    assert (status.cause, status.exit_code, run.nodes.asked.stops, run.nodes.asked.kills) == (
        "node_reclaimed",
        75,
        1,
        0,
    )
    assert "saving" in status.message
    (answered,) = [e for e in read_events(run.run_dir.events_file) if e["kind"] == "notice_answered"]
    assert (answered["saves"], answered["message"]) == (True, status.message)


def test_a_job_that_cannot_save_in_time_ends_at_once_and_says_so(start) -> None:
    run = start(job(max_restarts=3), [Life(0, FOREVER, says=[MET, SAVED])])
    run.nodes.answer = None
    run.clock.after(5, lambda: notice(run, 8.0))
    before = run.clock.now()
    assert run.states()[-1] == "FAILED"
    assert run.clock.now() - before < 7
    assert "no emergency checkpoint" in run.run_dir.read_status().message


def test_a_save_that_takes_too_long_ends_with_the_node(start) -> None:
    run = start(job(), [Life(0, FOREVER, says=[MET, SAVED])])
    run.nodes.answer = None
    run.clock.after(5, lambda: notice(run, 30.0))
    before = run.clock.now()
    assert run.states()[-1] == "FAILED"
    assert run.clock.now() - before == pytest.approx(35, abs=1)


def test_the_clusters_sigterm_after_a_notice_does_not_cut_the_save_short(start) -> None:
    run = start(job(), [Life(0, FOREVER, says=[MET, SAVED])])
    run.nodes.answer = None
    run.clock.after(5, lambda: notice(run, 30.0))
    run.clock.after(10, lambda: run.supervisor.ask_to_stop(signal.SIGTERM, None))
    before = run.clock.now()
    run.states()
    assert run.clock.now() - before == pytest.approx(35, abs=1)


@pytest.mark.parametrize(
    ("number", "why"),
    [(NODE_LEAVES, "its cluster has ended one of its nodes"), (signal.SIGHUP, "its terminal was closed")],
)
def test_a_job_that_is_ended_from_outside_says_by_what(start, number: int, why: str) -> None:
    run = start(job("command"), [Life(0, FOREVER)])
    for seconds in (5, 6):  # the second one cuts nothing short
        run.clock.after(seconds, lambda: run.supervisor.ask_to_stop(number, None))
    assert run.states()[-1] == "STOPPED"
    assert (run.run_dir.read_status().cause, run.run_dir.read_status().message) == ("killed", why)


def test_after_advice_to_leave_the_job_saves_and_goes_on(start) -> None:
    run = start(job(), [Life(0, 9, says=[MET])])
    run.clock.after(5, lambda: notice(run, 0.0, ends=False))
    run.clock.after(8, lambda: append_event(run.run_dir.events_file, {"kind": "finished", "step": 300}))
    assert run.states()[-1] == "SUCCEEDED"
    assert run.run_dir.save_request_file.exists()


def test_the_status_names_this_very_supervisor(start) -> None:
    run = start(job(), [Life(0, says=[MET, FINISHED])])
    run.supervisor.run()
    status = run.run_dir.read_status()
    assert (status.supervisor_pid, status.supervisor_started_at) == process.identity()


def test_events_of_an_earlier_attempt_do_not_make_it_run(start) -> None:
    run = start(job(), [Life(3)])
    run.run_dir.events_file.write_text(json.dumps({"t": 0, "kind": "attempt"}) + "\n")
    assert run.states() == ["STARTING", "FAILED"]


@pytest.mark.parametrize(
    ("exit_code", "helps"), [(KILLED, True), (-signal.SIGTERM, True), (75, True), (1, False), (3, False)]
)
def test_a_training_node_that_was_killed_or_cut_off_is_restartable(exit_code: int, helps: bool) -> None:
    assert object.__new__(TrainingNodes).restartable(exit_code) is helps


@pytest.mark.parametrize("exit_code", [KILLED, 1, 3, 75])
def test_a_command_is_restartable_whatever_ended_it(run_dir: RunDir, exit_code: int) -> None:
    assert CommandNodes(run_dir, job("command")).restartable(exit_code)


def test_a_job_leaves_only_its_record(start, tmp_path: Path) -> None:
    run = start(job(), [Life(0, says=[MET, FINISHED])])
    assert run.supervisor.run() is JobState.SUCCEEDED
    assert {path.name for path in run.run_dir.path.iterdir()} == {
        "checkpoints",
        "logs",
        "events.jsonl",
        "status.json",
    }


def test_a_second_supervisor_leaves_a_run_and_its_record_alone(run_dir: RunDir) -> None:
    lock = take_lock(run_dir.lock_file)
    assert lock is not None
    before = sorted(run_dir.path.iterdir())
    built: list[int] = []
    assert supervise(run_dir, built.append) == ExitCode.ENVIRONMENT  # type: ignore[arg-type]
    assert built == [] and sorted(run_dir.path.iterdir()) == before
    os.close(lock)


def test_a_supervisor_whose_job_was_launched_again_elsewhere_writes_nothing_more(run_dir: RunDir, start) -> None:
    run = start(job(max_restarts=3), [Life(KILLED, 5, says=[MET]), Life(0, FOREVER)])
    run.clock.after(2.0, lambda: append_event(run_dir.events_file, {"kind": "submitted", "restarts": 1}))
    assert supervise(run_dir, lambda lock: run.supervisor, signals={}) == ExitCode.SUPERSEDED
    assert read_events(run_dir.events_file)[-1]["kind"] == "submitted"
    assert run_dir.read_status().state == "RUNNING", "what follows is the other one's to say"
    assert run.nodes.asked.starts == [0]
