"""What a batch script makes of its nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import LAUNCH_AT, FakeClock, FakeSlurm, processes, resolved_command
from tests.report.conftest import make_plan
from trainworks.agent.allocation import Allocation, plan_on, processes_on, unhealthy_nodes
from trainworks.backends.slurm.allocation import PATIENCE_S, StepCommand, StepHosts, allocation, ending_of_turn
from trainworks.backends.slurm.batch import BatchScript
from trainworks.backends.slurm.client import SlurmClient
from trainworks.backends.slurm.node import job_environment, marks_of
from trainworks.config.run_file import RunFile
from trainworks.errors import EnvironmentProblem, UnreachableError
from trainworks.host.process import Output
from trainworks.jobs.state import Cause, JobState
from trainworks.record.events.log import append_event, read_events
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.recover.restarts import NEXT_TURN, restarts_used

BATCH = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-3]", "SLURMD_NODENAME": "node2", "SLURM_CPUS_ON_NODE": "16"}
SHOWN = (
    "NodeName=node1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=vm Reason=NodeAddr=9\n"
    "NodeName=node2 Arch=x86_64 NodeAddr=10.0.0.2 NodeHostName=vm\n"
)
GOT = Allocation(job="7", nodes=("node2", "node1"), addresses=("10.0.0.2", "10.0.0.1"), cores_per_node=16)


AWAY = Output(1, "", "Unable to contact slurm controller")
UNKNOWN_JOB = Output(1, "", "slurm_load_jobs error: Invalid job id specified")


def seen(env: dict[str, str]) -> Allocation:
    return allocation(env, SlurmClient(run=FakeSlurm(scontrol=SHOWN), env={}), FakeClock())


def test_the_node_of_the_batch_script_is_the_first() -> None:
    got = seen(BATCH | {"SLURM_RESTART_COUNT": "2", "SLURM_GPUS_ON_NODE": "8"})
    assert (got.nodes, got.turn, got.accelerators_per_node) == (("node2", "node1", "node3"), 2, 8)


def test_nodes_are_reached_at_the_addresses_that_slurm_knows() -> None:
    assert seen(BATCH).addresses == ("10.0.0.2", "10.0.0.1", "node3")


@pytest.mark.parametrize(
    ("answers", "addresses"),
    [([AWAY, AWAY, SHOWN], ("10.0.0.2", "10.0.0.1", "node3")), ([AWAY], None)],
    ids=["comes back", "stays away"],
)
def test_a_job_waits_for_a_controller_that_is_away(answers: list[Any], addresses: Any) -> None:
    """The names of nodes need not be known to the network; only slurmctld has their addresses."""
    clock, client = FakeClock(), SlurmClient(run=FakeSlurm(scontrol=answers), env={})
    began = clock.now()
    if addresses is not None:
        assert allocation(BATCH, client, clock).addresses == addresses
        return
    with pytest.raises(UnreachableError, match="Slurm does not answer"):
        allocation(BATCH, client, clock)
    assert PATIENCE_S <= clock.now() - began < 2 * PATIENCE_S


def test_outside_of_a_job_it_says_so() -> None:
    with pytest.raises(EnvironmentProblem, match="'SLURM_JOB_NODELIST' is not set"):
        seen({})


def test_an_agent_is_a_step_of_its_own() -> None:
    hosts = StepHosts(
        GOT, StepCommand(("--container-image=a.sqsh",), ("python3",)), SlurmClient(run=FakeSlurm(), env={})
    )
    command = hosts.command(1, ["/here/python", "-P", "-m", "trainworks.worker.agent", "/runs/a b", "1"])
    assert command[:5] == ["srun", "--nodes=1", "--ntasks=1", "--nodelist=node1", "--overlap"]
    module = ["-P", "-m", "trainworks.backends.slurm.node", "trainworks.worker.agent", "/runs/a b", "1"]
    assert command[-8:] == ["--container-image=a.sqsh", "python3", *module]


@pytest.mark.parametrize(
    ("exit_code", "state", "number"),
    [
        (137, "RUNNING\n", 9),
        (139, "RUNNING\n", 11),
        (137, "COMPLETING\n", None),  # a node is lost, or another job takes the nodes
        (137, Output(1, "", "Invalid job id specified"), None),
        (137, AWAY, None),
        (143, "RUNNING\n", None),  # Slurm asks for an end
        (167, "RUNNING\n", None),  # the credential of the step had expired when its node looked at it
        (75, "RUNNING\n", None),
        (255, "RUNNING\n", None),
    ],
)
def test_an_agent_was_killed_alone_if_slurm_still_runs_its_job(exit_code: int, state: Any, number: int | None) -> None:
    client = SlurmClient(run=FakeSlurm(squeue=state), env={})
    assert StepHosts(GOT, StepCommand((), ("python3",)), client).killed_by(exit_code) == number


ENDED = "srun: error: node2: task 0: Killed\nsrun: launch/slurm: _step_signal: Terminating StepId=7.3\n"
CANCELLED = "slurmstepd-node2: error: *** STEP 7.{} ON node2 CANCELLED AT 2026-11-29T22:14:18 ***\n"


@pytest.mark.parametrize(
    ("exit_code", "log", "part"),
    [
        (-9, "", Cause.STEP_LOST),  # its srun was killed
        (137, CANCELLED.format(3) + ENDED, Cause.STEP_LOST),
        (137, ENDED, Cause.AGENT_LOST),
        (137, CANCELLED.format(1) + ENDED.replace("7.3", "7.1") + ENDED, Cause.AGENT_LOST),  # the step before
        (137, "", Cause.AGENT_LOST),
    ],
)
def test_a_step_that_was_cancelled_is_no_killed_agent(exit_code: int, log: str, part: Cause, tmp_path: Path) -> None:
    hosts = StepHosts(GOT, StepCommand((), ("python3",)), SlurmClient(run=FakeSlurm(), env={}))
    (tmp_path / "node-1.log").write_text(log)
    assert hosts.lost_part(exit_code, tmp_path / "node-1.log") is part


def test_nodes_that_failed_their_check_are_remembered_until_a_user_submits_the_job_again() -> None:
    first = {"kind": "submitted", "hosts": ["node1", "node2"]}
    again = {"kind": "submitted", "hosts": ["node3", "node1"], "restarts": 1}
    failed = {"kind": "nodes_unhealthy", "nodes": [1]}
    assert unhealthy_nodes([first, failed, again]) == ["node2"]
    assert unhealthy_nodes([first, failed, again, failed]) == ["node2", "node1"]
    assert unhealthy_nodes([first, failed, first]) == []


def test_nodes_of_a_job_that_shrank_are_named_by_their_numbers_among_all() -> None:
    first = {"kind": "submitted", "hosts": ["node1", "node2", "node3"]}
    shrunk = {"kind": "resized", "places": [0, 2]}
    slow, taken = {"kind": "nodes_unhealthy", "nodes": [2]}, {"kind": "notice_answered", "node": 1}
    assert unhealthy_nodes([first, shrunk, slow, taken]) == ["node3", "node3"]


def command(starts: str = "per_rank", ranks: Any = "auto") -> ResolvedRun:
    run_file = RunFile.model_validate({"name": "t", "run": "true", "cluster": {"processes_per_node": ranks}})
    planned = processes(1, 1 if ranks == "auto" else ranks).model_copy(update={"starts": starts})
    return resolved_command(run_file=run_file, processes=planned)


def test_a_command_has_one_rank_per_accelerator_that_it_got() -> None:
    got = Allocation(job="7", nodes=GOT.nodes, addresses=GOT.addresses, cores_per_node=16, accelerators_per_node=8)
    ranks = processes_on(command(), got, "Slurm")
    assert (ranks.nodes, ranks.processes_per_node, ranks.device, ranks.threads_per_process) == (2, 8, "cuda", 2)


def test_ranks_that_the_run_file_counts_are_not_changed() -> None:
    ranks = processes_on(command(ranks=4), GOT, "Slurm")
    assert (ranks.nodes, ranks.processes_per_node, ranks.device, ranks.threads_per_process) == (2, 4, "cpu", 4)


def test_a_command_that_makes_its_ranks_itself_starts_once_per_node() -> None:
    got = Allocation(job="7", nodes=GOT.nodes, addresses=GOT.addresses, cores_per_node=16, accelerators_per_node=8)
    ranks = processes_on(command("per_node"), got, "Slurm")
    assert (ranks.processes_per_node, ranks.accelerators_per_node, ranks.starts) == (1, 8, "per_node")


@pytest.mark.parametrize(("nodes", "keeps"), [(2, True), (4, False)])
def test_the_plan_of_a_command_is_for_the_nodes_that_it_asked_for(nodes: int, keeps: bool) -> None:
    asked = resolved_command(processes=processes(nodes, 1), plan=make_plan(of_command=True))
    assert (plan_on(asked, GOT) is not None) == keeps


def test_ranks_do_not_see_what_is_true_of_their_agent_alone() -> None:
    env = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "A": "1"}
    assert job_environment(env) == {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "A": "1"}


def test_a_step_is_known_by_what_nobody_else_has() -> None:
    env = {"SLURM_CLUSTER_NAME": "hpc", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURMD_NODENAME": "node1"}
    assert marks_of(env | {"SLURM_RESTART_COUNT": "1", "A": "1"}) == env | {"SLURM_RESTART_COUNT": "1"}


SIGNALED = "kill -TERM $$ $PPID; sleep 0.2"
"""As Slurm does it when a job is cancelled or requeued: to the script, and to the program that has asked for it."""


def programs(folder: Path, **sources: str) -> dict[str, str]:
    """Programs of Slurm as scripts, and the variables by which they are found."""
    for name, source in sources.items():
        (folder / name).write_text(f"#!/bin/bash\n{source}\n")  # dash takes no notice of blocked signals
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def batch(run_dir: RunDir, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "trainworks.backends.slurm.batch", str(run_dir.path)]
    return subprocess.run(command, env=dict(os.environ) | env, check=False, capture_output=True, text=True)


def test_a_job_that_has_succeeded_does_not_run_again_if_slurm_requeues_it(run_dir: RunDir) -> None:
    """A slurmctld that crashed may have forgotten the success."""
    run_dir.write_status(RunStatus(state=JobState.SUCCEEDED, exit_code=0))
    done = batch(run_dir, BATCH | {"SLURM_RESTART_COUNT": "1"})
    assert (done.returncode, done.stderr, run_dir.events_file.exists()) == (0, "", False)
    assert run_dir.read_status().state == JobState.SUCCEEDED


@pytest.mark.parametrize(
    ("state", "words", "code"), [(JobState.FAILED, "has failed", 9), (JobState.STOPPED, "was stopped", 0)]
)
@pytest.mark.parametrize(
    ("config", "is_started"),
    [(f"BOOT_TIME = {LAUNCH_AT + 60}", False), (f"BOOT_TIME = {LAUNCH_AT - 60}", True), ("", True)],
    ids=["slurmctld started after its end", "slurmctld has run since", "slurmctld does not say"],
)
def test_a_job_that_has_ended_runs_again_if_a_user_requeues_it(
    run_dir: RunDir, tmp_path: Path, state: JobState, words: str, code: int, config: str, is_started: bool
) -> None:
    """A slurmctld that crashed may have forgotten its end, and requeues the job by itself."""
    env = BATCH | {"SLURM_RESTART_COUNT": "1"} | programs(tmp_path, scontrol=f"echo '{config}'", scancel=SIGNALED)
    run_dir.write_status(RunStatus(state=state, exit_code=9 if state is JobState.FAILED else 0, updated_at=LAUNCH_AT))
    done = batch(run_dir, env)
    assert (done.returncode == code, words in done.stderr) == (not is_started, not is_started)
    assert (run_dir.read_status().updated_at > LAUNCH_AT) is is_started


def test_a_job_is_requeued_without_its_unfit_node_while_slurm_signals_all_processes(
    run_dir: RunDir, tmp_path: Path
) -> None:
    """The programs of Slurm that the script has called would die of it, and their request would seem to be refused."""
    asks = f"""case $1 in
    --oneliner) echo "NodeName=node2 Arch=x86_64 NodeAddr=127.0.0.1";;
    requeue) {SIGNALED};;
    update) kill -TERM $$; echo "$@" > {tmp_path}/update;;
    esac"""
    env = BATCH | {"SLURM_JOB_NODELIST": "node2"} | programs(tmp_path, scontrol=asks, srun="exit 3")
    run_dir.write_resolved(resolved_command(node_check=("false",)))
    run_dir.write_status(RunStatus(state=JobState.QUEUED))
    assert batch(run_dir, env).returncode == 1
    assert (tmp_path / "update").read_text() == "update JobId=7 ExcNodeList=node2\n"
    status = run_dir.read_status()
    assert (status.state, status.cause) == ("QUEUED", "node_unhealthy")


@pytest.mark.parametrize("restart", [{"kind": "restart", "node": 1}, {"kind": "restart", "node": None}, None])
def test_a_node_that_slurm_misses_while_its_agent_starts_again_is_one_restart(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, restart: Any
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    run_dir.write_resolved(resolved_command())
    run_dir.note({"kind": "submitted", "nodes": 2, "processes_per_node": 1, "restarts": 0, "job": "7"})
    for state in ("STARTING", "RUNNING"):
        run_dir.enter(RunStatus(state=state))
    lost = {"kind": "agent_lost", "node": 1, "exit_code": -9}
    for event in [{"kind": "attempt", "attempt": 1}, lost, restart]:
        if event is not None:
            append_event(run_dir.events_file, event)
    run_dir.logs.mkdir(exist_ok=True)
    run_dir.supervisor_log.write_text("*** JOB 7 ON node2 CANCELLED AT 2099-01-01T00:00:00 DUE TO NODE FAILURE ***\n")
    run_dir.enter(RunStatus(state="STOPPED", exit_code=0))
    turn = BatchScript(
        run_dir, StepCommand((), ("python3",)), SlurmClient(run=FakeSlurm(squeue="COMPLETING\n"), env={})
    )
    turn.resolved = run_dir.read_resolved()
    assert turn.conclude(run_dir.read_status().end) == 1
    status = run_dir.read_status()
    assert (status.state, status.cause) == ("QUEUED", "node_lost")
    assert restarts_used([*read_events(run_dir.events_file), NEXT_TURN]) == 1


KILL = "*** JOB 7 ON node2 CANCELLED AT 2099-01-01T00:00:00 DUE TO {} ***\n"


def turn_of(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, restarts: int, **answers: Any) -> BatchScript:
    """A turn of a command whose supervisor has ended."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    run_file = RunFile.model_validate({"name": "t", "run": "true", "recover": {"max_restarts": restarts}})
    run_dir.write_resolved(resolved_command(run_file=run_file))
    run_dir.note({"kind": "submitted", "nodes": 2, "processes_per_node": 1, "restarts": 0, "job": "7"})
    run_dir.enter(RunStatus(state="RUNNING"))
    run_dir.logs.mkdir(exist_ok=True)
    turn = BatchScript(run_dir, StepCommand((), ("python3",)), SlurmClient(run=FakeSlurm(**answers), env={}))
    turn.resolved = run_dir.read_resolved()
    return turn


