"""Commands of one's own: the ranks they see, how they end, what they leave."""

from __future__ import annotations

import pytest

from tests.faults.launcher import finished, interrupt, output, wait_until
from trainworks.files import take_lock
from trainworks.host import process
from trainworks.record.events.log import read_events

pytestmark = [pytest.mark.slow, pytest.mark.lane("test-all")]
SHOW = (
    "import os; print(*(os.environ[k] for k in ('RANK','WORLD_SIZE','LOCAL_RANK','MASTER_ADDR','SKYPILOT_NODE_RANK')))"
)


@pytest.mark.lane("test")
def test_every_rank_of_every_node_knows_its_place(program):
    code, _, stderr = program.run("run", "--nodes", "2", "--nproc", "2", "--name", "show", "--", "python", "-c", SHOW)
    assert code == 0, stderr
    lines = [program.run_dir.rank_log(rank).read_text().strip() for rank in range(4)]
    assert lines == [f"{rank} 4 {rank % 2} 127.0.0.1 {rank // 2}" for rank in range(4)]


def test_the_ranks_can_meet_in_a_process_group(program):
    script = (
        "import torch.distributed as dist, torch; dist.init_process_group('gloo'); t = torch.ones(1) * dist.get_rank();"
        " dist.all_reduce(t); print(int(t)); dist.destroy_process_group()"
    )
    code, _, stderr = program.run("run", "--nproc", "2", "--name", "meet", "--", "python", "-c", script)
    assert code == 0, stderr
    assert program.run_dir.rank_log(1).read_text().split()[-1] == "1"


@pytest.mark.lane("test")
def test_a_script_that_fails_is_named_with_its_last_words_and_its_exit_code(program):
    script = "import os, sys, time; r = int(os.environ['RANK']); r == 1 and sys.exit('no such luck'); time.sleep(60)"
    code, _, stderr = program.run("run", "--nproc", "2", "--name", "fail", "--", "python", "-c", script)
    assert code == 1
    assert "the command exited with code 1: no such luck" in stderr and "rank 1 on node 0" in stderr
    assert "Traceback" not in stderr
    program.assert_nothing_left()


def test_the_exit_code_is_passed_on(program):
    assert program.run("run", "--name", "seven", "--", "bash", "-c", "exit 7")[0] == 7


@pytest.mark.lane("test")
def test_a_failure_on_one_node_ends_the_other(program):
    script = "import os, sys, time; os.environ['NODE_RANK'] == '1' and sys.exit(9); time.sleep(60)"
    code, _, _ = program.run("run", "--nodes", "2", "--name", "fail", "--", "python", "-c", script)
    assert code == 9
    program.assert_nothing_left()


@pytest.mark.lane("test")
def test_ctrl_c_ends_a_command_and_the_grandchildren_that_it_hides(program):
    hide = (
        "import subprocess, time; subprocess.Popen(['sleep', '300'], start_new_session=True);"
        " print('up', flush=True); time.sleep(300)"
    )
    running = program.start("run", "--name", "hide", "--", "python", "-c", hide)
    wait_until(
        lambda: "up" in (program.run_dir.rank_log(0).read_text() if program.run_dir.rank_log(0).exists() else "")
    )
    interrupt(running)
    assert finished(running)[0] == 130
    program.assert_nothing_left()


@pytest.mark.lane("test")
def test_a_command_is_restarted_as_often_as_asked_and_ends_with_a_report(program):
    (program.folder / "run.yaml").write_text(
        "name: again\nrun: echo hello; test $TRAINWORKS_ATTEMPT = 3\nrecover: {max_restarts: 2}\n"
    )
    code, stdout, stderr = program.run("run", "run.yaml")
    assert (code, set(stdout.splitlines())) == (0, {"hello"})
    report = stderr.partition("again-1  SUCCEEDED after ")[2]
    assert "trainworks report again-1" in report and len(report.splitlines()) <= 10
    assert "restarts  2  rank 0 user_error" in report
    report = program.ask("report", "again-1")[1]
    assert "$ echo hello; test $TRAINWORKS_ATTEMPT = 3" in report
    assert [line[:2] for line in report.splitlines() if ": started after" in line] == ["1:", "2:", "3:"]
    assert program.run_dir.report_file.is_file()


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("import no_such_module", "not restarted"),
        ('raise AssertionError("Torch not compiled with CUDA enabled")', "hint: if the program takes `RANK` for GPUs"),
    ],
)
def test_a_command_that_misses_a_module_or_a_gpu_is_not_started_again(program, line, hint):
    (program.folder / "run.yaml").write_text(
        f"name: again\nrun: |\n  python -c '{line}'\nrecover: {{max_restarts: 2}}\n"
    )
    code, _, stderr = program.run("run", "run.yaml")
    events = read_events(program.run_dir.events_file)
    assert (code, sum(event["kind"] == "attempt" for event in events)) == (1, 1)
    assert "not restarted: its program cannot start as it is written" in stderr and hint in stderr
    assert "max_restarts" not in stderr


