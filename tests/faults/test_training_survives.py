"""Whatever is killed, the run goes on to the same losses, or can; and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.faults.conftest import STEPS
from tests.faults.launcher import finished, interrupt, wait_until
from tests.metadata_service import metadata_service
from tests.worker.object_store import s3_server
from trainworks.record.events.log import read_events
from trainworks.record.manifest import complete_checkpoints
from trainworks.record.run_dir import RunDir
from trainworks.recover.memory_checkpoints import memory_folder
from trainworks.recover.restarts import restarts_used

pytestmark = [pytest.mark.slow, pytest.mark.lane("test-all")]
TWO_NODES = {"cluster": {"engine": "local", "nodes": 2, "processes_per_node": 1}}


def kinds(program):
    return [event["kind"] for event in read_events(program.run_dir.events_file)]


def of_kind(program, kind):
    return [event for event in read_events(program.run_dir.events_file) if event["kind"] == kind]


@pytest.mark.lane("test")
def test_a_run_ends_well_and_prints_its_report_to_stdout(program, write_run_file):
    with tempfile.TemporaryDirectory(prefix="tw-") as temporary:  # short: the paths of sockets are
        program.env["TMPDIR"] = temporary
        code, stdout, _ = program.run("run", write_run_file(program.folder))
        program.assert_nothing_left()
        left = {path.name for path in Path(temporary).iterdir() if not path.name.startswith("torchinductor_")}
    assert code == 0
    assert re.search(r"SUCCEEDED", stdout)
    assert program.run_dir.report_file.stat().st_size > 10_000
    assert left == set()


MODULE = """
import os, torch
def build_model():
    return torch.nn.Sequential(torch.nn.Linear(4, 1))
def build_dataset():
    print("in", os.environ["MODE"], flush=True)
    return torch.utils.data.TensorDataset(torch.zeros(16, 4), torch.zeros(16, 1))
