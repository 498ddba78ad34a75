"""Many runs in one picture: a curve per group of runs that differ by their seed alone, with its spread."""

from __future__ import annotations

from collections.abc import Sequence

from trainworks.report.rendering.axes import build_axis
from trainworks.report.rendering.document import Block, Table, Text, left, right
from trainworks.report.rendering.plots import Chart, Curve
from trainworks.report.runs.part import MISSING
from trainworks.report.runs.seeds import SeedGroup

NUM_COLOURS = 7
"""Colours of curves in `style.css`; more begin again with the first."""
_CAPTION = "mean and standard deviation over the runs of a group, which differ by their seed alone"


def seed_blocks(groups: Sequence[SeedGroup], names: Sequence[str], title: str) -> list[Block]:
    """The picture, and the last common values as a table; none where no two runs differ by their seed alone.

    Args:
        groups: of the runs.
        names: of all runs, by their position.
        title: of the values: `Loss`.
    """
    if not any(len(group.runs) > 1 and group.mean for group in groups):
        return []
    drawn = [(index % NUM_COLOURS, group) for index, group in enumerate(groups) if group.mean]
    points = [point for _, group in drawn for line in (group.low, group.high) for point in line]
    steps, values = [step for step, _ in points], [value for _, value in points]
    bands = [
        Curve(f"spread-{colour}", [*group.low, *group.high[::-1]]) for colour, group in drawn if len(group.runs) > 1
    ]
    chart = Chart(
        f"{title}: mean over seeds",
        x=build_axis(min(steps) if min(steps) > 1 else 0, max(steps), num_ticks=7, whole=True),
        y=build_axis(min(values), max(values)),
        x_unit="steps",
        curves=[*bands, *(Curve(f"curve-{colour}", group.mean) for colour, group in drawn)],
        names=[(f"key curve-{colour}-key", _name(group, names)) for colour, group in drawn],
        only="page",
    )
    rows = [[_name(group, names), f"{len(group.runs)}", *_final(group)] for group in groups]
    columns = [*left("runs", wrap=True), *right("seeds", "step", "mean", "deviation", "of the mean")]
    return [
        Text("A curve is the mean of its runs, a band one standard deviation on either side.", "dim", only="page"),
        chart,
        Table(columns, rows, caption=_CAPTION),
    ]


def metric_chart(title: str, lines: Sequence[tuple[str, str, Sequence[tuple[float, float]]]]) -> Chart:
    """A chart over steps of lines by CSS class and name, of which at least one has a point."""
    points = [point for _, _, line in lines for point in line]
    steps, values = [step for step, _ in points], [value for _, value in points]
    return Chart(
        f"{title}, steps {min(steps):.0f} to {max(steps):.0f}",
        x=build_axis(min(steps) if min(steps) > 1 else 0, max(steps), num_ticks=7, whole=True),
        y=build_axis(min(values), max(values)),
        x_unit="steps",
        curves=[Curve(css, line) for css, _, line in lines],
        names=[(f"key {css}-key", name) for css, name, _ in lines] if len(lines) > 1 else [],
    )


def _name(group: SeedGroup, names: Sequence[str]) -> str:
    return ", ".join(names[index] for index in group.runs)


def _final(group: SeedGroup) -> list[str]:
    """Last common step, the mean there, and its spread where there are several runs."""
    if group.final is None:
        return [MISSING] * 4
    step, mean, deviation = group.final
    if len(group.runs) == 1:
        return [f"{step:,.0f}", f"{mean:.4g}", MISSING, MISSING]
    share = f"{abs(deviation / mean):.1%}" if mean else MISSING
    return [f"{step:,.0f}", f"{mean:.4g}", f"{deviation:.2g}", share]
