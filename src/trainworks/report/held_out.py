"""Evaluations on held-out data in the report of a run: the best and the last one, every set, and curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trainworks.report.rendering.axes import build_axis
from trainworks.report.rendering.document import (
    Block,
    Details,
    Facts,
    Preformatted,
    Styled,
    Table,
    Text,
    left,
    right,
)
from trainworks.report.rendering.plots import Chart, Curve, Dot
from trainworks.report.runs.curves import Curves, Point
from trainworks.report.runs.evaluation import EvaluatedPoint, Evaluations
from trainworks.report.runs.part import MISSING
from trainworks.units import format_duration

_NUM_STYLES = 4
"""Styles of lines in `style.css`; more sets begin again with the first."""


def evaluation_blocks(found: Evaluations, curves: Curves | None) -> list[Block]:
    """Best and last evaluation, the cost of one, and the figures of every set with their curves."""
    planned = "" if found.planned_s is None else f", {format_duration(found.planned_s)} planned"
    of = "" if found.planned_count is None else f" of {found.planned_count:,}"
    # The output of a command may not show when an evaluation begins.
    each = f", {format_duration(found.measured_s)} each" if found.measured_s else ""
    facts = {
        "best": _held_out(found.best) if found.best else "no finite value",
        "last": _held_out(found.last),
        "evaluations": f"{found.count:,}{of}{each}{planned}",
    }
    if found.decided_by != found.metric:
        facts["decided by"] = found.decided_by
    blocks: list[Block] = [Facts.from_mapping(facts)]
    if found.last.figures:
        blocks.append(_figures_table(found))
    if found.ended_early:
        times = f"{found.num_without_improvement} evaluation{'s' if found.num_without_improvement > 1 else ''}"
        blocks.append(Text(f"The run ended early: {times} in a row without an improvement.", "bold"))
    losses_apart = (
        {name: points for name, points in curves.held_out.items() if not name.endswith("/loss")} if curves else {}
    )
    return [*blocks, *_charts(losses_apart, "Held-out "), *_texts(found)]


def figure_blocks(figures: Mapping[str, Sequence[Point]]) -> list[Block]:
    """What a command says beside its loss, with its curves."""
    rows: list[Sequence[str | Styled]] = [
        [Styled(name, "bold"), f"{points[0][1]:.4g}", f"{points[-1][1]:.4g}"]
        for name, points in figures.items()
        if points
    ]
    return [Table([*left("figure"), *right("first step", "last step")], rows), *_charts(figures)] if rows else []


def _held_out(point: EvaluatedPoint) -> str:
    """Held-out figures in one line.

    >>> _held_out(EvaluatedPoint(step=300, loss=3.5, perplexity=33.115, accuracy=None))
    'loss 3.500, perplexity 33.12 after step 300'
    """
    figures = [] if point.loss is None else [f"loss {point.loss:.3f}"]
    figures += [] if point.perplexity is None else [f"perplexity {point.perplexity:.4g}"]
    figures += [] if point.accuracy is None else [f"accuracy {point.accuracy:.2%}"]
    return f"{', '.join(figures) or MISSING} after step {point.step:,}"


def _figures_table(found: Evaluations) -> Table:
    """Every named figure after the best step and after the last one."""
    best = found.best.figures if found.best else {}
    rows: list[Sequence[str | Styled]] = [
        [Styled(name, "bold"), f"{best[name]:.4g}" if name in best else MISSING, f"{value:.4g}"]
        for name, value in found.last.figures.items()
    ]
    return Table([*left("held-out"), *right("best step", "last step")], rows)


def _texts(found: Evaluations) -> Iterable[Block]:
    """What the model wrote at the last evaluation; on the page also at earlier ones, folded away."""
    for last, step in enumerate(reversed(list(dict.fromkeys(each.step for each in found.texts)))):
        written = [each for each in found.texts if each.step == step]
        blocks = [Preformatted([Styled(each.prompt, "dim"), each.text]) for each in written]
        if last == 0:
            yield Text(f"Written after step {step:,}, each behind its prompt:", "dim")
            yield from blocks
        else:
            yield Details(f"Written after step {step:,}", blocks, only="page")


def _charts(figures: Mapping[str, Sequence[Point]], of: str = "") -> Iterable[Block]:
    """One chart for each kind of figure, with a line for each set."""
    kinds = dict.fromkeys(name.rpartition("/")[2] for name in figures)
    for kind in kinds:
        lines = {name: points for name, points in figures.items() if name.rpartition("/")[2] == kind and points}
        if not lines:
            continue
        what = f"{of}{kind}"
        title = f"{what[:1].upper()}{what[1:]}"
        steps, values = zip(*(point for points in lines.values() for point in points), strict=True)
        chart = Chart(
            f"{title}, steps {min(steps)} to {max(steps)}",
            x=build_axis(min(steps) if min(steps) > 1 else 0, max(steps), num_ticks=7, whole=True),
            y=build_axis(min(values), max(values)),
            x_unit="steps",
            curves=[curve for curve, _ in held_out_lines(lines)],
            dots=[dot for _, dots in held_out_lines(lines) for dot in dots],
            names=[held_out_key(place, name) for place, name in enumerate(lines)],
        )
        yield Text(f"{title}, over optimizer steps.", "dim", only="page")
        yield chart


def held_out_lines(lines: Mapping[str, Sequence[Point]]) -> Iterable[tuple[Curve, list[Dot]]]:
    """Curve and dots of each named series of held-out figures."""
    for place, (name, points) in enumerate(lines.items()):
        style = f"set-{place % _NUM_STYLES}"
        title = f"{name} {{:.4f}} after step {{:,}}".format
        dots = [Dot(step, value, title(value, step), f"eval-dot {style}") for step, value in points]
        yield Curve(f"eval-line {style}", points), dots


def held_out_key(place: int, name: str) -> tuple[str, str]:
    """Style and name of a series in the key of a chart."""
    return f"key eval-key set-{place % _NUM_STYLES}", name
