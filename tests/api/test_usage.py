"""What jobs held, summed by month, user and team."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from trainworks.api.observing.job_board import UsageKey, summed
from trainworks.jobs.job_row import BilledAttempt, Billing, Placement
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.store import open_store
from trainworks.units import Money

HOUR_S = 3600.0


def at(month: int, day: int, hour: int = 0) -> float:
    return datetime(2026, month, day, hour, tzinfo=UTC).timestamp()


def attempt(started_at: float, ended_at: float | None, *, number: int = 1, team: str = "vision") -> BilledAttempt:
    """Two accelerators at 3 USD an hour."""
    return BilledAttempt(
        job_id=1,
        owner="ann",
        billing=Billing(team, Money(3.0, "USD")),
        number=number,
        started_at=started_at,
        ended_at=ended_at,
        cores=4.0,
        accelerators=2,
    )


@pytest.mark.parametrize(
    ("held", "hours"),
    [
        ([attempt(at(10, 31, 12), at(11, 1, 6))], {"2026-11": (0, 6.0), "2026-10": (1, 12.0)}),
        ([attempt(at(9, 30, 23), at(11, 1))], {"2026-10": (0, 744.0), "2026-09": (1, 1.0)}),
        ([attempt(at(11, 30, 18), None)], {"2026-12": (0, 6.0), "2026-11": (1, 6.0)}),
        (
            [attempt(at(11, 1), at(11, 1, 2)), attempt(at(11, 1, 3), at(11, 1, 4), number=2)],
            {"2026-11": (1, 3.0)},
        ),
        ([attempt(at(12, 1, 8), at(12, 1, 7))], {"2026-12": (1, 0.0)}),
    ],
    ids=["over the end of a month", "a whole month", "still running", "started again", "clocks differ"],
)
def test_time_counts_in_the_month_in_which_it_was_held(
    held: list[BilledAttempt], hours: dict[str, tuple[int, float]]
) -> None:
    rows = summed(held, ["month"], at(12, 1, 6)).held
    assert {row.month: (row.jobs, row.accelerator_hours / 2) for row in rows} == hours
    assert all(row.usd == 3.0 * row.accelerator_hours and row.core_hours == 2 * row.accelerator_hours for row in rows)


@pytest.mark.parametrize("by", ["user", "team"])
def test_a_sum_over_months_is_the_sum_of_its_months(by: UsageKey) -> None:
    held = [attempt(at(9, 30, 23), at(11, 1)), attempt(at(10, 1), None, team="speech")]
    whole = sum(row.accelerator_hours for row in summed(held, [by], at(12, 1)).held)
    assert whole == sum(row.accelerator_hours for row in summed(held, ["month", by], at(12, 1)).held)


def test_the_accelerators_of_a_gang_on_one_machine_all_count(tmp_path: Path) -> None:
    """A machine that is not split gives the devices of all nodes of a job in one placement."""
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    node = NodeResources(cores=1.0, accelerators=1)
    spec = JobSpec(run_id="lm-1", name="lm", min_nodes=2, max_nodes=2, node=node)
    job = store.add(spec, run_dir="/runs/lm-1", owner="ann", engine="local", now=0.0)
    store.start(job, [Placement("n1", 2.0, (0, 1))], now=0.0)
    (row,) = summed(store.billed_attempts(), ["user"], HOUR_S).held
    assert (row.accelerator_hours, row.core_hours) == (2.0, 2.0)
