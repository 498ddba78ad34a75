"""Processes end when they should, and are known by more than their number."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from trainworks.host import process

FAMILY = """
import sys
from pathlib import Path
from trainworks.host import process
process.adopt_orphans()
child = process.spawn(["sh", "-c", sys.argv[1]], log=Path(sys.argv[2]))
while "up" not in Path(sys.argv[2]).read_text():
    pass
print(process.end_descendants(float(sys.argv[3])))
"""
DIES_WITH_ITS_PARENT = """
import sys, time
from trainworks.host import process
process.die_with_parent(9, int(sys.argv[1]))
print("armed", flush=True)
time.sleep(60)
"""
LEAVES_A_CHILD = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], stderr=2, stdout=subprocess.PIPE)
child.stdout.readline()
os._exit(0)
"""


def end_family(script: str, folder: Path, grace_s: float) -> tuple[int, list[str]]:
    """How many of a shell's family had to be killed, and who of them is left."""
    mark = f"TRAINWORKS_TEST={folder}"
    command = [sys.executable, "-c", FAMILY, f": {mark}; {script}", folder / "log", str(grace_s)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    left = [found.info["cmdline"] for found in psutil.process_iter(["cmdline"]) if mark in str(found.info["cmdline"])]
    return int(done.stdout), left


def wait_until(condition) -> None:
    """The kernel takes a moment."""
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline


def test_this_process_runs() -> None:
    assert process.is_running(*process.identity())


def test_a_reused_process_id_is_somebody_else() -> None:
    pid, started_at = process.identity()
    assert not process.is_running(pid, started_at - 60)


def test_a_process_id_that_nobody_has_does_not_run() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert not process.is_running(child.pid, time.time())


def test_a_zombie_does_not_run() -> None:
    with subprocess.Popen(["true"]) as child:
        started_at = psutil.Process(child.pid).create_time()
        wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
        assert not process.is_running(child.pid, started_at)


def test_a_family_that_listens_is_terminated_and_not_killed(tmp_path: Path) -> None:
    assert end_family("echo up; exec sleep 600", tmp_path, 120) == (0, [])


def test_a_grandchild_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    killed, left = end_family("(trap '' TERM; echo up; while :; do sleep 0.1; done) & wait", tmp_path, 0.3)
    assert killed >= 1
    assert left == []


def test_a_grandchild_whose_parent_has_ended_is_found_too(tmp_path: Path) -> None:
    killed, left = end_family("(trap '' TERM; echo up; while :; do sleep 0.1; done) & exit", tmp_path, 0.3)
    assert killed >= 1
    assert left == []


def test_without_descendants_there_is_nothing_to_end() -> None:
    """In a process of its own: this one may have those that other tests left."""
    program = "import sys; from trainworks.host import process; sys.exit(process.end_descendants(10))"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_a_process_dies_with_its_parent() -> None:
    """The pipe of stderr is closed when the last of the two has ended."""
    command = [sys.executable, "-c", LEAVES_A_CHILD, DIES_WITH_ITS_PARENT]
    done = subprocess.run(command, stderr=subprocess.PIPE, check=True, timeout=60)
    assert done.stderr == b""


def test_a_process_whose_parent_is_already_gone_dies_at_once() -> None:
    program = "from trainworks.host import process; process.die_with_parent(9, -1); print('alive')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")


def test_a_process_whose_parent_lives_goes_on() -> None:
    program = f"from trainworks.host import process; process.die_with_parent(9, {os.getpid()}); print('alive')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"alive\n")


def test_output_is_appended_to_the_log(tmp_path: Path) -> None:
    for word in ("one", "two"):
        process.spawn(["sh", "-c", f"echo {word}; echo error >&2"], log=tmp_path / "log").wait()
    assert (tmp_path / "log").read_text() == "one\nerror\ntwo\nerror\n"


