"""Queues of several users on one machine: each gets its share, without idle devices and without starving."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.backends.local.test_dispatcher import Queue
from tests.fakes import LAUNCH_AT, FakeClock
from tests.queueing.queues import node, running, shape, waiting
from trainworks.backends.local import quotas
from trainworks.backends.local.dispatcher import Dispatcher
from trainworks.backends.local.fair_share import FairShare, OtherQueue, PublishedJob, PublishedQueue, fair_order
from trainworks.backends.local.quotas import QueuePolicy
from trainworks.host.ledger import Claim, Share, claim_key
from trainworks.host.users import user_name
from trainworks.jobs.job_row import month_of
from trainworks.jobs.job_spec import NodeResources
from trainworks.jobs.state import JobState
from trainworks.queueing.decide import decide
from trainworks.queueing.fair_share import decayed, use_of
from trainworks.queueing.snapshot import QueuedJob, RunningJob, Snapshot
from trainworks.units import HOUR_S

ANN, BOB, CAROL = 61_001, 61_002, 61_003
HALF_LIFE_S = 1000.0
DEVICES = 4
Stream = Iterator[tuple[int, float]]
"""Devices and seconds of one job after the other."""


@dataclass
class Player:
    """The queue of a user who always has three waiting jobs from some time on."""

    uid: int
    stream: Stream
    since: float = 0.0
    published: PublishedQueue = field(default_factory=PublishedQueue)
    queue: list[QueuedJob] = field(default_factory=list)
    jobs: dict[int, PublishedJob] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    """Seconds that a job runs for."""
    held: list[tuple[RunningJob, float]] = field(default_factory=list)
    """Running jobs, each with its end."""
    past: list[tuple[float, float, int]] = field(default_factory=list)
    """Start, end and devices of every job."""

    def look(self, policy: QueuePolicy, players: list[Player], now: float) -> bool:
        """What a dispatcher does at a look; True if a job has started."""
        while now >= self.since and len(self.queue) < 3:
            devices, length = next(self.stream)
            job_id = self.uid * 10_000 + len(self.seconds)
            self.seconds[job_id] = length
            job = waiting(job_id, shape(devices), submitted_at=now, time_limit_s=length)
            self.queue.append(job)
            self.jobs[job_id] = published(job)
        others = [OtherQueue(one.uid, one.published, now) for one in players if one is not self]
        order = fair_order(policy, self.uid, {(self.uid, ""): self.published.use[""]}, others, (), now)
        rank = order.ranks[self.uid, ""]
        own = [replace(job, rank=rank) for job in self.queue]
        busy = [job for one in players for job, _ in one.held]
        state = Snapshot(now=now, nodes=(node("n1", DEVICES),), waiting=(*own, *order.elsewhere), running=tuple(busy))
        starts = {start.job_id for start in decide(state).starts}
        for job in [job for job in self.queue if job.job_id in starts]:
            self.queue.remove(job)
            ends_at = now + self.seconds[job.job_id]
            self.held.append((running(job.job_id, job.shape, "n1", started_at=now), ends_at))
            self.past.append((now, ends_at, job.shape.accelerators_per_node))
        jobs = tuple(self.jobs[job.job_id] for job in self.queue)
        self.published = self.published.model_copy(update={"waiting": jobs})
        return bool(starts)

    def count_use(self, now: float) -> None:
        old, used = self.published, decayed(self.published.use.get("", 0.0), now - self.published.at, HALF_LIFE_S)
        for job, _ in self.held:
            part = job.shape.accelerators_per_node / DEVICES
            used += use_of(part, began=max(old.at, job.started_at), ended=now, now=now, half_life_s=HALF_LIFE_S)
        self.held = [(job, ends_at) for job, ends_at in self.held if ends_at > now]
        self.published = old.model_copy(update={"at": now, "use": {"": used}})

    def device_seconds(self, since: float, until: float) -> float:
        return sum(max(0.0, min(end, until) - max(start, since)) * count for start, end, count in self.past)


def published(job: QueuedJob) -> PublishedJob:
    return PublishedJob(
        run="lm-1",
        key=claim_key(str(job.job_id)),
        priority=job.priority,
        submitted_at=job.submitted_at,
        time_limit_s=job.time_limit_s,
        nodes_min=1,
        nodes_max=1,
        cores=0.0,
        accelerators=job.shape.accelerators_per_node,
        memory_bytes=0,
    )


def stream(seed: int, devices: int = 1, seconds: float = 40.0) -> Stream:
    """Jobs of random lengths around some seconds."""
    lengths = random.Random(seed)
    while True:
        yield devices, seconds * lengths.uniform(0.5, 1.5)


def play(players: list[Player], until: float, **teams: dict[str, object]) -> None:
    """Play the queues forward from one end of a job to the next; all of them look until none starts anything."""
    policy = QueuePolicy.model_validate({"teams": teams, "fair_share": {"half_life": HALF_LIFE_S}})
    now = 0.0
    while now < until:
        for player in players:
            player.count_use(now)
        while sum(player.look(policy, players, now) for player in players):
            pass
        ends = [end for player in players for _, end in player.held]
        now = min([*ends, *(one.since for one in players if one.since > now)])


def test_two_users_with_shares_of_two_and_one_get_two_thirds_and_one_third() -> None:
    ann, bob = Player(ANN, stream(1)), Player(BOB, stream(2, devices=2))
    play([ann, bob], 4000.0, vision={"members": [ANN], "shares": 2}, speech={"members": [BOB]})
    ann_s, bob_s = (one.device_seconds(0.0, 4000.0) for one in (ann, bob))
    assert ann_s / bob_s == pytest.approx(2.0, rel=0.05)
    assert ann_s + bob_s > 0.95 * DEVICES * 4000.0, "devices were idle"


def test_a_user_who_comes_back_goes_first_for_one_half_life_and_gets_half_from_then_on() -> None:
    ann, bob = Player(ANN, stream(1)), Player(BOB, stream(2), since=3000.0)
    play([ann, bob], 6500.0)
    first_end = min(end for _, end, _ in ann.past if end > 3000.0)
    assert bob.past[0][0] == first_end, "the first free device is for the one who comes back"
    assert bob.device_seconds(3060.0, 3860.0) == pytest.approx(DEVICES * 800.0, rel=0.02)
    assert bob.device_seconds(4000.0, 6500.0) == pytest.approx(DEVICES * 1250.0, rel=0.05)


def test_a_gang_that_needs_the_whole_machine_does_not_starve_behind_small_jobs_of_two_others() -> None:
    ann, bob, carol = Player(ANN, stream(1)), Player(BOB, stream(2, DEVICES, 60.0)), Player(CAROL, stream(3))
    play([ann, bob, carol], 2500.0)
    held = [one.device_seconds(0.0, 2500.0) for one in (ann, bob, carol)]
    assert held[1] / sum(held) == pytest.approx(1 / 3, abs=0.03)


POLICY = QueuePolicy.model_validate({"fair_share": {"half_life": HALF_LIFE_S}})


@pytest.mark.parametrize(("silent_s", "jobs"), [(0.0, 1), (4.0, 1), (6.0, 0), (-60.0, 0)])
def test_jobs_of_a_dispatcher_that_is_gone_hold_up_nobody_but_its_use_counts(silent_s: float, jobs: int) -> None:
    queue = PublishedQueue(at=100.0, use={"": 300.0}, waiting=(published(waiting(1)),))
    order = fair_order(POLICY, ANN, {(ANN, ""): 100.0}, [OtherQueue(BOB, queue, 100.0 - silent_s)], (), 100.0)
    assert len(order.elsewhere) == jobs
    assert [one.used for one in order.ranks[BOB, ""]] == [0.75]


class Fair(Queue):
    """A queue whose dispatchers publish in a folder."""

    def __init__(
        self, folder: Path, clock: FakeClock, name: str = "own", ledger: Path | None = None, devices: int = 0
    ) -> None:
        self.ledger, self.name = ledger or folder, name
        super().__init__(folder, clock, cores=8.0 if devices else 2.0, devices=devices)

    def restart(self) -> None:
        self.fair_share = FairShare(self.store, self.nodes, self.clock, self.ledger, self.name)
        self.dispatcher = Dispatcher(self.store, self.nodes, self.machine, self.clock, self.fair_share)

    def published(self) -> PublishedQueue:
        (file,) = self.ledger.glob("trainworks-*.queue")
        return PublishedQueue.model_validate_json(file.read_text())


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write the policy of this test."""

    def write(text: str) -> None:
        (tmp_path / "queue.yaml").write_text(text)

    monkeypatch.setattr(quotas, "POLICY_FILE", tmp_path / "none.yaml")
    monkeypatch.setenv("TRAINWORKS_QUEUE_POLICY", str(tmp_path / "queue.yaml"))
    write(f"fair_share: {{half_life: {HALF_LIFE_S:g}s}}\n")
    return write


