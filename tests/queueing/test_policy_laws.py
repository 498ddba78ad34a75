"""Laws that every decision keeps, on clusters and queues that nobody thought of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations, permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lanes import examples
from tests.queueing.queues import NAMES, NODES, ROLES, SHAPES, Played, node, shape, snapshot, waiting
from trainworks.queueing.decide import decide
from trainworks.queueing.snapshot import Decision, GangShape, NodeInfo, QueuedJob, Reason, RunningJob, Snapshot

LIMITS = st.sampled_from([60.0, 300.0, 1000.0, 3600.0])


def queues(limits: st.SearchStrategy[float | None], most: int = 12) -> st.SearchStrategy[list[QueuedJob]]:
    """Jobs in line, numbered from 1."""
    jobs = st.builds(
        waiting,
        st.just(0),
        SHAPES | ROLES,
        priority=st.sampled_from([10, 50, 90]),
        submitted_at=st.sampled_from([1.0, 2.0, 3.0]),
        time_limit_s=limits,
    )
    return st.lists(jobs, max_size=most).map(
        lambda found: [replace(job, job_id=number) for number, job in enumerate(found, 1)]
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """A cluster on which some jobs run already, some of them ending, and others wait or stand aside."""
    on = draw(NODES)
    earlier = draw(queues(st.none() | LIMITS, most=6))
    starts = {start.job_id: start.nodes for start in decide(snapshot([fit(one) for one in on], earlier)).starts}
    busy = [
        RunningJob(
            job_id=100 + job.job_id,
            shape=job.shape,
            nodes=starts[job.job_id],
            priority=job.priority,
            started_at=draw(st.sampled_from([0.0, 30.0, 90.0])),
            time_limit_s=job.time_limit_s,
            preemptible=draw(st.booleans()),
            grace_s=draw(st.sampled_from([0.0, 10.0, 500.0])),
            ending=draw(st.sampled_from([False, False, True])),
        )
        for job in earlier
        if job.job_id in starts
    ]
    queue = [
        replace(
            job,
            held=draw(st.sampled_from([False] * 5 + [True])),
            begins_at=draw(st.sampled_from([None, None, None, 50.0, 500.0])),
            depends=draw(st.sampled_from(["met"] * 5 + ["waiting", "failed"])),
        )
        for job in draw(queues(st.none() | LIMITS))
    ]
    return snapshot(on, queue, busy, now=100.0)


def fit(one: NodeInfo) -> NodeInfo:
    """The node in service, as it was when the running jobs started."""
    return replace(one, drained=None, down=None)


def left(state: Snapshot, decision: Decision, gone: frozenset[int] = frozenset()) -> dict[str, list[float]]:
    """What nobody uses of each node in service after the starts, once some running jobs have gone."""
    free = {one.name: [one.cores, one.accelerators, one.memory_bytes] for one in state.nodes if one.in_service}
    shapes = {job.job_id: job.shape for job in state.waiting}
    uses = [(job.nodes, job.shape) for job in state.running if job.job_id not in gone]
    uses += [(start.nodes, shapes[start.job_id]) for start in decision.starts]
    for names, of in uses:
        for name, part in zip(names, groups_of(of, len(names)), strict=True):
            if name in free:
                free[name] = [have - want for have, want in zip(free[name], amounts(part), strict=True)]
    return free


def groups_of(of: GangShape, count: int) -> list[GangShape]:
    """For each node of a gang the shape of its role, or the gang's own."""
    return [role for role in of.roles for _ in range(role.nodes_min)] or [of] * count


def amounts(of: GangShape) -> tuple[float, float, float]:
    """Cores, accelerators, memory of each node."""
    return (of.cores_per_node, of.accelerators_per_node, of.memory_per_node_bytes)


