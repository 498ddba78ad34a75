"""The backend on a real Slurm of four nodes."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.backends.slurm_cluster import Cluster, Run, wait_until
from tests.fakes import on_engine, resolved_command
from tests.observe.prometheus import values
from trainworks.api.launching.prepared_run import NODE_PLANNER
from trainworks.api.observing.exporter import NodeMetrics
from trainworks.api.proving.drilled_job import DrilledJob
from trainworks.backends.slurm.backend import SlurmBackend
from trainworks.backends.slurm.client import SlurmClient
from trainworks.config.engines import Slurm
from trainworks.config.run_file import RunFile
from trainworks.config.slurm.sbatch import load_batch_script
from trainworks.host import process
from trainworks.host.clock import SystemClock
from trainworks.jobs.state import Cause, JobState
from trainworks.measure.drill.victims import Victim
from trainworks.record.events.log import read_events
from trainworks.record.processes import Processes
from trainworks.record.runs_folder import create_run_dir
from trainworks.recover.restarts import Begin, lives_of, restarts_used

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

SHOW = (
    "echo $RANK/$WORLD_SIZE $MASTER_ADDR $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $SKYPILOT_NODE_IPS;"
    " echo procid=$SLURM_PROCID"
)
UNTIL_TOLD = 'until test -e "$TRAINWORKS_RUN_DIR/told"; do sleep 0.1; done'
FIRST_TIME_FOR_EVER = "sleep ${SLURM_RESTART_COUNT:+0.1} ${SLURM_RESTART_COUNT:-600}"
STUBBORN = "trap '' TERM; setsid -f sleep 600; (setsid sleep 600 &); sleep 600 & wait"

PYTHON_SCRIPT = """\
#!/usr/bin/env python3
#SBATCH --ntasks=5 --nodes=2
import os, subprocess, sys
print(os.path.basename(__file__), os.environ["SLURM_NTASKS"], flush=True)
sys.exit(subprocess.run(["srun", "bash", "-c", "echo task $SLURM_PROCID"]).returncode)
"""
OWN_SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=3
#SBATCH --signal=B:USR1@60
trap 'echo heard; exit 0' USR1
echo "batch on $SLURMD_NODENAME with $SLURM_NTASKS"
srun bash -c 'echo task $SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME'
scancel --batch --signal=USR1 $SLURM_JOB_ID
while true; do sleep 0.1; done
"""


def test_four_nodes_meet_and_every_rank_knows_its_place(cluster: Cluster) -> None:
    run = cluster.command(SHOW).submit()
    assert (run.submit().end().state, run.state) == (JobState.SUCCEEDED, "SUCCEEDED")
    addresses = "127.0.1.1 127.0.1.2 127.0.1.3 127.0.1.4"
    for rank in range(4):
        place = f"{rank}/4 127.0.1.1 node{rank + 1} 0,1,2,3,4,5,6,7 {addresses}"
        assert run.rank_log(rank).split("\n")[:2] == [place, "procid="]
    assert len(run.events("submitted")) == 1


def test_a_hostile_run_directory_is_only_a_name(cluster: Cluster) -> None:
    run = cluster.command("echo here", nodes=1)
    hostile = create_run_dir(cluster.folder / 'a\'b "$(touch x)" #%j é', "t")
    hostile.write_resolved(run.run_dir.read_resolved().model_copy(update={"run_id": hostile.run_id}))
    run.run_dir = hostile
    assert run.submit().end().state is JobState.SUCCEEDED
    assert run.rank_log(0) == "here\n" and hostile.supervisor_log.exists()


