"""What the processes below another one have used, counted without losing those that have ended."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from trainworks.host import process
from trainworks.host.process_tree import ProcessTree, children_of

BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
"""300 ms of a core."""


class Shell:
    """A process whose descendants are looked at."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            ["bash"], stdin=pipe, stdout=pipe, text=True, bufsize=1, start_new_session=True
        )
        self.pid = self._process.pid

    def do(self, command: str) -> None:
        """Let it run a command to its end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{command}\necho done\n")
        while self._process.stdout.readline() != "done\n":
            pass

    def begin_to_sleep(self, command: str = "") -> int:
        """Let a child run a command and then sleep; returns its id once it sleeps and the command's end is counted."""
        self.do(f"({command or ':'}; exec sleep 60) &")
        while not (asleep := [pid for pid, title in children_of(self.pid).items() if title == "sleep 60"]):
            time.sleep(0.01)
        while process.state(asleep[0]) != "S":
            time.sleep(0.01)
        return asleep[0]

    def end(self) -> None:
        """End it, and what it left."""
        os.killpg(self.pid, signal.SIGKILL)
        self._process.communicate()


@pytest.fixture
def shell() -> Iterator[Shell]:
    shell = Shell()
    yield shell
    shell.end()


def burn(before: str = "") -> str:
    return f"{before} {sys.executable} -c '{BURN}'"


def uses_more(tree: ProcessTree, cpu_s: float) -> bool:
    """Whether the tree comes to use more processor time than this, however busy the machine is."""
    deadline = time.monotonic() + 240
    while tree.look().cpu_s <= cpu_s and time.monotonic() < deadline:
        time.sleep(0.05)
    return tree.look().cpu_s > cpu_s


def test_sleeping_uses_nothing(shell: Shell) -> None:
    shell.begin_to_sleep()
    tree = ProcessTree(shell.pid)
    before = tree.look()
    time.sleep(0.3)
    after = tree.look()
    assert (after.cpu_s - before.cpu_s, after.waits_for_disk) == (0.0, False)


def test_a_child_that_has_ended_counts(shell: Shell) -> None:
    tree = ProcessTree(shell.pid)
    before = tree.look().cpu_s
    shell.do(burn())
    assert 0.25 <= tree.look().cpu_s - before < 1.0


def test_a_grandchild_that_has_ended_counts(shell: Shell) -> None:
    shell.do("bash -c 'sleep 60; true' &")
    tree = ProcessTree(shell.pid)
    before = tree.look().cpu_s
    shell.do("bash -c " + shlex.quote(f"{burn()}; true"))
    assert 0.25 <= tree.look().cpu_s - before < 1.0


def test_a_child_that_ends_is_not_counted_again_with_its_parent(shell: Shell) -> None:
    tree = ProcessTree(shell.pid)
    child = shell.begin_to_sleep(burn())
    seen = tree.look().cpu_s
    shell.do(f"kill {child}; wait")
    assert seen >= 0.25 and tree.look().cpu_s - seen < 0.1


def test_the_root_itself_does_not_count(shell: Shell) -> None:
    tree = ProcessTree(shell.pid)
    before = tree.look().cpu_s
    shell.do("for ((i = 0; i < 200000; i++)); do :; done")
    assert tree.look().cpu_s == before


def test_children_that_nobody_waits_for_count_while_they_live() -> None:
    """The child lives on after its work: a look may come late. Its parent alone uses less."""
    script = "import signal, subprocess, sys, time; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    script += f"subprocess.Popen([sys.executable, '-c', {BURN + 'time.sleep(600)'!r}]); time.sleep(600)"
    command = [sys.executable, "-c", script]
    tree = ProcessTree(os.getpid())
    before = tree.look().cpu_s
    with subprocess.Popen(command, process_group=0) as ignoring:
        try:
            assert uses_more(tree, before + 0.2)
        finally:
            os.killpg(ignoring.pid, signal.SIGKILL)


def test_what_is_written_counts_and_is_not_counted_again(shell: Shell) -> None:
    tree = ProcessTree(shell.pid)
    child = shell.begin_to_sleep("head -c 3000000 /dev/zero > /dev/null")
    seen = tree.look().io_bytes
    shell.do(f"kill {child}; wait")
    after = tree.look().io_bytes
    assert seen is not None and after is not None
    assert 6_000_000 <= seen < 7_000_000 and after - seen < 100_000


def test_a_marked_process_that_is_not_below_counts(shell: Shell) -> None:
    tree = ProcessTree(shell.pid, {"TRAINWORKS_TEST_MARK": f"{shell.pid}"})
    before = tree.look().cpu_s
    env = os.environ | {"TRAINWORKS_TEST_MARK": f"{shell.pid}"}
    with subprocess.Popen([sys.executable, "-c", BURN + "time.sleep(600)"], env=env) as other:
        try:
            assert uses_more(tree, before + 0.2)
        finally:
            other.kill()


def test_an_unmarked_one_does_not_count(shell: Shell) -> None:
    tree = ProcessTree(shell.pid, {"TRAINWORKS_TEST_MARK": f"{shell.pid}"})
    before = tree.look().cpu_s
    command = [sys.executable, "-c", BURN + "print(flush=True); time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == b"\n"
            assert tree.look().cpu_s == before
        finally:
            other.kill()


def test_a_look_opens_three_small_files_of_a_process() -> None:
    """A sample stays cheap on a machine of a thousand processes, too."""
    tree = ProcessTree(os.getppid(), {"TRAINWORKS_TEST_MARK": "none"})
    opened: list[str] = []
    watching, here = True, threading.get_ident()  # a thread that another test left may look, too

    def hear(event: str, args: tuple[object, ...]) -> None:
        if watching and event == "open" and threading.get_ident() == here:
            opened.append(str(args[0]))

    sys.addaudithook(hear)
    tree.look()
    watching = False
    of_processes = Counter(path.split("/")[2] for path in opened if path.startswith("/proc/"))
    assert str(os.getpid()) in of_processes
    assert (
        max(count for process, count in of_processes.items() if process != str(os.getpid())) <= 3
    )  # stat, environ and io
