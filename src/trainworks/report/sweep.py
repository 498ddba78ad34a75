"""A sweep: its trials from the best to the worst, their curves, and the objective over each setting; a range test."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from trainworks.plan.sweeps.range_test import RangeTestResult
from trainworks.record.sweeps.sweep import SweepResult, SweepTrial
from trainworks.report.pages.seed_chart import seed_blocks
from trainworks.report.rendering.axes import build_axis
from trainworks.report.rendering.document import Block, Document, Facts, Plot, Row, Section, Table, Text, left, right
from trainworks.report.rendering.plots import Chart, Curve, Dot, Rule
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.report.rendering.svg import element, percent, with_title
from trainworks.report.runs.seeds import group_by_seed

_STATES = ("succeeded", "pruned", "submitted", "proposed", "failed")
_NUM_RANKS = 5
"""Strengths of lines in `style.css`."""
_LOG_RATIO = 10.0
"""Ratio of the largest to the smallest value of a setting from which a plot shows its logarithm."""


@to_json.register
def _(sweep: SweepResult) -> Mapping[str, object]:
    return {
        "sweep": sweep.definition.model_dump(),
        "folder": str(sweep.path),
        "trials": [trial.model_dump() for trial in sweep.trials],
        "best": sweep.best.model_dump() if sweep.best else None,
    }


@build_document.register
def document(sweep: SweepResult) -> Document:
    """The whole sweep."""
    summary = [Text(_summary(sweep), "bold")]
    if (best := sweep.best) is not None:
        settings = ", ".join(f"{key} = {_text(value)}" for key, value in best.settings.items())
        summary.append(Text(f"Best: {settings}, {sweep.definition.objective} {best.value:.4g} ({best.run})"))
    return Document(
        sweep.definition.name,
        "sweep",
        [
            Section("", summary),
            Section("Trials", [_table(sweep)]),
            Section("Settings and result", _parallel(sweep), only="page"),
            Section(f"{_objective(sweep)} over the steps", _curves(sweep), only="page"),
            Section(f"{_objective(sweep)}, mean over seeds", _seeds(sweep)),
            *(Section(f"{_objective(sweep)} over {key}", [chart], only="page") for key, chart in _scatters(sweep)),
        ],
        max_width=120,
    )


def _objective(sweep: SweepResult) -> str:
    return sweep.definition.objective[:1].upper() + sweep.definition.objective[1:]


def _summary(sweep: SweepResult) -> str:
    counts = {state: sum(trial.state == state for trial in sweep.trials) for state in ("succeeded", "pruned", "failed")}
    going = len(sweep.trials) - sum(counts.values())
    parts = [f"{count} {state}" for state, count in (counts | {"going": going}).items() if count]
    return f"{len(sweep.trials)} of {sweep.definition.num_trials} trials: {', '.join(parts) or 'none yet'}"


def _table(sweep: SweepResult) -> Table:
    keys = list(sweep.definition.space)
    sign = -1.0 if sweep.definition.objective == "held-out accuracy" else 1.0

    def rank(trial: SweepTrial) -> tuple[int, float, int]:
        value = math.inf if trial.value is None else sign * trial.value
        return _STATES.index(trial.state), value, trial.number

    rows = []
    for trial in sorted(sweep.trials, key=rank):
        settings = [_text(trial.settings.get(key)) for key in keys]
        value = "" if trial.value is None else f"{trial.value:.4f}"
        about = [trial.state, f"{trial.steps:,}", value, trial.message or ""]
        rows.append(Row([trial.run or trial.run_name, *settings, *about], "bold" if trial is sweep.best else ""))
    columns = [*left("run"), *right(*keys), *left("state"), *right("steps", sweep.definition.objective)]
    return Table([*columns, *left("message", wrap=True)], rows)


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _parallel(sweep: SweepResult) -> list[Block]:
    """A line per trial with a result, through its settings to its objective; the better ones stronger and on top."""
    sign = -1.0 if sweep.definition.objective == "held-out accuracy" else 1.0
    ended = [trial for trial in sweep.trials if trial.value is not None and math.isfinite(trial.value)]
    ended.sort(key=lambda trial: -sign * (trial.value or 0.0))
    keys = list(sweep.definition.space)
    last_parts = [key.rpartition(".")[2] for key in keys]
    names = last_parts if len({*last_parts}) == len(keys) else keys  # axes stand close to each other
    axes = [
        upright_axis(name, [trial.settings.get(key) for trial in ended]) for key, name in zip(keys, names, strict=True)
    ]
    axes.append(upright_axis(sweep.definition.objective, [trial.value for trial in ended]))
    lines = []
    for index, trial in enumerate(ended):
        rank = (len(ended) - 1 - index) * _NUM_RANKS // len(ended)
        settings = ", ".join(f"{key} = {_text(value)}" for key, value in trial.settings.items())
        css = "best-strand" if trial is sweep.best else f"strand rank-{rank}"
        lines.append((index, css, f"{trial.run or trial.run_name}: {settings}, {trial.value:.4g}"))
    title = f"Settings and {sweep.definition.objective} of {len(ended)} trials"
    kinds = [("key best-strand-key", "best trial"), ("key", "better trials"), ("key trial-key", "worse trials")]
    plot = ParallelCoordinates(title, axes, lines, kinds)
    return [Text("A line per trial, from its settings to its result.", "dim"), plot] if lines else []


def _curves(sweep: SweepResult) -> list[Block]:
    """Every trial's curve, the best one on top."""
    sign = -1.0 if sweep.definition.objective == "held-out accuracy" else 1.0
    curves = {
        number: [(step, sign * cost) for step, cost in reports if math.isfinite(cost)]
        for number, reports in sweep.curves.items()
    }
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return []
    best = sweep.best.number if sweep.best else None
    chart = Chart(
        f"{_objective(sweep)} of every trial over the steps",
        x=build_axis(0, max(step for step, _ in points), num_ticks=7, whole=True),
        y=build_axis(min(value for _, value in points), max(value for _, value in points)),
        x_unit="steps",
        curves=[
            *(Curve("trial-line", curve) for number, curve in curves.items() if number != best and curve),
            *([Curve("line", curves[best])] if best is not None and curves.get(best) else []),
        ],
        names=[("key", "best trial"), ("key trial-key", "other trials")],
    )
    return [chart]


