"""Waiting for a node against going on without it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainworks.recover.decisions import MissingNode, going_on_pays, price_of_going_on, price_of_waiting

HOUR = 3600.0


def missing(**changes: float) -> MissingNode:
    usual = {"nodes": 8, "fewer": 7, "step_s": 1.0, "fewer_step_s": 1.2, "steps_left": 100_000}
    return MissingNode(**(usual | {"repair_s": 24 * HOUR, "restart_s": 600.0} | changes))  # type: ignore[arg-type]


def test_a_day_without_a_node_is_trained_through() -> None:
    waiting, going_on = price_of_waiting(missing()), price_of_going_on(missing())
    assert waiting.seconds == 24 * HOUR + 600.0 + 100_000
    assert going_on.seconds == 24 * HOUR + 600.0 + 100_000 - (24 * HOUR - 600.0) / 1.2
    assert going_on_pays(missing())


def test_a_node_that_is_back_before_the_ranks_could_start_is_waited_for() -> None:
    assert not going_on_pays(missing(repair_s=500.0))


def test_a_job_that_ends_before_the_repair_pays_for_its_own_steps_alone() -> None:
    price = price_of_going_on(missing(steps_left=10))
    assert (price.seconds, price.node_seconds) == (612.0, 7 * 612.0)


JOBS = st.builds(
    missing,
    steps_left=st.integers(1, 10**6),
    repair_s=st.floats(1.0, 1e6),
    restart_s=st.floats(0.1, 1e4),
    fewer_step_s=st.floats(1.0, 10.0),
)


@given(JOBS)
def test_what_ends_sooner_never_costs_more(job: MissingNode) -> None:
    waiting, going_on = price_of_waiting(job), price_of_going_on(job)
    assert going_on.seconds >= waiting.seconds or going_on.node_seconds <= waiting.node_seconds + 1e-6


@given(JOBS)
def test_a_longer_repair_never_speaks_for_waiting(job: MissingNode) -> None:
    longer = missing(
        steps_left=job.steps_left, repair_s=2 * job.repair_s, restart_s=job.restart_s, fewer_step_s=job.fewer_step_s
    )
    assert not going_on_pays(job) or going_on_pays(longer)