def test_one_exporter_gives_the_queue_of_all_users_and_their_runs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no job store is: the controller that `deploy` builds has none."""
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    run = cluster.command(UNTIL_TOLD, nodes=2).start()
    held = cluster.command("true", nodes=1, hold=True).submit()
    metrics = NodeMetrics(["queue", "runs"], cluster.folder / "none", cluster="slurm")
    found = values(metrics.text())
    on_nodes = {key for key in found if key.startswith("trainworks_job_node_info") and run.run_dir.run_id in key}
    assert [f'node="node{number}"' in "".join(on_nodes) for number in (1, 2, 3)] == [True, True, False]
    assert found["trainworks_jobs_gpus_alloc"] == 16 and found["trainworks_jobs_hold"] >= 1
    assert found["trainworks_queue_oldest_submission_timestamp_seconds"] > 1.7e9
    assert found[f'trainworks_run_state{{run="{run.run_dir.run_id}",state="RUNNING"}}'] == 1
    (run.run_dir.path / "told").touch()
    run.end()
    held.backend.stop(held.handle)


def test_a_range_of_nodes_starts_with_those_that_there_are(cluster: Cluster) -> None:
    run = cluster.command("true", nodes=4, min_nodes=2, exclude=["node1", "node3"]).submit()
    assert run.end().nodes == ("node2", "node4")
    assert run.run_dir.read_resolved().processes.nodes == 2


def test_a_held_job_waits_until_it_is_released(cluster: Cluster) -> None:
    run = cluster.command("true", nodes=1, hold=True).submit()
    assert (run.status.state, run.status.reason) == (JobState.QUEUED, "JobHeldUser")
    run.backend.release(run.handle)
    assert run.end().state is JobState.SUCCEEDED


def test_a_drained_node_gets_no_job(cluster: Cluster, backend: SlurmBackend) -> None:
    backend.drain("node4", "bad 'gpu' | Xid 79")
    run = cluster.command("true").submit()
    wait_until(lambda: "DRAINED" in (run.status.reason or ""))
    node = backend.nodes()[3]
    assert (node.name, node.state, node.reason, node.accelerators) == ("node4", "drained", "bad 'gpu' | Xid 79", 8)
    backend.undrain("node4")
    backend.exclude(run.handle, [])
    assert run.end().state is JobState.SUCCEEDED


def test_a_quota_is_the_reason_to_wait(cluster: Cluster) -> None:
    if not cluster.accounting:
        pytest.skip("NOT TESTED: quotas; Slurm's database is not installed")
    cluster.call("sacctmgr", "-i", "modify", "account", "research", "set", "GrpTRES=gres/gpu=8")
    try:
        run = cluster.command("true", nodes=2, slurm={"account": "research"}).submit()
        wait_until(lambda: run.status.reason == "AssocGrpGRES")
        assert run.status.state is JobState.QUEUED
    finally:
        cluster.call("sacctmgr", "-i", "modify", "account", "research", "set", "GrpTRES=gres/gpu=-1")


def test_more_nodes_than_there_are_wait_with_a_reason_and_can_be_stopped(cluster: Cluster) -> None:
    run = cluster.command("true", nodes=9).submit()
    wait_until(lambda: run.status.reason == "PartitionNodeLimit")
    run.backend.stop(run.handle)
    assert run.end().state is JobState.STOPPED


def test_a_failing_command_fails_and_is_not_put_back(cluster: Cluster) -> None:
    run = cluster.command("test $RANK = 2 && exit 9; sleep 600").submit()
    status = run.end()
    assert (status.state, status.exit_code, status.restarts) == (JobState.FAILED, 9, 0)
    assert run.run_dir.read_status().cause == "user_error"


def test_a_job_that_slurm_forgot_is_found_in_its_history(cluster: Cluster) -> None:
    run = cluster.command("exit 7", nodes=1).submit()
    run.end()

    def forgetful(command: list[str], **options: Any) -> process.Output:
        forgot = process.Output(1, "", "slurm_load_jobs error: Invalid job id specified\n")
        return forgot if command[0] == "squeue" else process.run(command, **options)

    backend = SlurmBackend(Slurm(), client=SlurmClient(env=cluster.env, run=forgetful))
    seen = backend.poll([run.handle, "99999"])
    if not cluster.accounting:
        assert seen == {}
    else:
        wait_until(lambda: backend.poll([run.handle])[run.handle].state.is_final)  # accounting comes later
        seen = backend.poll([run.handle, "99999"])
        status = seen[run.handle]
        assert (list(seen), status.state, status.exit_code, status.nodes) == (
            [run.handle],
            JobState.FAILED,
            7,
            ("node1",),
        )


def test_a_killed_rank_starts_again_where_it_is(cluster: Cluster) -> None:
    run = cluster.command("sleep 2; test $RANK$TRAINWORKS_ATTEMPT = 21 && kill -9 $$; sleep 1", restarts=1).submit()
    assert (run.end().restarts, run.state, len(run.events("attempt"))) == (0, "SUCCEEDED", 2)


def test_a_killed_agent_starts_again_where_it_is(cluster: Cluster) -> None:
    run = cluster.command("test $TRAINWORKS_ATTEMPT = 2 || sleep 600", nodes=2, restarts=1).start()
    run.kill("trainworks.agent.command_agent")
    assert (run.end().restarts, run.state, len(run.events("attempt"))) == (0, "SUCCEEDED", 2)
    # Slurm kills all processes of a step at once: the other agent may still record that its command was killed
    killed, *ended = run.events("failure")
    assert (killed["cause"], killed["signal"], killed["rank"]) == ("agent_lost", "SIGKILL", None)
    assert [each["cause"] for each in ended] in ([], ["killed"])


def test_a_cancelled_step_starts_again_where_it_is_and_is_no_killed_agent(cluster: Cluster) -> None:
    run = cluster.command("test $TRAINWORKS_ATTEMPT = 2 || sleep 600", nodes=2, restarts=1).start()
    wait_until(lambda: f"{run.handle}.1" in cluster.call("squeue", "--steps", "--noheader"))
    cluster.call("scancel", f"{run.handle}.1")
    assert (run.end().restarts, run.state, len(run.events("attempt"))) == (0, "SUCCEEDED", 2)
    assert run.events("failure")[0]["cause"] == "step_lost"
    lives = lives_of(read_events(run.run_dir.events_file))
    assert [(life.begin, life.cause, life.attempt) for life in lives[1:]] == [(Begin.RANKS, "step_lost", 1)]


def test_a_stopped_run_has_time_to_save_and_leaves_nothing(cluster: Cluster) -> None:
    saves = "trap 'echo saved; exit 0' TERM; setsid -f sleep 600; echo up; sleep 600 & wait"
    run = cluster.command(saves, grace="60 s").start()
    wait_until(lambda: all(run.run_dir.rank_log(rank).exists() and run.rank_log(rank) == "up\n" for rank in range(4)))
    run.backend.stop(run.handle)
    assert (run.end().state, run.state) == (JobState.STOPPED, "STOPPED")
    assert [run.rank_log(rank) for rank in range(4)] == ["up\nsaved\n"] * 4
    wait_until(lambda: not run.processes())


def test_a_cancelled_job_leaves_nothing_that_hides(cluster: Cluster) -> None:
    run = cluster.command(STUBBORN, nodes=2).start()
    cluster.call("scancel", run.handle)
    assert run.end().state is JobState.STOPPED
    wait_until(lambda: not run.processes())
    if cluster.accounting:
        wait_until(lambda: run.status.ended_by == "cancelled in Slurm by root")


def test_a_job_without_restarts_goes_on_when_another_took_its_place(cluster: Cluster) -> None:
    low, high = ({"qos": "normal"}, ["--qos=high"]) if cluster.accounting else ({"partition": "spot"}, [])
    run = cluster.command(FIRST_TIME_FOR_EVER, nodes=4, slurm=low).start()
    cluster.call("sbatch", "--nodes=4", "--exclusive", *high, "--output=/dev/null", "--wrap=sleep 1")
    assert (run.end().restarts, run.state) == (1, "SUCCEEDED")
    assert "preempted" in [event["cause"] for event in run.events("state")]
    assert restarts_used(read_events(run.run_dir.events_file)) == 0


def test_a_preempted_job_whose_user_forbids_a_requeue_has_failed(cluster: Cluster) -> None:
    low, high = ({"qos": "normal"}, ["--qos=high"]) if cluster.accounting else ({"partition": "spot"}, [])
    with cluster.configured("KillWait", 60):  # its last words are its own: nobody else can write them
        cluster.call("scontrol", "reconfigure")
        run = cluster.command("sleep 600", nodes=4, slurm={**low, "options": ["--no-requeue"]}).start()
        cluster.call("sbatch", "--nodes=4", "--exclusive", *high, "--output=/dev/null", "--wrap=sleep 1")
        status = run.end()
    cluster.call("scontrol", "reconfigure")
    assert (status.state, status.cause, status.restarts) == (JobState.FAILED, Cause.PREEMPTED, 0)
    assert (run.state, run.run_dir.read_status().cause) == ("FAILED", "preempted")


def test_singleton_runs_jobs_of_one_name_one_after_the_other(cluster: Cluster) -> None:
    singleton = {"options": ["--dependency=singleton"]}
    first = cluster.command(UNTIL_TOLD, nodes=1, slurm=singleton).start()
    second = cluster.command("true", nodes=1, slurm=singleton).submit()
    wait_until(lambda: second.status.reason == "Dependency")
    (first.run_dir.path / "told").touch()
    assert (first.end().state, second.end().state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert first.events("state")[-1]["t"] <= second.events("submitted")[0]["t"]


def test_a_signal_for_the_ranks_does_not_end_their_supervisor(cluster: Cluster) -> None:
    run = cluster.command(UNTIL_TOLD, nodes=2).start()
    cluster.call("scancel", "--batch", "--signal=USR1", run.handle)
    (run.run_dir.path / "told").touch()
    assert (run.end().state, run.state, len(run.events("submitted"))) == (JobState.SUCCEEDED, "SUCCEEDED", 1)


def test_a_killed_supervisor_without_restarts_is_the_cause_of_the_end(cluster: Cluster) -> None:
    run = cluster.command("sleep 600", nodes=2).start()
    run.kill("trainworks.backends.slurm.batch")
    assert run.end().state is JobState.FAILED
    assert (run.state, run.run_dir.read_status().cause) == ("FAILED", "agent_lost")
    wait_until(lambda: not run.processes())


def test_a_script_that_asks_for_requeue_is_requeued_as_slurm_would(cluster: Cluster) -> None:
    run = cluster.command(FIRST_TIME_FOR_EVER, nodes=1, slurm={"options": ["--requeue"]}).start()
    cluster.call("scontrol", "requeue", run.handle)
    assert (run.end().restarts, run.state) == (1, "SUCCEEDED")
    assert "requeued" in [event["cause"] for event in run.events("state")]


def test_jobs_whose_ends_a_crashed_slurmctld_has_forgotten_do_not_run_again(cluster: Cluster) -> None:
    """It comes back with a state from before their ends, misses them on their nodes, and requeues them."""
    sandbox, book = cluster.sandbox, cluster.folder / "book"
    command = f"echo begin >> {book}; while [ ! -e {book}.fail ]; do sleep 0.1; done; exit 9"
    failed, stopped = (cluster.command(command, nodes=1).start() for _ in range(2))
    state, earlier = sandbox.paths.folder / "state", cluster.folder / "earlier-state"
    sandbox.stop_controller()  # saves its state
    shutil.copytree(state, earlier)
    sandbox.start_controller()
    stopped.backend.stop(stopped.handle)
    assert stopped.end().state is JobState.STOPPED
    Path(f"{book}.fail").touch()
    assert failed.end().state is JobState.FAILED
    sandbox.stop_controller()
    shutil.rmtree(state)
    shutil.copytree(earlier, state)
    sandbox.start_controller()
    wait_until(lambda: "slurmctld has started since" in failed.run_dir.supervisor_log.read_text())
    wait_until(lambda: "slurmctld has started since" in stopped.run_dir.supervisor_log.read_text())
    assert (failed.end().state, stopped.end().state) == (JobState.FAILED, JobState.STOPPED)
    assert book.read_text().splitlines() == ["begin"] * 2


def test_a_crash_of_slurmctld_is_no_lost_node_and_costs_no_restart(cluster: Cluster) -> None:
    """It comes back with a state in which the job waits, while its first start runs, and starts it again."""
    sandbox, book, go = cluster.sandbox, cluster.folder / "crash-book", cluster.folder / "go"
    script = f"echo begin >> {book}; until [ -e {go} ]; do sleep 0.1; done; echo end >> {book}"
    run = cluster.command(script, nodes=1, hold=True).submit()
    state, earlier = sandbox.paths.folder / "state", cluster.folder / "waiting-state"
    sandbox.stop_controller()  # saves its state
    shutil.copytree(state, earlier)
    sandbox.start_controller()
    run.backend.release(run.handle)
    wait_until(lambda: run.state == "RUNNING")
    sandbox.stop_controller()
    shutil.rmtree(state)
    shutil.copytree(earlier, state)
    sandbox.start_controller()
    run.backend.release(run.handle)
    wait_until(lambda: run.status and "scheduler_lost" in {event["cause"] for event in run.events("state")})
    go.touch()
    assert (run.end().state, run.state) == (JobState.SUCCEEDED, "SUCCEEDED")
    assert book.read_text().splitlines()[-1] == "end"
    assert {event["cause"] for event in run.events("state")} == {None, "scheduler_lost"}
    assert restarts_used(read_events(run.run_dir.events_file)) == 0


def test_a_job_that_slurm_holds_because_a_node_failed_its_check_is_released(cluster: Cluster) -> None:
    conf = cluster.sandbox.paths.conf
    before = conf.read_text(encoding="utf-8")
    hook = cluster.folder / "prolog.sh"
    hook.write_text('#!/bin/bash\ntest "$SLURMD_NODENAME" != node2\n', encoding="utf-8")
    hook.chmod(0o755)
    conf.write_text(f"{before}Prolog={hook}\nPrologFlags=Alloc\n", encoding="utf-8")
    cluster.call("scontrol", "reconfigure")
    try:
        run = cluster.command("true", nodes=3).submit()
        assert (run.end().nodes, run.state) == (("node1", "node3", "node4"), "SUCCEEDED")
        assert run.backend.nodes()[1].state == "drained"
    finally:
        conf.write_text(before, encoding="utf-8")
        cluster.call("scontrol", "reconfigure")


def test_a_batch_script_runs_once_and_its_srun_makes_the_tasks(cluster: Cluster) -> None:
    run_file = cluster.folder / "own.sbatch"
    run_file.write_text(OWN_SCRIPT, encoding="utf-8")
    asked, _ = load_batch_script(run_file)
    run_dir = create_run_dir(cluster.folder / "runs", "own")
    processes = Processes(starts="once", nodes=2, processes_per_node=3, threads_per_process=1, device="cpu")
    run = Run(cluster, run_dir, resolved_command(run_dir.run_id, run_file=asked, processes=processes, command=None))
    seen = run.submit().end()
    assert seen.state is JobState.SUCCEEDED
    lines = run.rank_log(0).splitlines()
    assert lines[0] == f"batch on {seen.nodes[0]} with 6"
    assert sorted(lines[1:-1]) == [f"task {task} of 6 on {seen.nodes[task // 3]}" for task in range(6)]
    assert lines[-1] == "heard"


def test_a_script_has_any_interpreter_and_leaves_the_tasks_of_each_node_to_slurm(cluster: Cluster) -> None:
    script = cluster.folder / "own.py"
    script.write_text(PYTHON_SCRIPT, encoding="utf-8")
    asked, _ = load_batch_script(script)
    run_dir = create_run_dir(cluster.folder / "runs", "own-python")
    processes = Processes(starts="once", nodes=1, processes_per_node=1, threads_per_process=1, device="cpu")
    run = Run(cluster, run_dir, resolved_command(run_dir.run_id, run_file=asked, processes=processes, command=None))
    seen = run.submit().end()
    assert (seen.state, len(seen.nodes)) == (JobState.SUCCEEDED, 2)
    lines = run.rank_log(0).splitlines()
    assert (lines[0], sorted(lines[1:])) == ("batch_script 5", [f"task {task}" for task in range(5)])


def test_training_over_nodes_survives_what_a_drill_does_there_and_is_stopped_with_a_checkpoint(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="NOT TESTED: training under Slurm; there is no torch here")
    from tests.worker.harness import make_run, write_corpus

    corpus = write_corpus(cluster.folder / "corpus")
    size = {"cluster__nodes": 2, "cluster__processes_per_node": 1, "workload__train_for": "100000 steps"}
    size["recover__max_restarts"] = 2
    tiny = make_run(cluster.folder / "training", corpus, cluster.folder / "cache" / "data", **size)
    run = Run(cluster, tiny.run_dir, tiny.run_dir.read_resolved()).start()
    wait_until(tiny.a_checkpoint_is_complete)
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    drilled = DrilledJob(run.backend, SystemClock())
    hit_at = drilled.hit(run.run_dir, Victim.RANK, 1, signal.SIGKILL)
    wait_until(lambda: len(run.events("attempt")) == 2)
    (killed,) = [event for event in run.events("failure") if event["signal"] == "SIGKILL"]
    assert (killed["rank"], killed["pid"]) == (1, run.events("attempt")[0]["pids"][1]) and killed["t"] >= hit_at
    drilled.hit(run.run_dir, Victim.AGENT, 1, signal.SIGKILL)
    wait_until(lambda: len(run.events("attempt")) == 3)
    assert [event["node"] for event in run.events("restart")] == [1]
    run.backend.stop(run.handle)
    assert (run.end().state, run.state) == (JobState.STOPPED, "STOPPED")
    assert run.events("stopped") and run.events("attempt")[0]["world_size"] == 2
    assert len(run.events("submitted")) == 1


def test_a_workload_is_planned_and_measured_on_the_nodes_that_it_got(cluster: Cluster) -> None:
    pytest.importorskip("torch", reason="NOT TESTED: training under Slurm; there is no torch here")
    from tests.worker.harness import make_run, write_corpus

    corpus = write_corpus(cluster.folder / "corpus-planned")
    size = {"cluster__nodes": 2, "cluster__processes_per_node": 1, "workload__train_for": "3 steps"}
    tiny = make_run(cluster.folder / "planned", corpus, cluster.folder / "cache" / "data", **size)
    unplanned = on_engine(tiny.run_dir.read_resolved(), "slurm").model_copy(
        update={"plan": None, "calibration": None, "planner": (NODE_PLANNER,)}
    )
    run = Run(cluster, tiny.run_dir, unplanned).submit()
    assert (run.end().state, run.state) == (JobState.SUCCEEDED, "SUCCEEDED")
    resolved = tiny.run_dir.read_resolved()
    assert resolved.plan is not None and resolved.calibration is not None
    assert (resolved.calibration.num_ranks, resolved.calibration.all_reduce_bytes_per_s > 0) == (2, True)
    assert "step time" in tiny.run_dir.supervisor_log.read_text(encoding="utf-8")


def test_a_workload_that_cannot_be_trained_there_fails_with_the_reason(cluster: Cluster) -> None:
    pytest.importorskip("torch", reason="NOT TESTED: training under Slurm; there is no torch here")
    from tests.worker.harness import make_run, write_corpus

    corpus = write_corpus(cluster.folder / "corpus-refused")
    tiny = make_run(cluster.folder / "refused", corpus, cluster.folder / "cache" / "data")
    resolved = tiny.run_dir.read_resolved()
    asked = resolved.run_file.model_dump(exclude_unset=True)
    asked["workload"]["precision"] = "fp8"
    changes = {"plan": None, "planner": (NODE_PLANNER,), "run_file": RunFile.model_validate(asked)}
    unplanned = on_engine(resolved.model_copy(update=changes), "slurm")
    Run(cluster, tiny.run_dir, unplanned).submit().end()
    status = tiny.run_dir.read_status()
    assert (status.state, status.cause) == ("FAILED", "environment")
    assert "cannot train on the allocated nodes: precision fp8 is arithmetic of" in str(status.message)