def _seeds(sweep: SweepResult) -> list[Block]:
    """Mean and spread of the trials that differ by their seed alone."""
    sign = -1.0 if sweep.definition.objective == "held-out accuracy" else 1.0
    trials = [trial for trial in sweep.trials if trial.number in sweep.curves]
    curves = [
        [(float(step), sign * cost) for step, cost in sweep.curves[trial.number] if math.isfinite(cost)]
        for trial in trials
    ]
    groups = group_by_seed([trial.settings for trial in trials], curves)
    return seed_blocks(groups, [trial.run or trial.run_name for trial in trials], _objective(sweep))


def _scatters(sweep: SweepResult) -> Iterator[tuple[str, Chart]]:
    """The objective of the trials over every setting of numbers with two values or more."""
    ended = [trial for trial in sweep.trials if trial.state == "succeeded" and trial.value is not None]
    for key in sweep.definition.space:
        found = [(_number(trial.settings.get(key)), trial) for trial in ended]
        points = [(number, trial) for number, trial in found if number is not None]
        numbers = [number for number, _ in points]
        if len(set(numbers)) < 2:
            continue
        is_log = min(numbers) > 0 and max(numbers) / min(numbers) >= _LOG_RATIO
        places = [math.log10(number) if is_log else number for number in numbers]
        values = [trial.value or 0.0 for _, trial in points]
        name = f"log10 {key}" if is_log else key
        dots = [
            Dot(place, value, f"{trial.run}: {key} = {_text(number)}, {value:.4g}")
            for place, value, (number, trial) in zip(places, values, points, strict=True)
        ]
        x, y = build_axis(min(places), max(places)), build_axis(min(values), max(values))
        yield name, Chart(f"{_objective(sweep)} over {name}", x=x, y=y, dots=dots)


