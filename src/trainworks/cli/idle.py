"""How an idle job is shown: a few words beside its state, and a line where its run is watched."""

from __future__ import annotations

from pathlib import Path

from trainworks.jobs.job_row import JobRow
from trainworks.jobs.state import JobState
from trainworks.record.events import Event
from trainworks.record.run_dir import RunDir
from trainworks.units import format_duration

__all__ = ["idle_line", "idle_text"]


def idle_text(job: JobRow, now: float) -> str:
    """`, idle for 40m 0s` behind the state of a job that runs and uses nothing; empty for any other."""
    if job.state is not JobState.RUNNING:
        return ""
    since = RunDir(Path(job.run_dir)).read_status().idle_since
    return f", idle for {format_duration(now - since)}" if since is not None else ""


def idle_line(event: Event) -> str:
    """What the events `idle` and `busy` say."""
    if event["kind"] == "busy":
        return f"busy again after {format_duration(event['idle_for_s'])}"
    share = event["accelerator"]
    used = [f"{share:.0%} of the accelerators"] if share is not None else []
    used.append(f"{event['cpu_cores']:.2g} cores")
    return f"idle for {format_duration(event['t'] - event['since'])}: it uses {' and '.join(used)}"