def able_nodes(state: Snapshot, of: GangShape, free: dict[str, list[float]]) -> list[NodeInfo]:
    """Nodes whose free amounts suffice for one of a gang."""
    return [
        one
        for one in state.nodes
        if one.name in free
        and one.name not in of.exclude
        and of.accelerator in (None, one.accelerator)
        and all(want <= have for want, have in zip(amounts(of), free[one.name], strict=True))
    ]


def has_room(state: Snapshot, of: GangShape, free: dict[str, list[float]]) -> bool:
    """Whether a gang fits into what is free, found by trying."""
    able = able_nodes(state, of, free)
    if of.roles:
        sets = [{one.name for one in able_nodes(state, role, free)} for role in groups_of(of, 0)]
        orders = permutations(free, len(sets))
        return any(all(name in able for name, able in zip(names, sets, strict=True)) for names in orders)
    if not of.same_rack:
        return len(able) >= of.nodes_min
    racks = Counter(one.rack if one.rack else one.name + " alone" for one in able)
    return max(racks.values(), default=0) >= of.nodes_min


def in_line(state: Snapshot) -> list[QueuedJob]:
    """The jobs that may run now, in their order."""
    able = [
        job
        for job in state.waiting
        if not job.held and job.depends == "met" and (job.begins_at is None or job.begins_at <= state.now)
    ]
    return sorted(able, key=lambda job: (-job.priority, job.submitted_at, job.job_id))


@given(snapshots())
def test_no_node_is_overcommitted(state: Snapshot) -> None:
    assert min((min(free) for free in left(state, decide(state)).values()), default=0) >= 0


@given(snapshots())
def test_a_gang_gets_different_nodes_within_its_range(state: Snapshot) -> None:
    shapes = {job.job_id: job.shape for job in state.waiting}
    for start in decide(state).starts:
        of = shapes[start.job_id]
        assert of.nodes_min <= len(set(start.nodes)) == len(start.nodes) <= of.nodes_max


@given(snapshots())
def test_a_job_starts_on_nodes_that_it_may_take(state: Snapshot) -> None:
    shapes = {job.job_id: job.shape for job in state.waiting}
    by_name = {one.name: one for one in state.nodes}
    for start in decide(state).starts:
        of, taken = shapes[start.job_id], [by_name[name] for name in start.nodes]
        for one, part in zip(taken, groups_of(of, len(taken)), strict=True):
            assert one.in_service and one.name not in part.exclude
            assert part.accelerator in (None, one.accelerator)
        assert not of.same_rack or len(taken) == 1 or len({one.rack for one in taken}) == 1


@given(snapshots())
def test_a_gang_of_one_rack_is_not_in_an_unknown_one(state: Snapshot) -> None:
    racks = {one.name: one.rack for one in state.nodes}
    together = {job.job_id for job in state.waiting if job.shape.same_rack}
    gangs = [start.nodes for start in decide(state).starts if start.job_id in together and len(start.nodes) > 1]
    assert all(racks[name] is not None for names in gangs for name in names)


@given(snapshots())
def test_every_waiting_job_is_in_exactly_one_place(state: Snapshot) -> None:
    decision = decide(state)
    places = [start.job_id for start in decision.starts] + [one.job_id for one in decision.cancels]
    assert sorted(places + list(decision.pending)) == sorted(job.job_id for job in state.waiting)


@given(snapshots())
def test_positions_have_no_gap(state: Snapshot) -> None:
    pending = decide(state).pending
    assert [one.position for one in pending.values()] == list(range(1, len(pending) + 1))


@given(snapshots())
def test_no_job_starts_in_the_past(state: Snapshot) -> None:
    assert all(one.starts_at is None or one.starts_at >= state.now for one in decide(state).pending.values())


@given(snapshots())
def test_the_first_job_in_line_that_fits_starts(state: Snapshot) -> None:
    line = [job for job in in_line(state) if has_room(state, job.shape, whole(state))]
    fits = bool(line) and has_room(state, line[0].shape, left(state, Decision()))
    assert not fits or line[0].job_id in {start.job_id for start in decide(state).starts}