def test_a_child_gets_the_environment_and_the_folder_that_it_is_given(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process.spawn(["/bin/sh", "-c", "echo $WORD in $PWD"], log=log, env={"WORD": "it"}, folder=tmp_path).wait()
    assert log.read_text() == f"it in {tmp_path}\n"


def test_a_running_child_has_no_exit_code(tmp_path: Path) -> None:
    child = process.spawn(["sleep", "60"], log=tmp_path / "log")
    assert (child.exit_code(), child.wait(timeout_s=0.01)) == (None, None)
    child.signal_group(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


@pytest.mark.parametrize(("trap", "code"), [("", -signal.SIGTERM), ("trap '' TERM; ", -signal.SIGKILL)])
def test_a_child_is_ended_and_killed_only_if_it_does_not_listen(tmp_path: Path, trap: str, code: int) -> None:
    child = process.spawn(["sh", "-c", f"{trap}echo up; while :; do sleep 0.1; done"], log=tmp_path / "log")
    wait_until(lambda: (tmp_path / "log").read_text() == "up\n")
    child.end(60.0 if code == -signal.SIGTERM else 0.1)
    assert child.exit_code() == code


def test_signalling_a_group_that_is_gone_does_nothing(tmp_path: Path) -> None:
    child = process.spawn(["true"], log=tmp_path / "log")
    child.wait()
    child.signal_group(signal.SIGTERM)


def test_a_command_is_run_to_its_end() -> None:
    output = process.run(["sh", "-c", "echo data; echo talk >&2; exit 3"])
    assert output == process.Output(exit_code=3, stdout="data\n", stderr="talk\n")


def test_a_program_of_ours_runs_with_this_interpreter() -> None:
    output = process.run([*process.python_program("import sys; print(sys.executable, sys.argv[1])"), "x"])
    assert output.stdout == f"{sys.executable} x\n"


def test_the_exit_code_of_a_killed_child_is_its_signal(tmp_path: Path) -> None:
    program = (
        "from trainworks.host import process; from pathlib import Path\n"
        f"child = process.spawn(['sleep', '60'], log=Path({str(tmp_path / 'log')!r}))\n"
        "process.end_descendants(0); print(child.exit_code())"
    )
    assert process.run(process.python_program(program)).stdout in ("-9\n", "-15\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_process_that_ends_itself_by_a_signal_shows_which(number: signal.Signals) -> None:
    program = (
        f"import signal; from trainworks.host import process\nsignal.signal(15, print)\nprocess.end_by_signal({number})"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -number


def test_every_signal_by_which_a_child_may_end_has_a_name() -> None:
    numbers = (signal.SIGKILL, signal.SIGRTMIN + 5, 32)
    assert [process.signal_name(number) for number in numbers] == ["SIGKILL", "SIGRTMIN+5", "SIGRTMIN-2"]


def test_a_command_reads_what_it_is_given() -> None:
    assert process.run(["cat"], stdin="grün\n").stdout == "grün\n"


def test_a_command_that_is_given_nothing_reads_nothing() -> None:
    assert process.run(["cat"], timeout_s=60).stdout == ""


def test_processes_are_found_by_the_variables_that_they_were_started_with(tmp_path: Path) -> None:
    mark = {"TRAINWORKS_TEST_MARK": str(tmp_path)}
    child = process.spawn(["sleep", "60"], log=tmp_path / "log", env=os.environ | mark)
    wait_until(lambda: [one.pid for one in process.processes_with(mark)] == [child.pid])  # exec closes pipes earlier
    child.signal_group(signal.SIGKILL)
    child.wait()
    assert process.processes_with(mark) == []


def test_a_process_has_children_until_it_has_waited_for_all() -> None:
    program = (
        "import subprocess; from trainworks.host import process; before = process.has_children(); "
        "child = subprocess.Popen(['true']); running = process.has_children(); child.wait(); "
        "print(before, running, process.has_children())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "False"]


def test_what_is_left_behind_outlives_the_tree_and_says_nothing(tmp_path: Path) -> None:
    program = (
        "import os; from pathlib import Path; from trainworks.host import forking, process\n"
        "def work():\n"
        "    print('heard by nobody'); process.wait_for_end(parent)\n"
        f"    Path({str(tmp_path / 'done')!r}).write_text('done')\n"
        "parent = os.getpid()\n"
        "forking.leave_behind(work); print(process.end_descendants(0))"
    )
    assert process.run(process.python_program(program), timeout_s=60).stdout == "0\n"
    deadline = time.monotonic() + 240
    while not (tmp_path / "done").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nobody_waits_for_a_process_that_is_gone(tmp_path: Path) -> None:
    child = process.spawn(["true"], log=tmp_path / "log")
    child.wait()
    process.wait_for_end(child.pid)


def test_a_process_with_a_thousand_open_files_can_wait_for_another(tmp_path: Path) -> None:
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("NOT TESTED: more than a thousand open files; the limit is lower")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, 2048), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        child = process.spawn(["sleep", "0.1"], log=tmp_path / "log")
        process.wait_for_end(child.pid)
        assert child.exit_code() == 0
    finally:
        for file in opened:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def test_a_program_takes_the_place_of_another() -> None:
    program = (
        "from trainworks.host import process; process.replace(['sh', '-c', 'echo $A'], {'A': '1', 'PATH': '/bin'})"
    )
    assert process.run(process.python_program(program)).stdout == "1\n"


def test_lines_of_several_commands_come_as_they_are_written_and_closing_ends_them(tmp_path: Path) -> None:
    later = tmp_path / "later"
    waits = f'until test -e "{later}"; do sleep 0.05; done; echo second; sleep 600'
    lines = process.lines_of({"a": ["bash", "-c", waits], "b": ["bash", "-c", "echo first; echo $$; exec sleep 600"]})
    assert next(lines) == ("b", "first\n")
    name, number = next(lines)
    later.touch()
    assert (name, next(lines)) == ("b", ("a", "second\n"))
    lines.close()
    assert not psutil.pid_exists(int(number))


def test_lines_of_several_commands_end_with_the_last_of_them() -> None:
    commands = {name: ["echo", name] for name in ("a", "b")}
    assert sorted(process.lines_of(commands)) == [("a", "a\n"), ("b", "b\n")]
    assert list(process.lines_of({})) == []


def test_bytes_that_are_no_text_end_none_of_several_outputs() -> None:
    commands = {"a": ["printf", r"one\377\n"], "b": ["echo", "two"]}
    assert sorted(process.lines_of(commands)) == [("a", "one\ufffd\n"), ("b", "two\n")]