def test_use_survives_a_killed_dispatcher_and_a_deleted_job(
    tmp_path: Path, clock: FakeClock, policy: Callable[[str], None]
) -> None:
    queue = Fair(tmp_path, clock)
    job, began = queue.submit(), clock.now()
    queue.look(50.0)
    queue.restart()
    queue.look(50.0)
    queue.machine.end(job, "SUCCEEDED", updated_at=clock.now())
    ended = clock.now()
    queue.look(100.0)
    queue.store.remove(job)
    queue.restart()
    queue.look()
    used, at = queue.published().use[""], queue.published().at
    assert at == ended + 100.0
    assert used == pytest.approx(use_of(0.5, began=began, ended=ended, now=at, half_life_s=HALF_LIFE_S))


def test_a_job_waits_behind_one_of_another_queue_and_starts_once_that_has_started_or_its_dispatcher_is_gone(
    tmp_path: Path, clock: FakeClock, policy: Callable[[str], None]
) -> None:
    (tmp_path / "other").mkdir()
    policy(f"teams: {{vision: {{members: [{os.getuid()}]}}, speech: {{members: [{os.getuid()}]}}}}\nfair_share: {{}}\n")
    own, other = Fair(tmp_path, clock), Fair(tmp_path / "other", clock, "other", tmp_path)
    first = [own.submit(f"own{number}", team="vision") for number in range(3)]
    own.look(30.0)  # two of them hold the machine
    own.look(0.0)
    other.machine.others = {Claim(os.getuid(), Share(run="own0-1", key=claim_key("/runs/own0-1"), cores=2.0))}
    theirs = other.submit("theirs", team="speech")
    other.look(0.0)
    own.machine.end(first[0], "SUCCEEDED", updated_at=clock.now())
    own.look(0.0)
    row = own.job(first[2])
    assert (row.state, row.reason) == (JobState.QUEUED, "Resources")
    assert (
        f"; behind {user_name()}'s job theirs-1 (priority 50): team vision has 50% of the shares and made 100% of"
        in (row.detail or "")
    )
    assert other.state(theirs) is JobState.QUEUED
    clock.sleep(6.0)
    own.look()
    assert own.state(first[2]) is JobState.STARTING