def test_a_failed_command_without_restarts_hints_at_them(program):
    code, _, stderr = program.run("run", "--", "bash", "-c", "exit 7")
    assert code == 7
    assert "hint: set `recover: {max_restarts: 3}` in a run file" in stderr


def test_a_run_whose_launcher_was_killed_says_so(program):
    running = program.start("run", "--", "sleep", "600")
    wait_until(lambda: program.run_dir.read_status().state == "RUNNING")
    running.kill()
    wait_until(lambda: program.run_dir.read_status().state == "STOPPED")
    status = program.run_dir.read_status()
    assert (status.cause, status.message) == ("killed", "the process that started it was killed")


def test_the_status_file_says_at_once_that_a_supervisor_was_killed(program):
    """Its agent writes it, though the rank does not end; the lock of the run is free once both have."""
    (program.folder / "run.yaml").write_text(
        "name: slow\nrun: trap '' TERM; echo up; while true; do sleep 0.1; done\njob: {grace: 10 min}\n"
    )
    program.start("run", "run.yaml")
    wait_until(lambda: "up" in output(program) and program.run_dir.read_status().state == "RUNNING")
    before = program.run_dir.read_status()
    process.kill(before.supervisor_pid)
    wait_until(lambda: program.run_dir.read_status().state == "LOST")
    after = program.run_dir.read_status()
    assert (after.cause, after.updated_at) == ("agent_lost", before.updated_at)
    assert take_lock(program.run_dir.lock_file) is None
    program.kill_all()
    wait_until(lambda: take_lock(program.run_dir.lock_file) is not None)


def test_setup_runs_before_the_command_and_variables_reach_both(program):
    (program.folder / "run.yaml").write_text(
        "name: prepared\nsetup: echo $WORD > word.txt\nrun: grep -q $WORD word.txt\nenvs: {WORD: hello}\n"
    )
    assert program.run("run", "run.yaml")[0] == 0


def test_a_setup_that_fails_is_said_to(program):
    (program.folder / "run.yaml").write_text("name: broken\nsetup: echo oh no; exit 4\nrun: echo never\n")
    code, _, stderr = program.run("run", "run.yaml")
    assert code == 4
    assert "setup exited with code 4: oh no" in stderr


def test_a_program_that_does_not_exist(program):
    code, _, stderr = program.ask("run", "--", "no-such-program", "--lr", "1")
    assert code == 2
    assert "`no-such-program` is neither a run file (*.yaml), nor a batch script (*.sbatch), nor a program" in stderr


def test_ctrl_c_during_setup_ends_it_and_starts_nothing(program):
    (program.folder / "run.yaml").write_text("name: slow\nsetup: touch began; sleep 300\nrun: touch never\n")
    running = program.start("run", "run.yaml")
    wait_until((program.folder / "began").exists)
    interrupt(running)
    assert finished(running)[0] == 130
    assert not (program.folder / "never").exists()
    program.assert_nothing_left()


def test_torchrun_is_not_started_once_per_rank(program):
    code, _, stderr = program.ask("run", "--nproc", "2", "--", "bash", "-c", "torchrun $TORCHRUN_ARGS train.py")
    assert code == 2
    assert "torchrun would be started 2 times" in stderr


def test_a_command_prints_where_it_was_started(program):
    _, stdout, _ = program.run("run", "--nproc", "2", "--name", "show", "--", "bash", "-c", "echo I am $RANK")
    assert sorted(stdout.splitlines()) == ["[rank-0] I am 0", "[rank-1] I am 1"]