def loss(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()
"""


def test_variables_of_a_run_file_are_those_of_the_ranks_of_a_workload(program):
    (program.folder / "net.py").write_text(MODULE)
    run_file = {
        "name": "net",
        "envs": {"MODE": "debug"},
        "cluster": {"processes_per_node": 1},
        "workload": {"task": "module", "model": {"module": "net.py"}, "global_batch": 4, "train_for": "3 steps"},
    }
    (program.folder / "net.yaml").write_text(json.dumps(run_file))
    code, _, stderr = program.run("run", "net.yaml")
    assert code == 0, stderr
    assert "in debug" in program.run_dir.rank_log(0).read_text()


@pytest.mark.lane("test")
def test_a_live_run_is_not_resumed_and_its_killed_rank_is_restarted_from_the_last_checkpoint(
    program, write_run_file, uninterrupted
):
    program.hold(36)
    running = program.start("run", write_run_file(program.folder))
    with program.held(36):
        code, _, stderr = program.run("resume")
        assert (code, f"process {program.supervisor().pid} on " in stderr) == (2, True), stderr
        program.rank(0).kill()
    code, _, stderr = finished(running)
    assert (code, program.curve()) == (0, uninterrupted)
    assert "killed by SIGKILL" in stderr
    *_, recovering = [event for event in of_kind(program, "state") if event["state"] == "RECOVERING"]
    assert (recovering["cause"], recovering["message"]) == ("killed", "killed by SIGKILL")
    program.assert_nothing_left()


def test_ranks_do_not_start_again_on_a_node_that_has_become_unfit(program, write_run_file):
    worn = program.folder / "worn"
    check = f"test ! -e {worn} || {{ echo the fan is broken; exit 4; }}"
    program.hold(20)
    running = program.start("run", write_run_file(program.folder, job={"health": check}))
    with program.held(20):
        worn.touch()
        program.rank(1).kill()
    assert finished(running)[0] == 3
    status = program.run_dir.read_status()
    assert (status.state, status.cause) == ("FAILED", "node_unhealthy")
    assert status.message.endswith(": the fan is broken (exit code 4)")
    assert kinds(program).count("ranks_started") == 1
    program.assert_nothing_left()


def test_killed_nodes_come_back_whether_they_serve_the_rendezvous_or_not(program, write_run_file, uninterrupted):
    program.hold(36, 70)
    running = program.start("run", write_run_file(program.folder, **TWO_NODES, recover__max_restarts=6))
    for node, step in enumerate((36, 70)):
        with program.held(step):
            program.agent(node).kill()
            wait_until(lambda node=node: node in {event["node"] for event in of_kind(program, "agent_lost")})
    code, _, stderr = finished(running)
    assert (code, program.curve()) == (0, uninterrupted), stderr
    program.assert_nothing_left()


@pytest.mark.lane("test")
def test_a_killed_supervisor_takes_everything_with_it_and_of_two_resumes_at_once_one_goes_on(
    program, write_run_file, uninterrupted
):
    program.hold(36, 60)
    running = program.start("run", write_run_file(program.folder))
    with program.held(36):
        program.supervisor().kill()
        code, _, stderr = finished(running)
        program.assert_nothing_left()
    assert code == 1
    assert "its supervisor is gone" in stderr and "trainworks resume" in stderr
    resuming = [program.start("resume"), program.start("resume")]
    with program.held(60):  # the one that goes on is not over before the other one looks
        wait_until(lambda: any(each.poll() is not None for each in resuming))
    both = [finished(each) for each in resuming]
    assert sorted(code for code, _, _ in both) == [0, 2], both
    (refused,) = (stderr for code, _, stderr in both if code == 2)
    run_id = program.run_dir.run_id
    assert re.search(rf"run {run_id} is already [A-Z]+: process \d+ on \S+ supervises it since [\d-]+ [\d:]+", refused)
    assert f"trainworks logs -f {run_id}" in refused and f"trainworks stop {run_id}" in refused
    assert program.curve() == uninterrupted


def newest_in_memory(program):
    """The step of the newest complete checkpoint in the memory of the first node; 0 without one."""
    folders = RunDir(memory_folder(program.run_dir) / "node-0")
    return max((manifest.step for manifest, _ in complete_checkpoints(folders)), default=0)


def test_a_killed_rank_or_node_repeats_few_steps_with_checkpoints_in_memory(program, write_run_file, uninterrupted):
    changes = TWO_NODES | {"checkpoint__every": f"{STEPS} steps", "checkpoint__memory_every": 1}
    program.hold(36, 70)
    running = program.start("run", write_run_file(program.folder, **changes))
    with program.held(36):  # a save takes several of these steps, and ends meanwhile
        wait_until(lambda: newest_in_memory(program) > 0)
        before_first = newest_in_memory(program)
        program.rank(1).kill()
    wait_until(lambda: len(of_kind(program, "attempt")) == 2)
    resumed = of_kind(program, "attempt")[1]["resumed_from_step"]
    with program.held(70):
        wait_until(lambda: newest_in_memory(program) > resumed)
        before_second = newest_in_memory(program)
        program.agent(1).kill()
        memory = memory_folder(program.run_dir)
        (memory / "node-1").rename(memory / "lost")  # at once: ranks that still end may write into it
    code, _, stderr = finished(running)
    assert (code, program.curve()) == (0, uninterrupted), stderr
    _, first, second = (event["resumed_from_step"] for event in of_kind(program, "attempt"))
    assert first >= before_first and second >= before_second > first
    assert not memory_folder(program.run_dir).exists()
    program.assert_nothing_left()


def test_a_run_on_a_node_that_its_cloud_takes_back_saves_and_goes_on_elsewhere(program, write_run_file, uninterrupted):
    with metadata_service() as service:
        program.env["GCE_METADATA_HOST"] = service.address.removeprefix("http://")
        changes = TWO_NODES | {"recover__notices": "gcp", "checkpoint__every": f"{STEPS} steps"}
        program.hold(20)
        running = program.start("run", write_run_file(program.folder, **changes))
        with program.held(20):
            service.change("preempted", "TRUE")
            wait_until(program.run_dir.stop_file.exists)
        code, _, stderr = finished(running)
    status = program.run_dir.read_status()
    assert (code, status.state, status.cause) == (75, "FAILED", "node_reclaimed"), stderr
    assert "gcp: preemption of node" in stderr
    program.assert_nothing_left()
    (saved,) = (manifest.step for manifest, _ in complete_checkpoints(program.run_dir))
    assert program.run("resume")[0] == 0
    (_, resumed) = [e for e in read_events(program.run_dir.events_file) if e["kind"] == "attempt"]
    assert resumed["resumed_from_step"] == saved >= 20
    assert program.curve() == uninterrupted


def test_a_run_that_lost_its_checkpoints_goes_on_from_a_copy_in_a_store(program, write_run_file, uninterrupted):
    with s3_server():
        program.env |= {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        program.hold(36)
        running = program.start("run", write_run_file(program.folder, checkpoint__copies="s3://bucket/far"))
        program.interrupt_after(36, running)
        finished(running)
        (*_, (newest, _)) = complete_checkpoints(program.run_dir)
        wait_until(lambda: any(e["step"] == newest.step for e in of_kind(program, "checkpoint_copied")))
        shutil.rmtree(program.run_dir.checkpoints)
        code, table, stderr = program.run("checkpoint", "verify", "--restore", "--json")
        assert (code, json.loads(table)[0]["step"]) == (0, newest.step), stderr
        assert program.run("resume")[0] == 0
    assert [e["step"] for e in of_kind(program, "checkpoint_restored")] == [newest.step]
    assert of_kind(program, "attempt")[-1]["resumed_from_step"] == newest.step
    assert program.curve() == uninterrupted


def test_a_killed_command_line_stops_its_run_with_a_checkpoint(program, write_run_file):
    program.hold(30)
    running = program.start("run", write_run_file(program.folder))
    with program.held(30):
        running.kill()
        wait_until(program.run_dir.stop_file.exists)
    running.communicate()
    program.assert_nothing_left()
    assert program.run_dir.read_status().state == "STOPPED"
    assert complete_checkpoints(program.run_dir)[-1][0].step >= 30


@pytest.mark.lane("test")
def test_ctrl_c_stops_with_a_checkpoint_and_resume_goes_on_past_a_damaged_one_and_with_another_number_of_ranks(
    program, write_run_file, uninterrupted
):
    program.hold(30, 60, 90)
    running = program.start("run", write_run_file(program.folder))
    program.interrupt_after(30, running)
    code, _, stderr = finished(running)
    assert code == 130
    assert "Traceback" not in stderr and "trainworks resume" in stderr
    program.assert_nothing_left()
    stopped_at = next(e["step"] for e in read_events(program.run_dir.events_file) if e["kind"] == "stopped")
    assert complete_checkpoints(program.run_dir)[-1][0].step == stopped_at

    running = program.start("resume")
    program.interrupt_after(60, running)
    finished(running)
    assert program.curve() == uninterrupted[: len(program.curve())]
    newest = complete_checkpoints(program.run_dir)[-1][1]
    part = next(newest.glob("*.safetensors"))
    part.write_bytes(part.read_bytes()[:-1])

    running = program.start("resume")
    program.interrupt_after(90, running)
    _, _, stderr = finished(running)
    assert len(program.curve()) >= 90 and program.curve() == uninterrupted[: len(program.curve())]
    damaged = r"checkpoint of step \d+ is damaged: rank-\d.safetensors: .* bytes instead of .*; resuming"
    assert re.search(damaged, stderr)

    assert program.run("resume", "--nproc", "1")[0] == 0
    losses = [loss for loss, _ in program.curve()]
    assert len(losses) == STEPS
    assert losses == pytest.approx([loss for loss, _ in uninterrupted], rel=1e-2)
    assert "is damaged: " in program.run("report")[1]


def test_a_second_ctrl_c_ends_at_once(program, write_run_file):
    program.hold(20)
    running = program.start("run", write_run_file(program.folder))
    with program.held(20):
        interrupt(running)
        wait_until(program.run_dir.stop_file.exists)
        interrupt(running)
        assert finished(running)[0] == 130
    program.assert_nothing_left()


def test_a_finished_run_goes_on_as_if_it_had_been_longer(program, write_run_file, curve_of):
    constant = {"workload__optimizer": {"schedule": "constant"}, "workload__train_for": "36 steps"}
    longer = curve_of("constant", **constant | {"workload__train_for": "60 steps"})
    assert program.run("run", write_run_file(program.folder, **constant))[0] == 0
    assert program.curve() == longer[:36]
    code, _, stderr = program.run("resume", "--train-for", "48 steps")
    assert code == 0 and "changed: steps: 36 -> 48" in stderr
    assert program.curve() == longer[:48]
    others = ("--layout", "dp_shard=2", "--set", "guard.window=64")
    code, _, stderr = program.run("resume", "--train-for", "60 steps", *others)
    assert code == 0 and "changed: guard.window: 128 -> 64" in stderr and "changed: layout.dp_shard: 1 -> 2" in stderr
    assert [loss for loss, _ in program.curve()] == pytest.approx([loss for loss, _ in longer], rel=1e-2)
    changed = [event["changes"] for event in read_events(program.run_dir.events_file) if event["kind"] == "changed"]
    assert [one["key"] for one in changed[0]] == ["workload.train_for", "steps"]
    assert program.run("resume")[0] == 2


def test_a_submitted_run_survives_its_shell_and_goes_on_in_the_queue_once_it_has_finished(
    program, write_run_file, curve_of
):
    constant = {"workload__optimizer": {"schedule": "constant"}, "workload__train_for": "36 steps"}
    longer = curve_of("constant", **constant | {"workload__train_for": "60 steps"})
    code, run_id, _ = program.run("submit", write_run_file(program.folder, **constant))
    assert (code, run_id.strip()) == (0, "tiny-1")
    assert program.run("logs", "-f", "tiny-1")[0] == 0
    assert program.run("status", "tiny-1")[1].split()[:4] == ["run", "tiny-1", "state", "SUCCEEDED"]
    assert program.curve() == longer[:36]
    assert program.run("retry", "tiny-1")[0] == 2
    assert program.run("resume", "--background", "--train-for", "60 steps")[0] == 0
    assert program.run("wait")[0] == 0
    assert program.curve() == longer


@pytest.mark.lane("test")
def test_restarts_are_limited(program, write_run_file):
    program.hold(30, 70)
    running = program.start("run", write_run_file(program.folder, recover={"max_restarts": 1}))
    for step in (30, 70):
        with program.held(step):
            program.rank(0).kill()
    code, _, stderr = finished(running)
    assert code == 137
    assert "killed by SIGKILL" in stderr and "the checkpoint of step" in stderr
    program.assert_nothing_left()


def test_ranks_agents_and_supervisors_share_one_budget_of_restarts(program, write_run_file):
    """One victim of every kind, each after the ranks have met again; the last one is a restart too many."""
    run_file = write_run_file(program.folder, recover={"max_restarts": 3}, workload__train_for="100000 steps")
    program.run("submit", run_file)
    victims = (program.supervisor, lambda: program.agent(0), lambda: program.rank(1), lambda: program.agent(0))
    for lives, victim in enumerate(victims, start=1):
        wait_until(lambda lives=lives: kinds(program).count("attempt") == lives)
        victim().kill()
        program.run("ps")
    wait_until(lambda: program.run_dir.read_status().state == "FAILED")
    events = read_events(program.run_dir.events_file)
    assert (restarts_used(events), kinds(program).count("ranks_started")) == (3, 4)
    program.assert_nothing_left()


def test_stop_ends_a_submitted_run(program, write_run_file):
    program.run("submit", write_run_file(program.folder, workload__train_for="20000 steps"))
    program.wait_for_step(20)
    assert program.run("stop", "tiny-1") == (0, "tiny-1 STOPPED\n", "")
    assert "STOPPED" in program.run("ls")[1]
    program.assert_nothing_left()


def test_files_of_the_folder_do_not_shadow_the_libraries(program, write_run_file):
    for name in ("random.py", "queue.py", "torch.py"):
        (program.folder / name).write_text("raise SystemExit('shadowed')\n")
    code, _, stderr = program.run("run", write_run_file(program.folder, workload__train_for="3 steps"))
    assert code == 0, stderr


def test_a_run_that_still_has_processes_is_not_started_again(program, write_run_file):
    program.run("submit", write_run_file(program.folder, workload__train_for="20000 steps"))  # killed with the test
    program.wait_for_step(20)
    program.run_dir.status_file.unlink()  # whoever looks must think that nobody has launched it
    code, _, stderr = program.run("resume")
    # The supervisor may have written its next state meanwhile.
    assert (code, "still has processes" in stderr) == (3, True) or (code, "is already" in stderr) == (2, True), stderr


def test_a_stop_before_the_first_step_does_not_wait(program, write_run_file):
    running = program.start("run", write_run_file(program.folder))
    wait_until(lambda: (program.folder / "runs").is_dir() and program.run_dir.node_log(0).exists())
    interrupt(running)
    assert finished(running)[0] == 130
    wait_until(lambda: program.run_dir.read_status().state == "STOPPED")
    program.assert_nothing_left()


def test_where_every_checkpoint_is_damaged_one_error_says_so_and_does_not_advise_to_resume(program, write_run_file):
    program.hold(30)
    running = program.start("run", write_run_file(program.folder))
    program.interrupt_after(30, running)
    finished(running)
    for _, folder in complete_checkpoints(program.run_dir):
        content = bytearray((folder / "metadata.json").read_bytes())
        content[len(content) // 2] ^= 1
        (folder / "metadata.json").write_bytes(content)
    code, _, stderr = program.run("resume")
    assert (code, "Traceback" in stderr) == (3, False)
    error = stderr[stderr.index("error: ") :]
    each = r"step \d+: metadata\.json: checksum differs"
    assert re.search(f"no checkpoint can be loaded: {each}; {each}", error)
    assert "start a new run: trainworks run" in error and "trainworks resume" not in error
    program.assert_nothing_left()
