"""The node agent's eye, on a clock that stands still until it is told."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch.distributed as dist

from trainworks.worker.health.hang import HangLimits, HangMonitor, Watched
from trainworks.worker.health.heartbeat import Beat, Heartbeat, HeartbeatBoard, Phase
from trainworks.worker.health.meeting import StoreExchange

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

    def __init__(self, pids, exchange=None, world_size=2, first_rank=0):
        self.time = 100.0
        board = HeartbeatBoard(2)
        self.ranks = [Heartbeat((board.path, index)) for index in range(2)]
        self._monitor = HangMonitor(
            board, HangLimits(), world_size=world_size, exchange=exchange, now=lambda: self.time
        )
        self._monitor.begin(list(enumerate(pids, first_rank)))

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


class CountingStore:
    """A store of this process that counts what it is asked."""

    def __init__(self):
        self._store, self.requests = dist.HashStore(), 0

    def __getattr__(self, name):
        self.requests += 1
        return getattr(self._store, name)


class Job:
    """Nodes of two ranks each that share a store; their time passes together."""

    def __init__(self, pids, nodes, *, in_sight=None):
        self.store = CountingStore()
        self.nodes = []
        for place in range(nodes if in_sight is None else in_sight):
            exchange = StoreExchange(self.store, place, nodes)
            exchange.begin("round")
            self.nodes.append(Node(pids, exchange, world_size=2 * nodes, first_rank=2 * place))

    def train(self, steps=10):
        for _ in range(steps):
            for node in self.nodes:
                for rank in node.ranks:
                    rank.mark(Phase.COMPUTE, rank.last.step + 1)
            self.look_after(0.5)

    def look_after(self, seconds):
        """Last verdict of each node."""
        for _ in range(round(seconds / 0.5)):
            verdicts = [node.look_after(0.5) for node in self.nodes]
        return verdicts

    def answer(self, *, busy=None):
        """Every rank says that it waits for others, but the busy one."""
        for place, node in enumerate(self.nodes):
            for index in range(2):
                node.answer(index, "" if 2 * place + index == busy else "gloo:all_reduce #1")


def test_nothing_is_judged_before_the_other_node_is_in_sight(pids):
    job = Job(pids, 2, in_sight=1)
    job.train()
    assert job.look_after(60.0) == [None]


@pytest.mark.parametrize("busy", range(6))
def test_the_node_of_the_culprit_alone_acts(pids, busy):
    job = Job(pids, 3)
    job.train()
    job.look_after(10.5)
    job.answer(busy=busy)
    job.look_after(0.5)
    verdicts = job.look_after(0.5)
    assert [place for place, hang in enumerate(verdicts) if hang is not None] == [busy // 2]
    hang = verdicts[busy // 2]
    assert [each.rank for each in hang.culprits] == [busy]
    assert sorted(each.rank for each in hang.victims) == [rank for rank in range(6) if rank != busy]


def test_a_deadlock_is_of_all_ranks_and_the_first_node_acts(pids):
    job = Job(pids, 2)
    job.train()
    job.look_after(10.5)
    job.answer()
    first, other = job.look_after(1.0)
    assert other is None
    assert first.is_deadlock and len(first.culprits) == 4


def test_ranks_that_go_on_after_a_silence_are_judged_anew(pids):
    job = Job(pids, 2)
    job.train()
    job.look_after(10.5)
    job.answer(busy=3)  # before it is asked for that, it has gone on
    job.train(steps=2)
    assert job.look_after(9.0) == [None, None]
    before = job.store.requests
    job.look_after(0.5)
    assert job.store.requests - before == 2  # rest: each node looks at one key
    job.look_after(2.0)
    job.answer(busy=2)
    job.look_after(0.5)
    assert [hang and hang.first.rank for hang in job.look_after(0.5)] == [None, 2]


@pytest.mark.parametrize("nodes", [4, 16])
def test_requests_grow_with_the_nodes_and_not_with_their_square(pids, nodes):
    job = Job(pids, nodes)
    job.train()
    before = job.store.requests
    job.look_after(5.0)
    assert job.store.requests - before == 10 * nodes
    job.look_after(6.0)
    before = job.store.requests
    job.look_after(0.5)
    assert job.store.requests - before <= 3 * nodes + 3


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
