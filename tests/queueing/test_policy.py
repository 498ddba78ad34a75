"""What the policy decides, rule by rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.queueing.queues import node, nodes, running, shape, snapshot, waiting, with_roles
from trainworks.queueing.decide import MOST_ESTIMATES, decide
from trainworks.queueing.snapshot import (
    Cancel,
    Decision,
    GangShape,
    NodeInfo,
    Pending,
    Preempt,
    QueuedJob,
    Reason,
    RunningJob,
    Start,
)

HOUR = 3600.0


def decided(on: Iterable[NodeInfo], *queue: QueuedJob, busy: Iterable[RunningJob] = (), now: float = 0.0) -> Decision:
    """The decision of a queue on nodes."""
    return decide(snapshot(on, queue, busy, now))


def started(decision: Decision) -> dict[int, tuple[str, ...]]:
    """Nodes of each job that starts."""
    return {start.job_id: start.nodes for start in decision.starts}


def waits(decision: Decision, job_id: int) -> Pending:
    """Why a job waits."""
    return decision.pending[job_id]


# The order of the line


def test_a_job_that_fits_starts() -> None:
    assert started(decided(nodes(1), waiting(1))) == {1: ("n1",)}


def test_the_higher_priority_comes_first() -> None:
    assert started(decided(nodes(1), waiting(1), waiting(2, priority=51))) == {2: ("n1",)}


def test_of_one_priority_the_earlier_comes_first() -> None:
    assert started(decided(nodes(1), waiting(1, submitted_at=9.0), waiting(2, submitted_at=8.0))) == {2: ("n1",)}


def test_of_one_moment_the_smaller_number_comes_first() -> None:
    assert started(decided(nodes(1), waiting(2, submitted_at=1.0), waiting(1, submitted_at=1.0))) == {1: ("n1",)}


def test_positions_count_the_line_and_then_those_that_stand_aside() -> None:
    queue = [waiting(1, priority=90, held=True), waiting(2), waiting(3), waiting(4, priority=60)]
    decision = decided(nodes(1), *queue)
    assert [(job_id, one.position) for job_id, one in decision.pending.items()] == [(2, 1), (3, 2), (1, 3)]


def test_a_job_behind_the_head_waits_for_its_priority() -> None:
    decision = decided(nodes(1), waiting(1, priority=70), waiting(2, priority=60), waiting(3))
    wait = waits(decision, 3)
    assert (wait.reason, wait.detail) == (Reason.PRIORITY, "behind job 2 (priority 60)")


def test_an_empty_queue_decides_nothing() -> None:
    assert decided(nodes(2)) == Decision()


# Gangs


def test_a_gang_takes_as_many_nodes_as_are_free() -> None:
    assert started(decided(nodes(3), waiting(1, shape(nodes_min=2, nodes_max=4)))) == {1: ("n1", "n2", "n3")}


def test_a_gang_takes_no_more_nodes_than_its_most() -> None:
    assert started(decided(nodes(3), waiting(1, shape(nodes_min=1, nodes_max=2)))) == {1: ("n1", "n2")}


def test_a_gang_never_starts_on_fewer_nodes_than_its_least() -> None:
    busy = [running(9, shape(), "n3")]
    assert not decided(nodes(3), waiting(1, shape(count=3)), busy=busy).starts


def test_a_gang_takes_a_node_once_even_if_it_had_room_twice() -> None:
    assert not decided(nodes(2), waiting(1, shape(1, count=2, exclude=frozenset({"n1"})))).starts


def test_jobs_share_a_node() -> None:
    decision = decided(nodes(1), waiting(1, shape(4)), waiting(2, shape(4)))
    assert started(decision) == {1: ("n1",), 2: ("n1",)}


@pytest.mark.parametrize(
    "need", [{"accelerators": 5}, {"cores_per_node": 40.0}, {"memory_per_node_bytes": 300 * 10**9}]
)
def test_each_resource_is_a_limit(need: dict[str, Any]) -> None:
    job = shape(**({"accelerators": 0} | need))
    decision = decided(nodes(1), waiting(1, job), waiting(2, job))
    assert started(decision) == {1: ("n1",)}


def test_tenths_of_a_core_add_up_to_the_whole_node() -> None:
    tenths = [waiting(number, shape(0, cores_per_node=0.1)) for number in range(1, 12)]
    assert len(decided([node("n1", cores=1.0)], *tenths).starts) == 10


def test_a_job_goes_to_the_node_that_is_fullest_already() -> None:
    busy = [running(9, shape(4), "n2")]
    assert started(decided(nodes(2), waiting(1, shape(2)), busy=busy)) == {1: ("n2",)}


def test_a_job_without_accelerators_leaves_them_to_others() -> None:
    on = [node("a1"), node("b1", accelerators=0)]
    assert started(decided(on, waiting(1, shape(0, cores_per_node=1.0)))) == {1: ("b1",)}


def test_a_job_that_names_its_accelerator_takes_no_other() -> None:
    on = [node("a1"), node("b1", accelerator="H100")]
    assert started(decided(on, waiting(1, shape(1, accelerator="H100")))) == {1: ("b1",)}


@pytest.mark.parametrize("out", [{"drained": "disk"}, {"down": "no answer"}])
def test_a_node_out_of_service_takes_no_job(out: dict[str, Any]) -> None:
    assert not decided(nodes(1, **out), waiting(1)).starts


def test_an_excluded_node_is_not_taken() -> None:
    assert started(decided(nodes(2), waiting(1, shape(exclude=frozenset({"n1"}))))) == {1: ("n2",)}


def test_a_job_on_a_drained_node_keeps_what_it_has() -> None:
    on = [node("n1", drained="disk"), node("n2")]
    decision = decided(on, waiting(1, shape(8)), busy=[running(9, shape(8, count=2), "n1", "n2")])
    assert waits(decision, 1).reason is Reason.RESOURCES


def test_a_gang_of_one_rack_does_not_mix_racks() -> None:
    on = [node("n1", rack="a"), node("n2", rack="b"), node("n3", rack="b")]
    assert started(decided(on, waiting(1, shape(count=2, same_rack=True)))) == {1: ("n2", "n3")}


def test_a_gang_of_one_rack_goes_where_it_gets_the_most_nodes() -> None:
    on = [node("n1", rack="a"), node("n2", rack="a"), *[node(f"n{number}", rack="b") for number in (3, 4, 5)]]
    job = shape(nodes_min=1, nodes_max=3, same_rack=True)
    assert started(decided(on, waiting(1, job))) == {1: ("n3", "n4", "n5")}


def test_a_gang_of_one_rack_leaves_the_larger_rack_whole() -> None:
    on = [*[node(f"n{number}", rack="a") for number in (1, 2, 3)], node("n4", rack="b"), node("n5", rack="b")]
    assert started(decided(on, waiting(1, shape(count=2, same_rack=True)))) == {1: ("n4", "n5")}


def test_nodes_of_which_nobody_said_the_rack_share_none() -> None:
    decision = decided(nodes(2), waiting(1, shape(count=2, same_rack=True)))
    assert waits(decision, 1).reason is Reason.NODES_UNAVAILABLE


# Jobs that stand aside


def test_a_held_job_waits_until_it_is_released() -> None:
    wait = waits(decided(nodes(1), waiting(1, held=True)), 1)
    assert (wait.reason, wait.starts_at) == (Reason.HELD, None)


def test_a_job_with_a_dependency_waits_for_it() -> None:
    wait = waits(decided(nodes(1), waiting(1, depends="waiting")), 1)
    assert (wait.reason, wait.starts_at) == (Reason.DEPENDENCY, None)


def test_a_job_whose_dependency_failed_is_cancelled() -> None:
    decision = decided(nodes(1), waiting(1, depends="failed", held=True))
    assert decision.cancels == (Cancel(job_id=1),)


def test_a_job_that_may_not_begin_yet_says_when() -> None:
    wait = waits(decided(nodes(1), waiting(1, begins_at=5400.0)), 1)
    assert (wait.reason, wait.starts_at) == (Reason.BEGIN_TIME, 5400.0)
    assert wait.detail == "not to begin for another 1h 30m"


def test_a_job_begins_at_its_moment() -> None:
    assert decided(nodes(1), waiting(1, begins_at=60.0), now=60.0).starts


@pytest.mark.parametrize("aside", [{"held": True}, {"depends": "waiting"}, {"begins_at": 9.0}])
def test_nobody_waits_behind_a_job_that_stands_aside(aside: dict[str, Any]) -> None:
    assert started(decided(nodes(1), waiting(1, priority=99, **aside), waiting(2))) == {2: ("n1",)}


def test_a_job_that_waits_for_nodes_in_service_says_which() -> None:
    on = [node("n1"), node("n2", drained="disk"), node("n3", down="no answer"), node("n4")]
    wait = waits(decided(on, waiting(1, shape(count=2, exclude=frozenset({"n4"})))), 1)
    assert (wait.reason, wait.starts_at) == (Reason.NODES_UNAVAILABLE, None)
    assert wait.detail == (
        "needs 8 accelerators on each of 2 nodes; 1 node has that and can be taken: "
        "n2 is drained (disk), n3 is down (no answer) and n4 is excluded"
    )


def test_of_many_nodes_out_of_service_three_are_named() -> None:
    wait = waits(decided(nodes(9, down="no answer"), waiting(1)), 1)
    named = ", ".join(f"n{number} is down (no answer)" for number in (1, 2, 3))
    assert wait.detail.endswith(f"no node has that and can be taken: {named} and 6 more")


def test_nobody_waits_behind_a_job_for_which_no_node_is_in_service() -> None:
    on = [node("n1"), node("n2", down="no answer")]
    assert started(decided(on, waiting(1, shape(count=2)), waiting(2))) == {2: ("n1",)}


# The reservation of the head


def test_the_head_says_what_is_missing() -> None:
    wait = waits(decided(nodes(2), waiting(1, shape(4, count=2)), busy=[running(9, shape(6), "n1")]), 1)
    assert (wait.reason, wait.position) == (Reason.RESOURCES, 1)
    assert wait.detail == "needs 4 accelerators on each of 2 nodes; 1 node has that free"


def test_the_head_starts_when_the_time_limits_let_it() -> None:
    busy = [running(8, shape(), "n1", time_limit_s=HOUR), running(9, shape(), "n2", time_limit_s=2 * HOUR)]
    assert waits(decided(nodes(2), waiting(1), busy=busy, now=60.0), 1).starts_at == HOUR
    assert waits(decided(nodes(2), waiting(1, shape(count=2)), busy=busy, now=60.0), 1).starts_at == 2 * HOUR


def test_without_a_time_limit_nobody_knows_when_the_head_starts() -> None:
    assert waits(decided(nodes(1), waiting(1), busy=[running(9, shape(), "n1")]), 1).starts_at is None


def test_a_job_beyond_its_time_limit_is_about_to_go() -> None:
    busy = [running(9, shape(), "n1", time_limit_s=HOUR)]
    assert waits(decided(nodes(1), waiting(1), busy=busy, now=HOUR + 5), 1).starts_at == HOUR + 5


def test_the_head_is_not_promised_what_an_ending_job_may_still_have() -> None:
    busy = [running(8, shape(), "n1", ending=True, grace_s=90.0), running(9, shape(), "n2", time_limit_s=60.0)]
    assert waits(decided(nodes(2), waiting(1, shape(count=2)), busy=busy), 1).starts_at == 90.0


def test_what_an_ending_job_leaves_is_not_lent_to_others() -> None:
    """It may go at once, and then nothing but job 9 keeps the head waiting."""
    busy = [running(8, shape(), "n1", ending=True, grace_s=90.0), running(9, shape(), "n2", time_limit_s=60.0)]
    queue = [waiting(1, shape(count=3)), waiting(2, time_limit_s=61.0)]
    assert not decided(nodes(3), *queue, busy=busy).starts


def reserved(behind: QueuedJob, *more: RunningJob) -> Decision:
    """Job 1 wants both nodes, of which n1 is in use for another hour."""
    busy = [running(9, shape(), "n1", time_limit_s=HOUR), *more]
    return decided(nodes(2), waiting(1, shape(count=2)), behind, busy=busy)


def test_a_job_that_ends_before_the_reservation_starts() -> None:
    assert started(reserved(waiting(2, time_limit_s=HOUR))) == {2: ("n2",)}


def test_a_job_that_ends_after_the_reservation_waits() -> None:
    assert not reserved(waiting(2, time_limit_s=HOUR + 1)).starts


def test_a_job_without_a_time_limit_waits_for_the_reservation() -> None:
    assert not reserved(waiting(2)).starts


def test_a_long_job_starts_beside_what_the_reservation_needs() -> None:
    cores = waiting(2, shape(0, cores_per_node=8.0))
    assert started(reserved(cores)) == {2: ("n1",)}


def test_a_long_job_starts_on_a_node_that_is_not_reserved() -> None:
    busy = [running(8, shape(), "n1", time_limit_s=HOUR), running(9, shape(6), "n2")]
    decision = decided(nodes(2), waiting(1), waiting(2, shape(2)), busy=busy)
    assert started(decision) == {2: ("n2",)}


def test_long_jobs_share_what_the_reservation_leaves() -> None:
    """Job 1 needs 6 of the 8 accelerators in an hour: two of the four that are free may go to others."""
    busy = [running(9, shape(4), "n1", time_limit_s=HOUR)]
    queue = [waiting(1, shape(6)), *[waiting(number, shape(1)) for number in (2, 3, 4, 5)]]
    assert set(started(decided(nodes(1), *queue, busy=busy))) == {2, 3}


def test_what_ends_at_the_same_moment_is_left_to_others_too() -> None:
    busy = [running(number, shape(2), "n1", time_limit_s=HOUR) for number in (8, 9)]
    assert set(started(decided(nodes(1), waiting(1, shape(6)), waiting(2, shape(2)), busy=busy))) == {2}


def test_short_jobs_use_what_long_ones_must_leave() -> None:
    busy = [running(9, shape(4), "n1", time_limit_s=HOUR)]
    queue = [waiting(1, shape(6)), waiting(2, shape(2)), waiting(3, shape(2), time_limit_s=60.0)]
    assert set(started(decided(nodes(1), *queue, busy=busy))) == {2, 3}


def test_a_backfilled_gang_takes_as_many_nodes_as_do_not_delay_the_head() -> None:
    busy = [running(9, shape(count=2), "n1", "n2", time_limit_s=HOUR)]
    queue = [waiting(1, shape(count=4)), waiting(2, shape(nodes_min=1, nodes_max=3))]
    assert started(decided(nodes(5), *queue, busy=busy)) == {2: ("n5",)}


def test_the_reservation_leaves_free_nodes_to_others_where_it_can() -> None:
    busy = [running(9, shape(count=2), "n2", "n3", time_limit_s=HOUR)]
    assert started(decided(nodes(3), waiting(1, shape(count=2)), waiting(2), busy=busy)) == {2: ("n1",)}


def test_without_a_known_end_nothing_starts_where_the_head_waits() -> None:
    """Not even on n2, which is too small a part for the head today and may not be tomorrow."""
    busy = [running(8, shape(), "n1"), running(9, shape(6), "n2")]
    assert not decided(nodes(2), waiting(1, shape(4)), waiting(2, shape(1), time_limit_s=1.0), busy=busy).starts


def test_without_a_known_end_jobs_start_on_nodes_that_the_head_cannot_use() -> None:
    on = [node("n1"), node("n2", accelerators=2)]
    decision = decided(on, waiting(1), waiting(2, shape(1)), busy=[running(9, shape(), "n1")])
    assert started(decision) == {2: ("n2",)}


def test_without_a_known_end_jobs_start_on_what_the_head_has_no_need_of() -> None:
    cores = waiting(2, shape(0, cores_per_node=8.0))
    decision = decided(nodes(1), waiting(1, shape(cores_per_node=56.0)), cores, busy=[running(9, shape(), "n1")])
    assert started(decision) == {2: ("n1",)}


def test_without_a_known_end_cores_that_the_head_needs_are_kept() -> None:
    cores = waiting(2, shape(0, cores_per_node=9.0))
    decision = decided(nodes(1), waiting(1, shape(cores_per_node=56.0)), cores, busy=[running(9, shape(), "n1")])
    assert not decision.starts


# Preemption


def low(job_id: int, of: GangShape, *names: str, **fields: Any) -> RunningJob:
    """A running job that may be preempted, of priority 10."""
    return running(job_id, of, *names, **({"priority": 10, "preemptible": True} | fields))


def preempted(decision: Decision) -> set[int]:
    """The jobs that give way."""
    return {preempt.job_id for preempt in decision.preempts}


def test_a_job_of_lower_priority_gives_way() -> None:
    decision = decided(nodes(1), waiting(1), busy=[low(9, shape(), "n1")])
    assert decision.preempts == (Preempt(job_id=9, for_job=1),)


def test_the_job_that_others_give_way_to_starts_once_they_have_gone() -> None:
    wait = waits(decided(nodes(1), waiting(1), busy=[low(9, shape(), "n1", grace_s=30.0)], now=100.0), 1)
    assert (wait.reason, wait.starts_at) == (Reason.PREEMPTING, 130.0)
    assert wait.detail == "job 9, preempted for it, has not gone yet"


@pytest.mark.parametrize("stays", [{"preemptible": False}, {"priority": 50}, {"priority": 60}])
def test_other_jobs_do_not_give_way(stays: dict[str, Any]) -> None:
    assert not decided(nodes(1), waiting(1), busy=[low(9, shape(), "n1", **stays)]).preempts


def test_nobody_gives_way_to_a_job_that_starts_anyway() -> None:
    assert not decided(nodes(2), waiting(1), busy=[low(9, shape(), "n1")]).preempts


def test_nobody_gives_way_if_that_is_not_enough() -> None:
    busy = [low(8, shape(), "n1"), running(9, shape(), "n2")]
    assert not decided(nodes(2), waiting(1, shape(count=2)), busy=busy).preempts


def test_nobody_gives_way_to_a_job_that_would_start_as_soon_by_itself() -> None:
    busy = [running(8, shape(), "n1", time_limit_s=20.0), low(9, shape(), "n2", grace_s=30.0)]
    assert not decided(nodes(2), waiting(1), busy=busy).preempts


def test_one_job_gives_way_rather_than_two() -> None:
    busy = [low(7, shape(4), "n1"), low(8, shape(4), "n1"), low(9, shape(8), "n2", priority=40)]
    assert preempted(decided(nodes(2), waiting(1), busy=busy)) == {9}


def test_of_as_many_the_lowest_priority_gives_way() -> None:
    busy = [low(8, shape(), "n1", priority=20, started_at=5.0), low(9, shape(), "n2", priority=15)]
    assert preempted(decided(nodes(2), waiting(1), busy=busy)) == {9}


def test_of_one_priority_the_youngest_gives_way() -> None:
    busy = [low(8, shape(), "n1", started_at=5.0), low(9, shape(), "n2", started_at=6.0)]
    assert preempted(decided(nodes(2), waiting(1), busy=busy, now=10.0)) == {9}


def test_of_several_jobs_on_a_node_as_few_as_needed_give_way() -> None:
    busy = [low(number, shape(number), "n1", started_at=number) for number in (1, 3, 4)]
    assert preempted(decided(nodes(1), waiting(9, shape(5)), busy=busy)) == {3, 4}


def test_for_a_gang_jobs_on_several_nodes_give_way() -> None:
    busy = [low(7, shape(), "n1"), low(8, shape(), "n2"), low(9, shape(), "n3", priority=20)]
    assert preempted(decided(nodes(3), waiting(1, shape(count=2)), busy=busy)) == {7, 8}


def test_a_job_is_spared_once_others_that_must_go_make_its_room() -> None:
    """Job 6 on n1 is the least of all, but job 8 has to go for n2 and clears n1 as well."""
    busy = [
        low(6, shape(4), "n1", priority=5),
        running(7, shape(4), "n2"),
        low(8, shape(4, count=2), "n1", "n2", priority=20),
        low(9, shape(), "n3"),
    ]
    assert preempted(decided(nodes(3), waiting(1, shape(4, count=3)), busy=busy)) == {8, 9}


def test_one_gang_gives_way_to_another_rather_than_two_jobs() -> None:
    busy = [low(7, shape(), "n1"), low(8, shape(), "n2"), low(9, shape(count=2), "n3", "n4", priority=40)]
    assert preempted(decided(nodes(4), waiting(1, shape(count=2)), busy=busy)) == {9}


def test_for_a_gang_of_one_rack_jobs_of_one_rack_give_way() -> None:
    on = [*[node(f"n{number}", rack="a") for number in (1, 2)], *[node(f"n{number}", rack="b") for number in (3, 4)]]
    busy = [low(number, shape(), f"n{number}", priority=priority) for number, priority in enumerate((5, 30, 10, 10), 1)]
    assert preempted(decided(on, waiting(9, shape(count=2, same_rack=True)), busy=busy)) == {3, 4}


def test_nobody_else_gives_way_while_one_that_suffices_is_ending() -> None:
    busy = [low(8, shape(), "n1", ending=True), low(9, shape(), "n2")]
    decision = decided(nodes(2), waiting(1), busy=busy)
    assert (preempted(decision), waits(decision, 1).reason) == (set(), Reason.PREEMPTING)


def test_what_an_ending_job_leaves_is_promised_once() -> None:
    busy = [low(8, shape(), "n1", ending=True), low(9, shape(), "n2")]
    assert decided(nodes(2), waiting(1), waiting(2), busy=busy).preempts == (Preempt(job_id=9, for_job=2),)


def test_what_is_free_already_is_kept_for_the_job_that_others_give_way_to() -> None:
    busy = [low(9, shape(), "n1")]
    decision = decided(nodes(2), waiting(1, shape(count=2)), waiting(2, priority=5, time_limit_s=1.0), busy=busy)
    assert (preempted(decision), started(decision)) == ({9}, {})


def test_a_job_that_waits_for_one_that_was_not_preempted_for_it_says_so() -> None:
    wait = waits(decided(nodes(1), waiting(1), busy=[running(9, shape(), "n1", ending=True)]), 1)
    assert (wait.reason, wait.detail, wait.starts_at) == (Reason.RESOURCES, "job 9 has not ended yet", 30.0)


def test_nobody_gives_way_to_a_job_behind_the_head() -> None:
    on = [node("n1"), node("n2", accelerators=2)]
    busy = [running(8, shape(), "n1"), low(9, shape(2), "n2")]
    assert not decided(on, waiting(1), waiting(2, shape(2)), busy=busy).preempts


def test_an_ending_job_on_a_node_keeps_it_until_it_has_gone() -> None:
    assert not decided(nodes(1), waiting(1), busy=[low(9, shape(), "n1", ending=True)]).starts


# Estimates


def test_a_job_behind_the_head_starts_after_it() -> None:
    queue = [waiting(1, time_limit_s=HOUR), waiting(2, time_limit_s=HOUR), waiting(3, time_limit_s=HOUR)]
    decision = decided(nodes(1), *queue, busy=[running(9, shape(), "n1", time_limit_s=HOUR)])
    assert [one.starts_at for one in decision.pending.values()] == [HOUR, 2 * HOUR, 3 * HOUR]


def test_small_jobs_behind_the_head_start_together() -> None:
    queue = [waiting(1, time_limit_s=HOUR), *[waiting(number, shape(4), time_limit_s=HOUR) for number in (2, 3, 4)]]
    decision = decided(nodes(1), *queue, busy=[running(9, shape(), "n1", time_limit_s=HOUR)])
    assert [one.starts_at for one in decision.pending.values()] == [HOUR, 2 * HOUR, 2 * HOUR, 3 * HOUR]


def test_a_job_behind_one_without_a_time_limit_has_no_estimate() -> None:
    queue = [waiting(1), waiting(2, time_limit_s=HOUR)]
    decision = decided(nodes(1), *queue, busy=[running(9, shape(), "n1", time_limit_s=HOUR)])
    assert waits(decision, 2).starts_at is None


def test_a_job_that_waits_for_the_nodes_of_a_head_without_an_estimate_has_none() -> None:
    queue = [waiting(1, time_limit_s=HOUR), waiting(2, time_limit_s=HOUR)]
    decision = decided(nodes(1), *queue, busy=[running(9, shape(), "n1")])
    assert waits(decision, 2).starts_at is None


def test_a_job_on_other_nodes_than_those_of_the_head_has_its_own_estimate() -> None:
    on = [node("n1"), node("n2", accelerators=2)]
    busy = [running(8, shape(), "n1"), running(9, shape(2), "n2", time_limit_s=HOUR)]
    assert waits(decided(on, waiting(1), waiting(2, shape(2)), busy=busy), 2).starts_at == HOUR


def test_a_gang_of_one_rack_is_estimated_in_one_rack() -> None:
    on = [node("n1", rack="a"), node("n2", rack="a"), node("n3", rack="b")]
    busy = [running(number, shape(), f"n{number}", time_limit_s=number * HOUR) for number in (1, 2, 3)]
    queue = [waiting(8, shape(exclude=frozenset({"n1", "n2"})), time_limit_s=HOUR)]
    queue.append(waiting(9, shape(count=2, same_rack=True), time_limit_s=HOUR))
    assert waits(decided(on, *queue, busy=busy), 9).starts_at == 2 * HOUR


def test_so_many_jobs_have_an_estimate_and_all_a_position() -> None:
    queue = [waiting(number, time_limit_s=60.0) for number in range(1, MOST_ESTIMATES + 11)]
    decision = decided(nodes(1), *queue, busy=[running(0, shape(), "n1", time_limit_s=60.0)])
    assert waits(decision, MOST_ESTIMATES).starts_at == 60.0 * MOST_ESTIMATES
    assert waits(decision, MOST_ESTIMATES + 10) == Pending(
        reason=Reason.PRIORITY, detail="behind job 1 (priority 50)", position=MOST_ESTIMATES + 10, starts_at=None
    )


def test_a_job_that_starts_now_pushes_the_estimates_behind_it() -> None:
    decision = decided(nodes(1), waiting(1, time_limit_s=60.0), waiting(2))
    assert waits(decision, 2).starts_at == 60.0


def test_a_node_that_is_not_in_the_snapshot_does_not_matter() -> None:
    busy = [running(9, shape(count=2), "n1", "gone")]
    assert not decided(nodes(1), waiting(1), busy=busy).starts


def test_a_node_that_lost_an_accelerator_in_use_takes_nothing() -> None:
    on = [replace(node("n1"), accelerators=4)]
    assert not decided(on, waiting(1, shape(0, cores_per_node=1.0)), busy=[running(9, shape(8), "n1")]).starts


def test_a_role_leaves_a_node_to_another_that_needs_it_more() -> None:
    """The second one alone would take the fuller node, the only one of the kind that the third names."""
    on = (node("a", 2, accelerator="H100"), node("b", 8), node("c", 0))
    gang = with_roles(shape(0, cores_per_node=64.0), shape(1), shape(2, accelerator="H100"))
    assert decide(snapshot(on, [waiting(1, gang)])).starts == (Start(job_id=1, nodes=("c", "b", "a")),)
    busy = running(9, shape(8), "b")
    pending = decide(snapshot(on, [waiting(1, gang)], [busy])).pending[1]
    needs = "needs 64 cores on 1 node, and 1 accelerator on 1 node, and 2 H100 on 1 node"
    assert pending.detail == f"{needs}; too few nodes have that free at once"