@pytest.mark.parametrize(
    ("squeue", "log", "restarts", "end"),
    [
        ("RUNNING 1795990000 1795990030\n", "", 0, ("PREEMPTED", "preempted")),  # it has a grace
        ("RUNNING N/A 1795990030\n", "", 3, ("FAILED", "time_limit")),  # a command would begin anew
        ("RUNNING N/A NONE\n", "", 0, ("FAILED", "killed")),  # somebody has sent SIGTERM
        ("COMPLETING N/A 1795990030\n", KILL.format("JOB REQUEUE"), 0, ("QUEUED", "requeued")),
        ("COMPLETING N/A 1795990030\n", KILL.format("PREEMPTION"), 0, ("PREEMPTED", "preempted")),
        ("COMPLETING N/A 1795990030\n", "", 0, ("STOPPED", None)),
    ],
)
def test_a_turn_that_slurm_ends_has_its_cause(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, squeue: str, log: str, restarts: int, end: tuple[str, str | None]
) -> None:
    turn = turn_of(run_dir, monkeypatch, restarts, squeue=squeue, scancel=UNKNOWN_JOB)
    run_dir.supervisor_log.write_text(log)
    run_dir.enter(RunStatus(state="STOPPED", exit_code=0))
    turn.conclude(run_dir.read_status().end)
    status = run_dir.read_status()
    assert (status.state, status.cause) == end


