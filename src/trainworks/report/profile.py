"""Profiled steps in the report: where a rank's time went, its top operators, and the trace itself."""

from __future__ import annotations

from html import escape
from pathlib import Path

from trainworks.record.profile import ProfileSummary, read_summaries, trace_file
from trainworks.record.run_dir import RunDir
from trainworks.report.history import History
from trainworks.report.line_plots import Segment, stacked_bar
from trainworks.report.part import ReportPart
from trainworks.units import format_duration

__all__ = ["ProfiledRank", "build_profiles", "render_profiles"]

TOP_OPERATORS = 10


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


def render_profiles(profiles: tuple[ProfiledRank, ...]) -> str:
    """The section of the page; nothing without any."""
    if not profiles:
        return ""
    note = (
        "Compute and optimizer go before communication, which counts where it is exposed. Idle is Python and waiting."
    )
    return f'<section><h2>Profile</h2><p class="soft">{note}</p>{"".join(map(_rank, profiles))}</section>'


def _rank(profiled: ProfiledRank) -> str:
    summary = profiled.summary
    title = (
        f"Steps {summary.first_step} to {summary.last_step}, rank {summary.rank}: {format_duration(summary.window_s)}"
    )
    parts = {name: share * summary.window_s for name, share in summary.shares().items()}
    bar = stacked_bar(
        [Segment(name, seconds, format_duration(seconds)) for name, seconds in parts.items()],
        whole=summary.window_s,
        title=title,
    )
    shares = "".join(
        f'<span><i class="swatch fill-{name}"></i>{name} {share:.1%}</span>' for name, share in summary.shares().items()
    )
    cells = (
        f'<td class="text">{escape(item.name)}</td><td>{item.calls:,}</td><td>{format_duration(item.self_s)}</td>'
        for item in summary.operators[:TOP_OPERATORS]
    )
    rows = "".join(f"<tr>{row}</tr>" for row in cells)
    heads = "".join(f"<th>{head}</th>" for head in ("operator", "calls", "own time"))
    link = f'<a href="{escape(profiled.trace)}">{escape(profiled.trace)}</a>'
    return (
        f'<h3>{escape(title)}</h3><div class="scroll">{bar}</div><figure><figcaption>{shares}</figcaption></figure>'
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        f'<p class="note">Trace: {link}; open it at ui.perfetto.dev.</p>'
    )
