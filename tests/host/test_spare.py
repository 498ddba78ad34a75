"""A copy that waits for its order does it once, and ends with whoever made it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from trainworks.files import take_lock
from trainworks.host import forking, process
from trainworks.host.forking import Order, Spare


def until(condition: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def talkative() -> Order:
    """Says what it was told, and which process says so."""
    born = os.getpid()

    def work(text: str, handles: Sequence[int]) -> int:
        os.write(1, f"{text} {born == os.getpid()} {os.get_inheritable(handles[0])}\n".encode())
        return 7

    return work


def test_a_copy_does_its_order_and_writes_to_its_log(tmp_path: Path) -> None:
    spare = Spare(talkative)
    assert spare.waits()
    with (tmp_path / "any").open("w") as file:
        child = spare.order("do ünïcode\n$(x)", [file.fileno()], log=tmp_path / "log")
    assert child.wait(60.0) == 7
    assert (tmp_path / "log").read_text() == "do ünïcode\n$(x) True False\n"
    assert not spare.waits()


def test_a_lock_that_comes_with_an_order_is_never_free(tmp_path: Path) -> None:
    spare = Spare(lambda: lambda text, lock: time.sleep(60) or 0)
    lock = take_lock(tmp_path / "lock")
    assert lock is not None
    child = spare.order("", [lock], log=tmp_path / "log")
    os.close(lock)
    assert take_lock(tmp_path / "lock") is None
    process.kill(child.pid)
    child.wait(60.0)
    freed = take_lock(tmp_path / "lock")
    assert freed is not None
    os.close(freed)


def test_a_copy_that_nobody_needs_ends(tmp_path: Path) -> None:
    spare = Spare(talkative)
    spare.dismiss()
    assert not spare.waits()
    until(lambda: psutil.Process(spare._child.pid).status() == psutil.STATUS_ZOMBIE)
    assert spare._child.wait(60.0) == 0


def test_a_copy_ends_with_whoever_made_it(tmp_path: Path) -> None:
    def make() -> int:
        spare = Spare(lambda: lambda text, handle: 0, new_session=True)
        (tmp_path / "pid").write_text(f"{spare._child.pid}\n")
        time.sleep(60)
        return 0

    maker = forking.fork(make, log=tmp_path / "log")
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    pid = int((tmp_path / "pid").read_text())
    assert psutil.pid_exists(pid)
    os.kill(maker.pid, signal.SIGKILL)
    maker.wait(60.0)
    process.wait_for_end(pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_copy_that_was_killed_waits_for_nothing(number: signal.Signals) -> None:
    heard, born = os.pipe()
    spare = Spare(lambda: os.write(born, b"born") and talkative())  # before, handlers of this process may be its own
    assert os.read(heard, 4) == b"born"
    os.kill(spare._child.pid, number)
    spare._child.wait(60.0)
    assert not spare.waits()
    spare.dismiss()
    os.close(heard)
    os.close(born)