def _number(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


@to_json.register
def _(result: RangeTestResult) -> Mapping[str, object]:
    return {"run": result.run, **dataclasses.asdict(result.test)}


@build_document.register
def range_test_document(result: RangeTestResult) -> Document:
    """What to choose, and the curve."""
    test = result.test
    facts = {
        "suggested": "none: the loss never fell" if test.suggested is None else f"{test.suggested:.3g}",
        "steepest": "" if test.steepest is None else f"{test.steepest:.3g}, where the loss falls fastest",
        "diverged": "not in this range" if test.diverged_at is None else f"from {test.diverged_at:.3g} on",
        "run": result.run,
    }
    shown = Facts.from_mapping(facts)
    note = "Suggested is a tenth of the rate with the lowest smoothed loss, a peak for a schedule with a warm-up."
    return Document(
        "Learning-rate range test",
        "range test",
        [Section("", [shown, Text(note, "dim")]), Section("Loss", _loss_curve(result), only="page")],
    )


def _loss_curve(result: RangeTestResult) -> list[Block]:
    points = [
        (math.log10(rate), loss)
        for rate, loss in zip(result.test.rates, result.test.losses, strict=True)
        if rate > 0 and math.isfinite(loss)
    ]
    if len(points) < 2:
        return []
    suggested = result.test.suggested
    rules = [Rule("x", math.log10(suggested), f"suggested {suggested:.3g}")] if suggested else []
    losses = [loss for _, loss in points]
    chart = Chart(
        "Smoothed loss over the learning rate",
        x=build_axis(points[0][0], points[-1][0]),
        y=build_axis(min(losses), max(losses)),
        x_unit="log10 of the learning rate",
        curves=[Curve("line", points)],
        rules=rules,
    )
    return [chart]


@dataclass(frozen=True, slots=True)
class UprightAxis:
    """One axis: where each value stands between its lower (0) and its upper end (1)."""

    name: str
    ticks: Sequence[tuple[float, str]]
    positions: Sequence[float | None]
    """Position of each line; None for one without a value."""


def upright_axis(name: str, values: Sequence[object]) -> UprightAxis:
    """The axis of these values: numbers by their size, by their logarithm over a wide range, others as they come.

    >>> upright_axis("lr", [0.1, 0.001, None, 0.01]).positions
    [1.0, 0.0, None, 0.5]
    >>> upright_axis("optimizer", ["adamw", "sgd"]).ticks
    [(0.0, 'adamw'), (1.0, 'sgd')]
    """
    known = [value for value in values if value is not None]
    numbers = [float(value) for value in known if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(known) or not all(map(math.isfinite, numbers)):
        kinds = list(dict.fromkeys(str(value) for value in known))
        place = {kind: index / max(1, len(kinds) - 1) if len(kinds) > 1 else 0.5 for index, kind in enumerate(kinds)}
        ticks = [(place[kind], kind) for kind in kinds]
        return UprightAxis(name, ticks, [None if value is None else place[str(value)] for value in values])
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    is_log = low > 0 and high / low >= _LOG_RATIO

    def position(value: float) -> float:
        if high == low:
            return 0.5
        return math.log(value / low) / math.log(high / low) if is_log else (value - low) / (high - low)

    ends = [low] if high == low else [low, math.sqrt(low * high) if is_log else (low + high) / 2, high]
    ticks = [(position(end), f"{end:.3g}") for end in ends] if numbers else []
    remaining = iter(numbers)
    positions = [None if value is None else round(position(next(remaining)), 9) for value in values]
    return UprightAxis(f"{name}, log" if is_log else name, ticks, positions)


@dataclass(frozen=True, slots=True)
class ParallelCoordinates(Plot):
    """Lines through upright axes side by side; later lines are drawn over earlier ones."""

    title: str
    """Read aloud instead of the picture."""
    axes: Sequence[UprightAxis]
    lines: Sequence[tuple[int, str, str]]
    """Index into the positions of the axes, CSS class and tooltip of each line."""
    names: Sequence[tuple[str, str]] = ()
    """CSS class and name of each kind of line."""

    def picture(self) -> Element | None:
        """The picture; None with fewer than two axes or without a line."""
        if len(self.axes) < 2 or not self.lines:
            return None
        parts: list[Element] = []
        for index, axis in enumerate(self.axes):
            x = percent(self._x(index))
            anchor = "start" if index == 0 else "end" if index == len(self.axes) - 1 else "middle"
            parts.append(element("line", css="axis", x1=x, x2=x, y1=0, y2="100%"))
            parts.append(element("text", css="name", x=x, y=-14, text_anchor=anchor, text=axis.name))
        frame = {"viewBox": "0 0 1000 1000", "preserveAspectRatio": "none", "width": "100%", "height": "100%"}
        paths = [self._path(number, css, title) for number, css, title in self.lines]
        parts.append(element("svg", *paths, **frame))
        for index, axis in enumerate(self.axes):
            side, shift = ("end", -6) if index == len(self.axes) - 1 else ("start", 6)
            for position, label in axis.ticks:
                y = percent(100 - 100 * position)
                x = percent(self._x(index))
                parts.append(element("text", css="tick", x=x, dx=shift, y=y, dy="0.32em", text_anchor=side, text=label))
        picture = element("svg", *parts, css="plot tall", role="img", aria_label=self.title)
        return element("div", picture, css="frame parallel")

    def key(self) -> Sequence[tuple[str, str]]:
        """CSS class and name of each kind of line."""
        return self.names

    def _x(self, index: int) -> float:
        return 100 * index / (len(self.axes) - 1)

    def _path(self, number: int, css: str, title: str) -> Element:
        drawn, is_on = "", False
        for index, axis in enumerate(self.axes):
            position = axis.positions[number]
            if position is None:
                is_on = False
                continue
            drawn += f"{'L' if is_on else 'M'}{10 * self._x(index):.1f} {1000 - 1000 * position:.1f}"
            is_on = True
        return with_title(element("path", css=css, d=drawn, vector_effect="non-scaling-stroke"), title)
