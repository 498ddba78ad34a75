"""Profiled steps of a run, as lines."""

from __future__ import annotations

from pathlib import Path

from trainworks.record.profile import read_summaries, trace_file
from trainworks.units import format_duration


def profile_lines(folder: Path) -> list[str]:
    """Where the time of each rank went, its five longest operators, and its trace."""
    lines = []
    for summary in read_summaries(folder):
        shares = ", ".join(f"{name} {share:.0%}" for name, share in summary.shares().items())
        lines.append(f"rank {summary.rank}: {format_duration(summary.window_s)} = {shares}")
        operators = summary.operators[:5]
        lines += [f"  {format_duration(each.self_s):>8}  {each.calls:>6,} x {each.name}" for each in operators]
        lines.append(f"  {trace_file(folder, summary.rank)}")
    return lines