MONTH = month_of(month_of(LAUNCH_AT).begins_at - 1)


def test_accelerator_hours_count_those_of_all_queues_as_jobs_run_and_begin_anew_with_the_month(
    tmp_path: Path, policy: Callable[[str], None]
) -> None:
    """A running job is charged until now, a deleted one and one before a killed dispatcher for what it has held."""
    (tmp_path / "other").mkdir()
    policy(f"teams: {{vision: {{members: [{os.getuid()}], accelerator_hours_per_month: 6}}}}\n")
    clock = FakeClock(MONTH.ends_at - 3 * HOUR_S)
    own, other = Fair(tmp_path, clock, devices=4), Fair(tmp_path / "other", clock, "other", tmp_path, devices=4)
    theirs = other.submit("theirs", node=NodeResources(cores=1.0, accelerators=2))
    other.look(HOUR_S)
    other.machine.end(theirs, "SUCCEEDED", updated_at=clock.now())
    other.look(0.0)
    other.store.remove(theirs)
    first = own.submit("first", node=NodeResources(cores=1.0, accelerators=4))
    own.look(0.5 * HOUR_S)
    own.restart()
    second = own.submit("second", node=NodeResources(cores=1.0, accelerators=4))
    own.look(0.0)
    assert own.job(second).reason == "Resources"  # 4 of 6 hours are used
    own.machine.end(first, "SUCCEEDED", updated_at=clock.now() + 0.5 * HOUR_S)
    clock.sleep(0.5 * HOUR_S)
    own.look(0.0)
    assert own.job(second).reason == "Quota"
    assert (own.job(second).detail or "").startswith(
        "needs 4 accelerators and 1 core; team vision has used 6.0 of its 6 accelerator hours in "
        f"{MONTH.name}; the next month begins "
    )
    clock.sleep(MONTH.ends_at - clock.now())
    own.look(0.0)
    assert own.state(second) is JobState.STARTING
    third = own.submit("third", node=NodeResources(cores=1.0, accelerators=1))
    clock.sleep(1.6 * HOUR_S)
    own.look(0.0)
    assert own.job(third).reason == "Quota"
