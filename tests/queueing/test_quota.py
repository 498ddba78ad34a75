"""Quotas of teams and users in the queue's decision: never exceeded, never wasted, and no job starves behind them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.queueing.queues import node, nodes, running, shape, snapshot, waiting, with_roles
from trainworks.queueing.decide import decide
from trainworks.queueing.snapshot import HoursQuota, Quota, Reason, Snapshot

ACCOUNTS = ("team vision", "team speech", "user ann")


@st.composite
def shared(draw: st.DrawFn) -> Snapshot:
    """An idle cluster, jobs of accounts, and what those hold already."""
    queue = [
        waiting(
            number,
            shape(draw(st.integers(1, 4)), nodes_min=1, nodes_max=draw(st.integers(1, 3))),
            accounts=tuple(draw(st.sets(st.sampled_from(ACCOUNTS), max_size=2))),
            priority=draw(st.sampled_from([10, 50])),
        )
        for number in range(1, draw(st.integers(1, 12)) + 1)
    ]
    quotas = [
        Quota(account=name, max_accelerators=most, accelerators_used=draw(st.integers(0, most)))
        for name in ACCOUNTS
        if (most := draw(st.integers(0, 9)))
    ]
    return replace(snapshot(nodes(draw(st.integers(1, 4)), accelerators=4), queue), quotas=tuple(quotas))


def used(state: Snapshot) -> Counter[str]:
    """Accelerators of every account once the decided jobs have started."""
    jobs = {job.job_id: job for job in state.waiting}
    found = Counter({quota.account: quota.accelerators_used for quota in state.quotas})
    for start in decide(state).starts:
        for account in jobs[start.job_id].accounts:
            found[account] += len(start.nodes) * jobs[start.job_id].shape.accelerators_per_node
    return found


@given(shared())
def test_no_account_holds_more_than_its_quota(state: Snapshot) -> None:
    found = used(state)
    assert all(found[quota.account] <= quota.max_accelerators for quota in state.quotas)


@given(shared())
def test_a_quota_keeps_no_job_that_it_has_room_for(state: Snapshot) -> None:
    """Unless an earlier job of the same account waits: for the quota, or with nodes kept for it."""
    pending, found = decide(state).pending, used(state)
    limits = {quota.account: quota.max_accelerators for quota in state.quotas}
    kept = {account for job in state.waiting for account in job.accounts if job.job_id in pending}
    for job in state.waiting:
        if job.job_id in pending and pending[job.job_id].reason is Reason.QUOTA:
            full = [one for one in job.accounts if found[one] + job.shape.accelerators_per_node > limits.get(one, 99)]
            others = [one for one in state.waiting if one.job_id in pending and one != job]
            assert full or any(kept.intersection(job.accounts, one.accounts) for one in others)


@given(shared())
def test_quotas_without_effect_change_nothing(state: Snapshot) -> None:
    loose = tuple(Quota(account=name, max_accelerators=10**6) for name in ACCOUNTS)
    assert decide(replace(state, quotas=loose)) == decide(replace(state, quotas=()))


def test_a_job_waits_for_its_team_and_says_who_holds_what() -> None:
    quota = Quota(account="team vision", max_accelerators=4, accelerators_used=4, holders=("ann (lm-1)",))
    queue = [waiting(1, shape(2), accounts=("team vision",)), waiting(2, shape(2))]
    decision = decide(replace(snapshot(nodes(1), queue), quotas=(quota,)))
    assert [start.job_id for start in decision.starts] == [2]
    assert decision.pending[1].reason is Reason.QUOTA
    assert decision.pending[1].detail == (
        "needs 2 accelerators; team vision holds 4 of its 4 accelerators, by ann (lm-1)"
    )


def test_a_job_above_the_quota_by_itself_holds_up_no_other() -> None:
    quota = Quota(account="team vision", max_accelerators=2)
    queue = [waiting(number, shape(count), accounts=("team vision",)) for number, count in ((1, 3), (2, 2))]
    decision = decide(replace(snapshot(nodes(1), queue), quotas=(quota,)))
    assert [start.job_id for start in decision.starts] == [2]
    assert decision.pending[1].detail == "needs 3 accelerators, and team vision may hold 2 accelerators at once"


@pytest.mark.parametrize(
    ("used", "accelerators", "starts"),
    [(0.0, 2, True), (99.9, 2, True), (100.0, 2, False), (130.0, 2, False), (130.0, 0, True)],
    ids=["unused", "almost used up", "used up", "exceeded by running jobs", "a job without accelerators"],
)
def test_an_account_without_accelerator_hours_starts_no_job_with_accelerators(
    used: float, accelerators: int, starts: bool
) -> None:
    hours = HoursQuota(limit=100.0, used=used, month="2026-11", ends="2026-12-01 00:00 UTC")
    job = waiting(1, shape(accelerators), accounts=("user ann", "team vision"))
    state = replace(snapshot(nodes(1), [job]), quotas=(Quota(account="team vision", hours=hours),))
    assert bool(decide(state).starts) is starts


def test_a_job_that_waits_for_accelerator_hours_says_how_many_and_until_when() -> None:
    hours = HoursQuota(limit=100.0, used=101.25, month="2026-11", ends="2026-12-01 00:00 UTC")
    job = waiting(1, shape(2), accounts=("team vision",))
    state = replace(snapshot(nodes(1), [job]), quotas=(Quota(account="team vision", hours=hours),))
    assert decide(state).pending[1].reason is Reason.QUOTA
    assert decide(state).pending[1].detail == (
        "needs 2 accelerators; team vision has used 101.2 of its 100 accelerator hours in 2026-11; "
        "the next month begins 2026-12-01 00:00 UTC"
    )


def test_a_gang_of_a_range_takes_as_many_nodes_as_its_quota_allows() -> None:
    quota = Quota(account="team vision", max_accelerators=5)
    job = waiting(1, shape(2, nodes_min=1, nodes_max=4), accounts=("team vision",))
    (start,) = decide(replace(snapshot(nodes(4), [job]), quotas=(quota,))).starts
    assert len(start.nodes) == 2


@given(st.lists(st.integers(1, 3), min_size=3, max_size=8))
def test_a_wide_job_does_not_starve_behind_narrow_ones_of_its_team(narrow: list[int]) -> None:
    """Its team may hold what it needs, and narrow jobs that were submitted later would fit all the time."""
    wide = waiting(1, shape(4), accounts=("team vision",))
    later = [waiting(number, shape(count), accounts=("team vision",)) for number, count in enumerate(narrow, 2)]
    for still in (2, 1, 0):  # accelerators that earlier jobs of the team hold, which end one by one
        quota = Quota(account="team vision", max_accelerators=4, accelerators_used=still)
        busy = [running(90, shape(still), "n1")] if still else []
        decision = decide(replace(snapshot([node("n1"), node("n2")], [wide, *later], busy), quotas=(quota,)))
        assert [start.job_id for start in decision.starts] == ([] if still else [1])


@pytest.mark.parametrize(("most", "starts"), [(8, True), (7, False)])
def test_roles_count_with_what_each_takes(most: int, starts: bool) -> None:
    job = waiting(1, with_roles(shape(4), shape(2, count=2), shape(0)), accounts=("team vision",))
    quota = Quota(account="team vision", max_accelerators=most)
    decision = decide(replace(snapshot(nodes(4), [job]), quotas=(quota,)))
    assert bool(decision.starts) is starts
    if not starts:
        assert decision.pending[1].detail == "needs 8 accelerators, and team vision may hold 7 accelerators at once"
