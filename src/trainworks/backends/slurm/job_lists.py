"""Jobs as squeue and sacct list them."""

from __future__ import annotations

from trainworks.backends.backend import JobStatus
from trainworks.backends.slurm.run_copies import tag_here
from trainworks.backends.slurm.states import cause_of, exit_code_of, expand, job_state
from trainworks.jobs.state import JobState

QUEUE_FORMAT = (
    "JobID:20|,State:20|,RestartCnt:8|,exit_code:16|,StartTime:24|,EndTime:24|,NodeList:4096|,Comment:256|,Reason:256"
)
"""Fields of a job in the queue, for `squeue --Format`."""
HISTORY_FORMAT = "JobIDRaw,State,ExitCode,Start,End,NodeList"
"""Fields of a job in accounting, for `sacct --format`."""


def in_the_queue(said: str) -> dict[str, JobStatus]:
    """Status of the jobs that squeue lists, by number."""
    return dict(_queued(line) for line in said.splitlines() if line.count("|") >= QUEUE_FORMAT.count("|"))


def in_history(said: str) -> dict[str, JobStatus]:
    """Status of the jobs that sacct lists and that have ended, by number.

    A job that slurmctld has lost waits or runs there for ever.
    """
    rows = (line.split("|") for line in said.splitlines())
    found = {row[0]: _remembered(*row[1:]) for row in rows if len(row) == HISTORY_FORMAT.count(",") + 1}
    return {job: one for job, one in found.items() if not (one.state.waits or one.state.holds_resources)}


def _queued(line: str) -> tuple[str, JobStatus]:
    """One line of squeue; the reason stands last, because it may hold anything."""
    parts = (part.strip() for part in line.split("|", QUEUE_FORMAT.count("|")))
    job, word, restarts, code, starts, ends, nodes, comment, reason = parts
    why = reason if reason not in ("None", "") else None
    state = _ended(job_state(word, why))
    return job, JobStatus(
        state=state,
        raw=word,
        reason=why,
        cause=cause_of(word, why),
        nodes=expand(nodes),
        restarts=int(restarts or 0),
        exit_code=exit_code_of(code) if state.is_final else None,
        starts_at=_time(starts),
        ended_at=_time(ends) if state.is_final else None,
        tag=tag_here(comment) or None,
    )


def _time(text: str) -> float | None:
    """Seconds since the epoch; None for `N/A`, `Unknown` and their like."""
    return float(text) if text.isdecimal() else None


def _remembered(word: str, code: str, start: str, end: str, nodes: str) -> JobStatus:
    """One line of sacct, which counts no restarts in old versions."""
    state = _ended(job_state(word, None))
    return JobStatus(
        state=state,
        raw=word,
        cause=cause_of(word, None),
        nodes=expand(nodes) if nodes != "None assigned" else (),
        exit_code=exit_code_of(code),
        starts_at=_time(start),
        ended_at=_time(end) if state.is_final else None,
    )


def _ended(state: JobState) -> JobState:
    """Map PREEMPTED to FAILED: in Slurm such a job has ended, and a requeued one is PENDING."""
    return JobState.FAILED if state is JobState.PREEMPTED else state
