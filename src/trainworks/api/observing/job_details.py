"""What lists and descriptions of jobs show beside their rows: arrays, costs, failures, and runs without a job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from trainworks.api.jobs import Job
from trainworks.backends.store_place import store_url
from trainworks.backends.submission import submitted_runs
from trainworks.jobs.state import JobState
from trainworks.jobs.store import open_store
from trainworks.record.events.log import read_events
from trainworks.recover.failures import describe_failure, first_failure


def array_states(listed: Sequence[Job]) -> dict[str, dict[JobState, int]]:
    """Jobs by state of each array that one of these jobs belongs to."""
    arrays = {job.row.spec.array for job in listed if job.row.spec.array}
    return open_store(store_url()).array_states(arrays) if arrays else {}


def costs_so_far(listed: Sequence[Job], now: float, arrays: Collection[str] = ()) -> dict[int, float]:
    """Cost of each of these jobs whose run file gives a price, in USD, by number of the job.

    Args:
        listed: the jobs.
        now: the time, in seconds since the epoch.
        arrays: of these, the job that is listed stands for all jobs: its cost is their sum.
    """
    if not any(job.row.cluster and "usd_per_accelerator_hour" in job.row.cluster for job in listed):
        return {}
    costs: dict[int, float] = {}
    shown_as = {job.row.spec.array: job.id for job in listed if job.row.spec.array in arrays}
    for one in open_store(store_url()).billed_attempts([job.id for job in listed], arrays=arrays):
        if (usd := one.usd(now)) is not None:
            line = shown_as.get(one.array, one.job_id)
            costs[line] = costs.get(line, 0.0) + usd
    return costs


def missing_runs(folder: Path) -> list[str]:
    """Ids of submitted runs of a folder that are not in the job store."""
    submitted = submitted_runs(folder)
    known = open_store(store_url()).run_dirs() if submitted else ()
    return [run.run_id for run in submitted if str(run.path.resolve()) not in known]


def first_failure_lines(job: Job, tail_lines: int = 10) -> list[str]:
    """The first failed rank of a job and the end of its log; empty if no rank failed."""
    events = read_events(job.run_dir.events_file)
    failure = first_failure(events)
    rank = failure.get("rank") if failure else None
    if failure is None or rank is None:
        return []
    host = failure.get("host", "an unknown host")
    lines = [f"first failure: rank {rank} on {host}: {describe_failure(failure, events)}"]
    file = job.run_dir.rank_log(rank)
    try:
        log = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return lines
    return [*lines, f"end of {file}:", *(f"    {line}" for line in log[-tail_lines:])]