def whole(state: Snapshot) -> dict[str, list[float]]:
    """The nodes in service if nothing ran."""
    return left(replace(state, running=()), Decision())


@given(snapshots())
def test_only_jobs_that_could_not_start_on_empty_nodes_wait_for_nodes(state: Snapshot) -> None:
    pending, empty = decide(state).pending, whole(state)
    for job in in_line(state):
        if job.job_id in pending:
            is_out = pending[job.job_id].reason is Reason.NODES_UNAVAILABLE
            assert is_out is not has_room(state, job.shape, empty)


@given(snapshots(), st.randoms())
def test_the_order_in_which_things_are_listed_does_not_matter(state: Snapshot, random_: object) -> None:
    decision = decide(state)
    for one in (state.nodes, state.waiting, state.running):
        assert len(one) == len(set(map(repr, one)))
    mixed = Snapshot(
        now=state.now,
        nodes=tuple(random_.sample(state.nodes, len(state.nodes))),
        waiting=tuple(random_.sample(state.waiting, len(state.waiting))),
        running=tuple(random_.sample(state.running, len(state.running))),
    )
    assert decide(mixed) == decision


@given(snapshots())
def test_a_job_behind_the_head_is_not_said_to_start_now(state: Snapshot) -> None:
    """Unless a job is beyond its limit or gets no grace, and about to go."""
    ends = [job.started_at + (job.time_limit_s or 9999.0) for job in state.running]
    ends += [state.now + job.grace_s for job in state.running if job.ending]
    if all(end > state.now for end in ends):
        waits = [one.starts_at for one in decide(state).pending.values() if one.reason is Reason.PRIORITY]
        assert all(starts_at is None or starts_at > state.now for starts_at in waits)


# Preemption


def asked(state: Snapshot, decision: Decision) -> frozenset[int]:
    """The running jobs that are going to be gone."""
    ending = {job.job_id for job in state.running if job.ending}
    return frozenset(ending | {one.job_id for one in decision.preempts})


@given(snapshots())
def test_only_preemptible_jobs_of_lower_priority_give_way(state: Snapshot) -> None:
    jobs, waits = {job.job_id: job for job in state.running}, {job.job_id: job for job in state.waiting}
    for one in decide(state).preempts:
        gives = jobs[one.job_id]
        assert gives.preemptible and not gives.ending and gives.priority < waits[one.for_job].priority


@given(snapshots())
def test_a_job_gives_way_once(state: Snapshot) -> None:
    given_way = [one.job_id for one in decide(state).preempts]
    assert len(given_way) == len(set(given_way))


@given(snapshots())
def test_a_job_that_others_give_way_to_starts_as_soon_as_they_have_gone(state: Snapshot) -> None:
    decision = decide(state)
    gone = asked(state, decision)
    after = replace(
        state,
        running=tuple(job for job in state.running if job.job_id not in gone),
        waiting=tuple(job for job in state.waiting if job.job_id in decision.pending),
    )
    started = {start.job_id: start.nodes for start in decision.starts}
    after = replace(after, running=after.running + tuple(now_running(state, started)))
    assert {one.for_job for one in decision.preempts} <= {start.job_id for start in decide(after).starts}


def now_running(state: Snapshot, started: dict[int, tuple[str, ...]]) -> list[RunningJob]:
    """The jobs that the decision starts, as running ones."""
    return [
        RunningJob(
            job_id=job.job_id,
            shape=job.shape,
            nodes=started[job.job_id],
            priority=job.priority,
            started_at=state.now,
            time_limit_s=job.time_limit_s,
            preemptible=False,
            grace_s=0.0,
        )
        for job in state.waiting
        if job.job_id in started
    ]


