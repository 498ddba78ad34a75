"""The smallest fixed capacity for a target."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lanes import examples
from tests.plan.capacity.traces import job, trace, traces
from trainworks.errors import UsageError
from trainworks.plan.capacity.answer import Target, capacity_for, most_nodes, num_deadlines, service_of
from trainworks.plan.capacity.policy import Policy
from trainworks.plan.capacity.simulation import replay


@settings(max_examples=examples(40))
@given(traces, st.sampled_from([0.0, 60.0, 1000.0]))
def test_the_answer_meets_the_target_and_one_node_less_does_not(some, wait_s: float) -> None:
    answer = capacity_for(some, node_accelerators=4, wait_s=wait_s)
    nodes = round(answer.nodes.value)
    assert Target(wait_s=wait_s).is_met(answer.service)
    least = max(-(-int(some.accelerators.max()) // 4), answer.load.mean.value / 4)
    if nodes - 1 >= least:
        one_less = Policy(node_accelerators=4, fixed_nodes=nodes - 1)
        assert not Target(wait_s=wait_s).is_met(service_of(some, replay(some, one_less)))


@settings(max_examples=examples(40))
@given(traces)
def test_nobody_waits_on_as_many_nodes_as_are_ever_wanted_at_once(some) -> None:
    policy = Policy(node_accelerators=4, fixed_nodes=most_nodes(some, 4))
    assert max(replay(some, policy).wait_s) == 0


def test_spare_is_what_the_capacity_has_beyond_the_mean_load() -> None:
    answer = capacity_for(trace(job(0, 8, 100), job(0, 8, 100), job(100, 16, 100)), node_accelerators=8, wait_s=0)
    assert answer.load.mean.value == 16
    assert (answer.capacity.value, answer.utilisation.value, answer.spare_share.value) == (16, 1.0, 0.0)


def test_every_team_counts_however_few_jobs_it_has() -> None:
    many = [job(100 * index, 8, 100, team="many") for index in range(50)]
    rare = job(0, 8, 100, team="rare")
    assert capacity_for(trace(*many), node_accelerators=8, wait_s=0).nodes.value == 1
    assert capacity_for(trace(*many, rare), node_accelerators=8, wait_s=0).nodes.value == 2


def test_deadlines_can_be_the_target() -> None:
    several = [job(0, 8, 100, deadline_s=limit) for limit in (100.0, 100.0, 300.0, 50.0)]
    several.append(job(900, 8, 100))
    assert capacity_for(trace(*several), node_accelerators=8, deadlines=1.0).nodes.value == 2
    assert num_deadlines(trace(*several)) == (4, 1)


def test_capacity_is_never_below_the_mean_load_even_if_a_short_trace_would_let_it_be() -> None:
    burst = [job(0, 8, 100) for _ in range(4)]
    assert capacity_for(trace(*burst), node_accelerators=8, wait_s=1e6).nodes.value == 4


def test_deadlines_that_nobody_has_are_no_target() -> None:
    with pytest.raises(UsageError, match="no job of the trace has a deadline that it can meet"):
        capacity_for(trace(job(0, 8, 100, deadline_s=50.0)), node_accelerators=8, deadlines=0.9)


def test_more_nodes_than_can_be_replayed_are_refused() -> None:
    with pytest.raises(UsageError, match="1,000,000 nodes at once; at most 100,000"):
        capacity_for(trace(job(0, 1_000_000, 100)), node_accelerators=1, wait_s=0)
