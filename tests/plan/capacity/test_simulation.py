"""Replaying a trace: laws that hold whatever the jobs and the policy."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.plan.capacity.traces import HOUR, job, jobs, policies, trace, traces
from trainworks.errors import UsageError
from trainworks.plan.capacity.jobs import TraceJob, trace_of
from trainworks.plan.capacity.policy import FIXED, ON_DEMAND, SPOT, Elastic, Policy, Spot
from trainworks.plan.capacity.simulation import Replay, replay

ONE_NODE = Policy(node_accelerators=8, fixed_nodes=1)


def starts(done: Replay) -> dict[int, float]:
    """First start of every job."""
    return {run.job: run.start_s for run in sorted(done.runs, key=lambda run: -run.start_s)}


@given(traces, policies)
def test_every_job_runs_to_its_full_length_and_waste_comes_on_top(some, policy) -> None:
    done = replay(some, policy)
    held = sum(max(0.0, run.end_s - run.start_s) * run.accelerators for run in done.runs)
    sizes = {run.job: run.accelerators for run in done.runs}
    asked = sum(sizes[index] * some.duration_s[index] for index in range(len(some)))
    assert held == pytest.approx(asked + done.wasted_accelerator_s)
    assert set(sizes) == set(range(len(some)))


@given(traces, policies)
def test_without_interruptions_every_job_runs_once_and_nothing_is_wasted(some, policy) -> None:
    done = replay(some, replace(policy, spot=Spot()))
    assert Counter(run.job for run in done.runs) == Counter(range(len(some)))
    assert (done.interruptions, done.wasted_accelerator_s) == (0, 0.0)


@given(traces, policies)
def test_no_node_ever_has_more_jobs_than_accelerators(some, policy) -> None:
    done = replay(some, policy)
    events = sorted(
        event
        for run in done.runs
        if run.end_s > run.start_s
        for node in run.nodes
        for event in ((run.end_s, -run.each, run.pool, node), (run.start_s, run.each, run.pool, node))
    )
    used: Counter[tuple[str, int]] = Counter()
    for _, change, pool, node in events:
        used[pool, node] += change
        assert 0 <= used[pool, node] <= policy.node_accelerators


@given(traces, policies)
def test_no_class_ever_has_more_nodes_than_allowed(some, policy) -> None:
    most = replay(some, policy).most_nodes
    assert most[SPOT] <= policy.spot.max_nodes
    assert most[ON_DEMAND] <= policy.on_demand.max_nodes


@given(traces, policies)
def test_jobs_hold_no_more_than_is_bought(some, policy) -> None:
    done = replay(some, policy)
    for name, bought in done.bought_accelerator_s.items():
        held = sum(max(0.0, run.end_s - run.start_s) * run.accelerators for run in done.runs if run.pool == name)
        assert held <= bought * (1 + 1e-9)


@given(traces, policies)
def test_the_same_seed_gives_the_same_replay(some, policy) -> None:
    assert replay(some, policy) == replay(some, policy)


@given(traces, policies)
def test_only_preemptible_jobs_run_on_spot_nodes(some, policy) -> None:
    assert all(some.preemptible[run.job] for run in replay(some, policy).runs if run.pool == SPOT)


@given(st.lists(jobs, min_size=2, max_size=20), st.integers(5, 8))
def test_without_backfilling_jobs_of_one_priority_start_in_the_order_of_submission(several, nodes) -> None:
    some = trace_of([replace(each, priority=0) for each in several])
    began = starts(replay(some, Policy(node_accelerators=4, fixed_nodes=nodes, backfill=False)))
    assert all(began[one] <= began[other] for one, other in pairwise(range(len(some))))


@given(st.lists(jobs, min_size=2, max_size=20), st.integers(5, 8))
def test_backfilling_never_delays_the_first_job_that_has_to_wait(several, nodes) -> None:
    several = sorted((replace(each, priority=0) for each in several), key=lambda each: each.submit_s)
    policy = Policy(node_accelerators=4, fixed_nodes=nodes)
    done = replay(trace_of(several), policy)
    first = next((index for index, wait_s in enumerate(done.wait_s) if wait_s > 0), None)
    assume(first is not None)
    alone = replay(trace_of(several[: first + 1]), policy)
    assert done.wait_s[first] <= alone.wait_s[first] + 1e-9


@given(st.lists(jobs, min_size=1, max_size=20), st.integers(1, 6))
def test_jobs_of_one_node_in_strict_order_never_wait_longer_on_more_nodes(several, nodes) -> None:
    some = trace_of([replace(each, accelerators=4, priority=0) for each in several])
    policy = Policy(node_accelerators=4, fixed_nodes=nodes, backfill=False)
    fewer, more = replay(some, policy), replay(some, replace(policy, fixed_nodes=nodes + 1))
    assert all(after <= before + 1e-6 for before, after in zip(fewer.wait_s, more.wait_s, strict=True))


def test_with_backfilling_one_more_node_can_make_a_job_wait_longer() -> None:
    several = [job(0, 1, 4), job(0, 3, 3), job(0, 2, 6), job(0, 3, 1), job(0, 1, 6)]
    policy = Policy(node_accelerators=1, fixed_nodes=3)
    worse = [
        index
        for nodes in (3, 4, 5)
        for index in range(len(several))
        if replay(trace(*several), replace(policy, fixed_nodes=nodes + 1)).wait_s[index]
        > replay(trace(*several), replace(policy, fixed_nodes=nodes)).wait_s[index]
    ]
    assert worse


@pytest.mark.parametrize(("servers", "load"), [(1, 0.6), (4, 0.7), (16, 0.8)])
def test_poisson_jobs_of_one_accelerator_wait_as_erlang_says(servers: int, load: float) -> None:
    rng = np.random.default_rng(5)
    submit_s = np.cumsum(rng.exponential(1 / (servers * load), 30_000))
    several = [
        TraceJob(float(at), 1, float(length)) for at, length in zip(submit_s, rng.exponential(1, 30_000), strict=True)
    ]
    waits = replay(trace_of(several), Policy(node_accelerators=1, fixed_nodes=servers)).wait_s
    assert np.mean(waits) == pytest.approx(erlang_c_wait(servers, load), rel=0.15)


@given(st.lists(jobs, min_size=1, max_size=30), st.integers(1, 5))
def test_jobs_of_one_accelerator_wait_as_customers_of_several_servers_do(several, servers) -> None:
    some = trace_of([replace(each, accelerators=1, priority=0) for each in several])
    free_at_s, waits = [0.0] * servers, []
    for submit_s, length_s in zip(some.submit_s, some.duration_s, strict=True):
        start_s = max(submit_s, heapq.heappop(free_at_s))
        heapq.heappush(free_at_s, start_s + length_s)
        waits.append(start_s - submit_s)
    assert replay(some, Policy(node_accelerators=1, fixed_nodes=servers)).wait_s == waits


def erlang_c_wait(servers: int, load: float) -> float:
    """Mean wait of M/M/c in service times: C(c, a) / (c - a)."""
    offered = servers * load
    waiting = offered**servers / math.factorial(servers) / (1 - load)
    idle = sum(offered**count / math.factorial(count) for count in range(servers))
    return waiting / (idle + waiting) / (servers - offered)


def test_jobs_without_a_wait_buy_no_elastic_nodes() -> None:
    policy = replace(ONE_NODE, on_demand=Elastic(max_nodes=4), spot=Spot(max_nodes=4))
    bought = replay(trace(job(0, 8, 60), job(60, 8, 60, preemptible=True)), policy).bought_accelerator_s
    assert bought == {FIXED: 8 * 120, SPOT: 0, ON_DEMAND: 0}


def test_two_small_jobs_share_a_node() -> None:
    assert replay(trace(job(0, 4, 60), job(0, 4, 60)), ONE_NODE).wait_s == [0, 0]


def test_a_gang_that_is_no_multiple_of_a_node_takes_whole_nodes() -> None:
    done = replay(trace(job(0, 9, 60), job(0, 4, 60)), Policy(node_accelerators=8, fixed_nodes=2))
    assert done.wait_s == [0, 60]


def test_a_higher_priority_goes_first() -> None:
    some = trace(job(0, 8, 60), job(1, 8, 60), job(2, 8, 60, priority=1))
    assert replay(some, ONE_NODE).end_s == [60, 180, 120]


def test_a_short_job_is_backfilled_and_a_long_one_is_not() -> None:
    some = trace(job(0, 8, 100), job(1, 16, 10), job(2, 8, 90), job(3, 8, 98))
    done = replay(some, Policy(node_accelerators=8, fixed_nodes=2))
    assert starts(done) == {0: 0, 1: 100, 2: 2, 3: 110}


# On-demand nodes

ELASTIC = Elastic(max_nodes=2, start_latency_s=300, idle_timeout_s=900)
EMPTY = Policy(node_accelerators=8, fixed_nodes=0, on_demand=ELASTIC)


def test_an_on_demand_node_is_paid_from_its_order_to_the_end_of_its_idle_timeout() -> None:
    done = replay(trace(job(0, 8, 60)), EMPTY)
    assert done.wait_s == [300]
    assert done.bought_accelerator_s[ON_DEMAND] == 8 * (300 + 60 + 900)


def test_an_idle_node_is_used_again_before_another_is_ordered() -> None:
    done = replay(trace(job(0, 8, 60), job(1000, 8, 60)), EMPTY)
    assert done.wait_s == [300, 0]
    assert done.most_nodes[ON_DEMAND] == 1


def test_the_least_billing_time_is_paid_and_used() -> None:
    policy = replace(EMPTY, on_demand=replace(ELASTIC, min_billing_s=7200.0))
    assert replay(trace(job(0, 8, 60)), policy).bought_accelerator_s[ON_DEMAND] == 8 * 7200


def test_a_small_job_shares_a_node_that_is_on_its_way() -> None:
    done = replay(trace(job(0, 4, 60), job(100, 4, 60)), EMPTY)
    assert (done.wait_s, done.most_nodes[ON_DEMAND]) == ([300, 200], 1)


@pytest.mark.parametrize(("backlog_s", "wait_s"), [(99.0, 300), (100.0, 1000)])
def test_nodes_are_ordered_when_the_backlog_is_exceeded(backlog_s: float, wait_s: float) -> None:
    policy = replace(ONE_NODE, on_demand=ELASTIC, backlog_s=backlog_s)
    assert replay(trace(job(0, 8, 1000), job(0, 8, 100)), policy).wait_s[1] == wait_s


def test_nodes_are_ordered_for_a_job_that_has_lost_its_patience() -> None:
    policy = replace(ONE_NODE, on_demand=ELASTIC, backlog_s=math.inf, patience_s=200.0)
    assert replay(trace(job(0, 8, 1000), job(0, 8, 100)), policy).wait_s[1] == 500


def test_a_job_too_large_for_the_fixed_nodes_is_not_starved_by_smaller_ones() -> None:
    small = [job(at, 8, 1000) for at in range(0, 30_000, 400)]
    done = replay(trace(*small, job(100, 16, 60)), replace(ONE_NODE, on_demand=ELASTIC))
    large = next(run for run in done.runs if len(run.nodes) == 2)
    assert large.start_s < 3000


def test_a_job_that_fits_nowhere_is_refused_with_what_it_may_use() -> None:
    with pytest.raises(UsageError, match="needs 4 nodes, but it may use at most 1 fixed, 0 spot, 2 on-demand nodes"):
        replay(trace(job(0, 32, 60)), replace(ONE_NODE, on_demand=ELASTIC, spot=Spot(max_nodes=9)))


# Spot nodes


def spot_only(**terms: float) -> Policy:
    return Policy(
        node_accelerators=1,
        fixed_nodes=0,
        spot=Spot(max_nodes=1, **({"start_latency_s": 0.0} | terms)),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("mean_life_s", [HOUR, 3 * HOUR, 8 * HOUR])
def test_the_waste_of_spot_nodes_is_that_of_a_renewal_process(mean_life_s: float) -> None:
    """Checkpoints of 60 s at Young's interval, restart in 10 min, no notice."""
    done = replay(trace(job(0, 1, 400 * mean_life_s, preemptible=True)), spot_only(mean_life_s=mean_life_s, notice_s=0))
    held = sum(run.end_s - run.start_s for run in done.runs)
    assert done.interruptions > 300
    assert done.wasted_accelerator_s / held == pytest.approx(renewal_waste(mean_life_s), abs=0.02)