@pytest.mark.parametrize(
    ("boot", "met", "end"),
    [
        ("BOOT_TIME = 9999999999\n", False, ("QUEUED", "scheduler_lost")),
        ("BOOT_TIME = 9999999999\n", True, ("FAILED", "agent_lost")),  # its steps had begun
        ("BOOT_TIME = 1\n", False, ("FAILED", "agent_lost")),
    ],
)
def test_a_job_whose_steps_a_slurmctld_refuses_that_has_just_come_back_waits_again(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, boot: str, met: bool, end: tuple[str, str]
) -> None:
    """It has lost the job in a crash, or does not know yet what its nodes have; the next poll submits a lost job."""
    turn = turn_of(run_dir, monkeypatch, 0, scontrol=[boot, UNKNOWN_JOB])
    if met:
        append_event(run_dir.events_file, {"kind": "attempt", "attempt": 1})
    run_dir.enter(RunStatus(state="FAILED", cause="agent_lost", message="codes [1]", exit_code=1))
    assert turn.conclude(run_dir.read_status().end) == 1
    status = run_dir.read_status()
    assert (status.state, status.cause) == end


@pytest.mark.parametrize(("boot_s", "cause"), [(-2, Cause.SCHEDULER_LOST), (-9, Cause.NODE_LOST)])
def test_a_turn_that_a_crash_ended_while_it_began_is_not_that_of_a_lost_node(
    run_dir: RunDir, boot_s: float, cause: Cause
) -> None:
    """The first event of its supervisor comes some seconds after slurmctld has started its script."""
    began = {"t": LAUNCH_AT, "kind": "submitted", "restarts": 0, "started_at": LAUNCH_AT - 4}
    append_event(run_dir.events_file, began)
    assert ending_of_turn(run_dir, "7", LAUNCH_AT + boot_s) == (cause, LAUNCH_AT)