@st.composite
def contested(draw: st.DrawFn) -> Snapshot:
    """A cluster full of jobs that may be preempted, some of them ending, and one job of a higher priority."""
    on = tuple(node(name, rack="a") for name in NAMES[: draw(st.integers(1, 4))])
    count = st.sampled_from([1, 1, 1, 2])
    small = draw(st.lists(st.builds(shape, st.sampled_from([1, 2, 3, 4, 8]), count), min_size=1, max_size=10))
    starts = decide(snapshot(on, [waiting(number, of) for number, of in enumerate(small)])).starts
    busy = [
        RunningJob(
            job_id=start.job_id,
            shape=small[start.job_id],
            nodes=start.nodes,
            priority=draw(st.sampled_from([10, 20, 90])),
            started_at=draw(st.sampled_from([1.0, 2.0, 3.0])),
            time_limit_s=None,
            preemptible=draw(st.sampled_from([True, True, True, False])),
            grace_s=10.0,
            ending=draw(st.sampled_from([False, False, False, True])),
        )
        for start in starts
    ]
    wanted = draw(st.builds(shape, st.sampled_from([1, 4, 6, 8]), st.integers(1, len(on))) | ROLES)
    return snapshot(on, [waiting(99, wanted)], busy, now=5.0)


def room_without(state: Snapshot, gone: Iterable[int]) -> bool:
    """Whether the waiting job has room once these have gone, and all that are ending anyway."""
    ending = {job.job_id for job in state.running if job.ending}
    return has_room(state, state.waiting[0].shape, left(state, Decision(), frozenset(ending | set(gone))))


def able_to_go(state: Snapshot) -> list[int]:
    """The jobs that the waiting one may preempt."""
    return [
        job.job_id
        for job in state.running
        if job.preemptible and not job.ending and job.priority < state.waiting[0].priority
    ]


@given(contested())
def test_jobs_give_way_exactly_if_that_helps(state: Snapshot) -> None:
    helps = not room_without(state, []) and room_without(state, able_to_go(state))
    assert bool(decide(state).preempts) is helps


@given(contested())
def test_none_of_the_jobs_that_give_way_could_be_spared(state: Snapshot) -> None:
    chosen = {one.job_id for one in decide(state).preempts}
    assert not any(room_without(state, chosen - {spared}) for spared in chosen)


@given(contested())
def test_for_a_gang_of_one_node_the_fewest_jobs_give_way(state: Snapshot) -> None:
    alone = replace(state, waiting=(replace(state.waiting[0], shape=shape(8)),))
    count = len(decide(alone).preempts)
    assert (
        not any(room_without(alone, fewer) for fewer in combinations(able_to_go(alone), max(0, count - 1))) or not count
    )


# Played forward


def head_of(state: Snapshot) -> int | None:
    """The job that gets the reservation."""
    pending = decide(state).pending
    return next((job_id for job_id, one in pending.items() if one.reason is Reason.RESOURCES), None)


def played(on: Iterable[NodeInfo], queue: list[QueuedJob], lasts_s: dict[int, float]) -> Played:
    """A queue on an idle cluster to its end."""
    return Played(tuple(on), lasts_s, waiting={job.job_id: job for job in queue}).play()


@st.composite
def lines(
    draw: st.DrawFn, limits: st.SearchStrategy[float | None]
) -> tuple[list[NodeInfo], list[QueuedJob], list[QueuedJob]]:
    """Nodes; jobs of which the first ones start and the last has to wait; and jobs behind it."""
    on = [node(name, draw(st.sampled_from([4, 8])), rack=draw(st.sampled_from("ab"))) for name in NAMES[3:]]
    on += [node(name, rack="a") for name in NAMES[:3]]
    small = draw(st.lists(st.builds(shape, st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2])), max_size=6))
    line = [waiting(number, of, time_limit_s=draw(limits)) for number, of in enumerate(small, 1)]
    wanted = draw(st.builds(shape, st.sampled_from([4, 6, 8]), st.integers(1, 3), cores_per_node=st.just(8.0)))
    while head_of(snapshot(on, line)) is None:
        line.append(waiting(len(line) + 1, wanted, time_limit_s=draw(limits)))
    line = line[: 1 + [job.job_id for job in line].index(head_of(snapshot(on, line)))]
    later = draw(queues(st.none() | LIMITS, most=8))
    behind = [replace(job, job_id=200 + job.job_id, priority=50, submitted_at=200.0) for job in later]
    return on, line, behind