def renewal_waste(mean_life_s: float) -> float:
    """1 - T/M exp(-R/M) / (exp((T + C) / M) - 1): a life of mean M restarts, then works in intervals.

    An interval counts once its checkpoint is written. To first order that is C / T + (T / 2 + R) / M.
    """
    checkpoint_s, restart_s = 60.0, 600.0
    interval_s = math.sqrt(2 * checkpoint_s * mean_life_s)
    done = math.exp(-restart_s / mean_life_s) / math.expm1((interval_s + checkpoint_s) / mean_life_s)
    return 1 - interval_s / mean_life_s * done


def test_a_checkpoint_that_fits_into_the_notice_saves_all_but_the_notice() -> None:
    policy = spot_only(mean_life_s=HOUR, notice_s=120.0, restart_s=0.0)
    done = replay(trace(job(0, 1, 20 * HOUR, preemptible=True, checkpoint_s=1e9)), policy)
    assert done.interruptions > 5
    assert done.wasted_accelerator_s <= 120.0 * done.interruptions


def test_a_job_that_was_interrupted_three_times_is_kept_off_spot_nodes() -> None:
    policy = replace(spot_only(mean_life_s=HOUR), on_demand=Elastic(max_nodes=1))
    done = replay(trace(job(0, 1, 200 * HOUR, preemptible=True)), policy)
    assert [run.pool for run in done.runs] == [SPOT, SPOT, SPOT, ON_DEMAND]


def test_a_job_that_gets_nowhere_on_spot_nodes_is_an_error() -> None:
    with pytest.raises(UsageError, match="was interrupted 1,000 times and never ended"):
        replay(
            trace(job(0, 1, 100 * HOUR, preemptible=True, checkpoint_s=1e9)), spot_only(mean_life_s=60.0, notice_s=0.0)
        )
