"""The node agent's eye, on a clock that stands still until it is told."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from trainworks.worker.health.hang import HangLimits, HangMonitor, Watched
from trainworks.worker.health.heartbeat import Beat, Heartbeat, HeartbeatBoard, Phase

SLEEPER = (
    "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}); print(flush=True);"
    " time.sleep(600)"
)


@pytest.fixture
def pids():
    """Two processes that take SIGUSR2 without ending."""
    processes = [subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        process.stdout.readline()
    yield [process.pid for process in processes]
    for process in processes:
        process.kill()
        process.communicate()


class Node:
    """A node of two ranks whose marks and time are the test's."""

    def __init__(self, pids, exchange=None, world_size=2):
        self.time = 100.0
        board = HeartbeatBoard(2)
        self.ranks = [Heartbeat((board.path, index)) for index in range(2)]
        self._monitor = HangMonitor(
            board, HangLimits(), world_size=world_size, exchange=exchange, now=lambda: self.time
        )
        self._monitor.begin(list(enumerate(pids)))

    def look_after(self, seconds, *, every=0.5):
        """The last verdict of looking for so long."""
        hang = None
        for _ in range(round(seconds / every)):
            self.time += every
            hang = self._monitor.look()
        return hang

    def train(self, steps=10, step_s=0.5):
        """Both ranks do some steps."""
        for step in range(1, steps + 1):
            for rank in self.ranks:
                rank.mark(Phase.DATA, step)
                rank.mark(Phase.COMPUTE, step)
            self.look_after(step_s)

    def answer(self, rank, waits_for):
        """A rank says what it waits for."""
        self.ranks[rank].answer(
            {"count": self.ranks[rank].last.count, "waits_for": waits_for, "where": "", "stack": ""}
        )


def test_ranks_that_go_on_are_never_judged(pids):
    node = Node(pids)
    node.train(steps=100)
    assert node.look_after(9.0) is None


def test_a_silence_is_explained_by_what_the_ranks_answer(pids):
    node = Node(pids)
    node.train()
    node.look_after(10.5)
    node.answer(0, "gloo:all_reduce #1")
    node.answer(1, "")
    hang = node.look_after(0.5)
    assert hang is not None
    assert [culprit.rank for culprit in hang.culprits] == [1]


def test_an_answer_of_an_earlier_silence_is_not_taken(pids):
    node = Node(pids)
    node.train()
    node.answer(1, "")
    node.ranks[1].mark(Phase.COMPUTE, 10)
    assert node.look_after(11.0) is None


def test_steps_that_take_long_get_longer_limits(pids):
    node = Node(pids)
    node.train(step_s=2.0)
    assert node.look_after(35.0) is None
    assert node.look_after(15.0) is not None


def test_the_first_step_may_take_minutes(pids):
    node = Node(pids)
    node.train(steps=1)
    assert node.look_after(500.0) is None


def test_an_agent_that_was_stopped_itself_forgives_the_time(pids):
    node = Node(pids)
    node.train()
    assert node.look_after(3600.0, every=3600.0) is None
    assert node.look_after(5.0) is None


def test_ranks_that_were_asked_have_their_time_to_answer_after_their_agent_was_stopped(pids):
    node = Node(pids)
    node.train()
    assert node.look_after(10.5) is None
    assert node.look_after(3600.0, every=3600.0) is None
    assert node.look_after(3.0) is not None


def test_nothing_is_judged_before_the_other_node_is_in_sight(pids):
    class Nobody:
        def __call__(self, own):
            return []

    node = Node(pids, Nobody(), world_size=4)
    node.train()
    assert node.look_after(60.0) is None


class OtherNode:
    """Has ranks 2 and 3, which are as silent as these and have said what they wait for."""

    def __init__(self, waits_for):
        self._waits_for = waits_for

    def __call__(self, own):
        ranks = json.loads(own)
        return [json.dumps([rank | {"rank": rank["rank"] + 2, "waits_for": self._waits_for} for rank in ranks])]


def test_the_node_of_the_culprit_acts(pids):
    node = Node(pids, OtherNode("gloo:all_reduce #1"), world_size=4)
    node.train()
    hang = node.look_after(14.0)
    assert hang is not None
    assert ([c.rank for c in hang.culprits], [v.rank for v in hang.victims]) == ([0, 1], [2, 3])


def test_the_node_of_the_victims_leaves_it_to_the_other(pids):
    node = Node(pids, OtherNode(""), world_size=4)
    node.train()
    node.look_after(10.5)
    for rank in range(2):
        node.answer(rank, "gloo:all_reduce #1")
    assert node.look_after(5.0) is None


def test_many_steps_between_two_looks_are_counted_by_their_marks():
    rank = Watched(0, 0, 1, changed_at=10.0)
    rank.see(Beat(count=60, phase=Phase.DATA, step=500), 11.0)  # of a resumed run
    assert list(rank.step_times_s) == [0.1]


def test_a_first_step_gives_no_step_time():
    rank = Watched(0, 0, 1, changed_at=10.0)
    rank.see(Beat(count=5, phase=Phase.COMPUTE, step=1), 40.0)
    assert not rank.step_times_s


def test_steps_between_the_look_at_the_first_one_and_the_next_give_a_time():
    rank = Watched(0, 1, 1, changed_at=10.0, looked_at=10.0)
    rank.see(Beat(count=3, phase=Phase.COMPUTE, step=1), 10.5)
    rank.see(Beat(count=3, phase=Phase.COMPUTE, step=1), 70.0)  # the first step compiles for a minute
    rank.see(Beat(count=122, phase=Phase.DATA, step=21), 70.5)
    assert list(rank.step_times_s) == [0.5 / 19]