@settings(max_examples=examples(60))
@given(lines(LIMITS))
def test_jobs_behind_the_head_do_not_delay_it(found: tuple[list[NodeInfo], list[QueuedJob], list[QueuedJob]]) -> None:
    """If every job uses up its time limit; some of those behind have none."""
    on, line, behind = found
    lasts_s = {job.job_id: 5000.0 for job in behind}
    head = line[-1].job_id
    alone = played(on, line, lasts_s).started_at[head]
    assert played(on, line + behind, lasts_s).started_at[head] == alone


@settings(max_examples=examples(60))
@given(lines(st.none()), st.lists(st.integers(1, 50), min_size=5, max_size=5))
def test_jobs_behind_a_head_without_a_known_start_do_not_delay_it(
    found: tuple[list[NodeInfo], list[QueuedJob], list[QueuedJob]], lasts: list[int]
) -> None:
    """Whenever the jobs before it end, if none of those has a time limit."""
    on, line, behind = found
    lasts_s = {job.job_id: 10.0 * lasts[job.job_id % 5] + job.job_id for job in line + behind}
    head = line[-1].job_id
    alone = played(on, line, lasts_s).started_at[head]
    assert played(on, line + behind, lasts_s).started_at[head] == alone


@settings(max_examples=examples(60))
@given(lines(st.none() | LIMITS), st.lists(st.integers(1, 400), min_size=5, max_size=5))
def test_a_head_starts_no_later_than_it_was_promised(
    found: tuple[list[NodeInfo], list[QueuedJob], list[QueuedJob]], lasts: list[int]
) -> None:
    """However much earlier than their limits the others end."""
    on, line, behind = found
    game = played(on, line + behind, {job.job_id: 10.0 * lasts[job.job_id % 5] for job in line + behind})
    for _, decision in game.decisions:
        for job_id, one in decision.pending.items():
            if one.reason is Reason.RESOURCES and one.starts_at is not None:
                assert game.started_at[job_id] <= one.starts_at


@settings(max_examples=examples(60))
@given(NODES, queues(st.none() | LIMITS, most=10), st.lists(st.integers(1, 4000), min_size=10, max_size=10))
def test_a_queue_empties(on: list[NodeInfo], queue: list[QueuedJob], lasts: list[int]) -> None:
    """But for the jobs that no node in service could have; jobs that give way start over."""
    lasts_s = {number: float(last) for number, last in enumerate(lasts, 1)}
    game = played(on, queue, lasts_s)
    empty = whole(snapshot(on))
    assert not game.running
    assert not [job for job in game.waiting.values() if has_room(snapshot(on), job.shape, empty)]


@settings(max_examples=examples(20))
@given(st.lists(st.builds(shape, st.integers(1, 8)), min_size=2, max_size=6))
def test_an_endless_stream_of_small_jobs_does_not_starve_the_head(small: list[GangShape]) -> None:
    """They have no time limits; the head wants every node whole."""
    on = [node(name) for name in NAMES[:3]]
    stream = [waiting(number, small[number % len(small)]) for number in range(100, 130)]
    head = waiting(1, shape(8, count=3), submitted_at=101.5)
    game = played(on, [*stream, head], {job.job_id: 10.0 + job.job_id % 7 for job in [*stream, head]})
    assert game.started_at[1] <= min(at for job_id, at in game.started_at.items() if job_id > 101)
