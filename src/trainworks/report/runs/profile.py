"""Profiled steps of a run: summaries by rank, and their traces."""

from __future__ import annotations

from pathlib import Path

from trainworks.record.profile import ProfileSummary, read_summaries, trace_file
from trainworks.record.run_dir import RunDir
from trainworks.report.runs.history import History
from trainworks.report.runs.part import ReportPart


class ProfiledRank(ReportPart):
    """One rank over one window of steps."""

    summary: ProfileSummary
    trace: str
    """Path of the trace, from the run directory."""


def build_profiles(run_dir: RunDir, history: History) -> tuple[ProfiledRank, ...]:
    """Every window that was recorded, in the order of recording; one whose files are gone is left out."""
    folders = dict.fromkeys(
        run_dir.profile(int(event["first_step"]), int(event["last_step"])) for event in history.of_kind("profile")
    )
    return tuple(
        ProfiledRank(summary=summary, trace=_relative(trace_file(folder, summary.rank), run_dir.path))
        for folder in folders
        for summary in read_summaries(folder)
    )


def _relative(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder))
