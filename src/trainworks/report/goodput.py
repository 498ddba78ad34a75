"""A forecast of a run: when it ends, with which chance, and where its time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from trainworks.plan.reliability.forecast import GoodputForecast
from trainworks.plan.reliability.scenario import SimulationOutcome
from trainworks.report.explain import sources_section
from trainworks.report.rendering.axes import Axis, build_axis
from trainworks.report.rendering.document import Block, Document, Facts, Row, Section, Table, Text, left, right
from trainworks.report.rendering.plots import Bar, Bars, Chart, Curve, Rule, Segment
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.units import DAY_S, format_duration, format_share

_percent = partial(format_share, digits=1)
_QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
_POINTS = 200
_FILLS = {
    "work": "compute",
    "checkpoint": "checkpoint",
    "lost work": "lost",
    "recovery": "restart",
    "waiting for nodes": "idle",
    "straggling": "other",
    "fewer nodes": "data",
    "preempted": "start",
    "queueing": "communication",
}
"""Cause in a simulation -> colour class of the style sheet."""


@build_document.register
def document(forecast: GoodputForecast) -> Document:
    """Failures and checkpoints, the finish, where the time goes, and what spares change."""
    by_spares = {_spares(count): outcome.shares() for count, outcome in forecast.by_spares.items()}
    mean_s = float(forecast.outcome.wall_s.mean())
    rows = [
        [cause, _percent(share), _time(share * mean_s)]
        for cause, share in forecast.outcome.shares().items()
        if share > 0
    ]
    shares = Table([*left("cause"), *right("share", "time")], rows, has_header=False)
    times = f"where the time goes, {forecast.options.trials:,} simulated runs"
    return Document(
        forecast.job.title,
        "goodput",
        [
            Section("", [Facts.from_mapping(_facts(forecast))]),
            Section("finish", finish_chart(forecast.outcome.wall_s.tolist(), forecast.deadline_s), only="page"),
            Section(times, [*badput_bars(by_spares), shares]),
            Section("spares", [_spares_table(forecast)]),
            sources_section(forecast.figures),
        ],
        about=f"{forecast.job.cluster.name}, {_time(forecast.job.work.value)} of work, {_spares(forecast.spares)}",
        notes=forecast.notes,
    )


def _facts(forecast: GoodputForecast) -> dict[str, str]:
    mean, failures, cluster = forecast.expected, forecast.failures, forecast.job.cluster
    p10, p50, p90 = (_time(forecast.outcome.quantile_s(share)) for share in _QUANTILES.values())
    own, needed = failures.node_mttf, forecast.needed
    every = own.inputs.get("node_mttf", own)
    facts = {
        "cluster": f"{cluster.name}: {cluster.num_nodes:,} node{'s' if cluster.num_nodes > 1 else ''} of "
        f"{cluster.accelerators_per_node}",
        "work": f"{_time(forecast.job.work.value)} on all nodes, if nothing fails",
        "failures": f"one every {_time(mean.job_mttf.value)}, {_few(mean.failures.value)} in the run; a node has one "
        f"every {_time(every.value)} ({(every.source or '').partition(':')[0]})",
        "preemptions": _preemptions(forecast),
        "checkpoint": f"every {_time(mean.interval.value)}, training stops for {_time(failures.save.value)}, "
        f"{_time(failures.write.value)} more until it is written",
        "recovery": f"{_time(failures.detect.value)} to notice, {_time(failures.restart.value)} to restart, "
        f"{_time(failures.repair.value)} to repair a node",
        "expected": f"runtime goodput {_percent(mean.runtime_goodput.value)}, ETTR {_percent(mean.ettr.value)}, "
        f"run time {_time(mean.run_time.value)}",
        "spares": f"{needed.value:,.0f} ({_percent(needed.value / cluster.num_nodes)}) are needed to wait for nodes "
        f"less than {100 * needed.inputs['limit'].value:g} % of the time",
        "finish": f"{p50} (80 %: {p10} to {p90}) with {_spares(forecast.spares)}",
    }
    if forecast.deadline_s is not None:
        chance = forecast.outcome.chance(forecast.deadline_s)
        facts["deadline"] = f"{_time(forecast.deadline_s)}: met by {_percent(chance)} of the runs"
    return facts


def _preemptions(forecast: GoodputForecast) -> str:
    """Frequency of preemptions; empty where the capacity is not preemptible."""
    life, mean = forecast.failures.capacity_life, forecast.expected
    if life is None:
        return ""
    notice = "with notice to save" if forecast.failures.saves_before_preemption else "without notice to save"
    return f"one every {_time(life.value)}, {_few(mean.preemptions.value)} in the run, {notice}"


def _few(count: float) -> str:
    return f"{count:.1f}" if count < 10 else f"{count:,.0f}"


def _spares_table(forecast: GoodputForecast) -> Table:
    deadline_s, rows = forecast.deadline_s, list[Row]()
    for spares, outcome in forecast.by_spares.items():
        cells = [f"{spares:,}", _percent(outcome.runtime_goodput), _percent(outcome.shares()["waiting for nodes"])]
        cells += [_time(outcome.quantile_s(share)) for share in _QUANTILES.values()]
        cells += [] if deadline_s is None else [_percent(outcome.chance(deadline_s))]
        rows.append(Row(cells, "bold" if spares == forecast.spares else ""))
    names = ["spares", "goodput", "waiting", *_QUANTILES, *([] if deadline_s is None else ["in time"])]
    return Table(right(*names), rows)


def _time(seconds: float) -> str:
    """`54d` for 54 days and no hour."""
    head, _, tail = format_duration(seconds).partition(" ")
    return head if tail in ("0h", "0m", "0s") else f"{head} {tail}".rstrip()


def _spares(count: int) -> str:
    return f"{count:,} spare{'' if count == 1 else 's'}"


def finish_chart(finishes_s: Sequence[float], deadline_s: float | None) -> list[Block]:
    """Share of the simulated runs that are done by a day."""
    days = sorted(seconds / DAY_S for seconds in finishes_s)
    ends = [days[0], days[-1]] + ([] if deadline_s is None else [deadline_s / DAY_S])
    x_axis = build_axis(min(ends), max(ends), num_ticks=7)
    last = len(days) - 1
    picks = sorted({round(index * last / (_POINTS - 1)) for index in range(_POINTS)})
    points = [(x_axis.ticks[0], 0.0), (days[0], 0.0)]
    points += [(days[index], 100 * (index + 1) / len(days)) for index in picks]
    deadline = [] if deadline_s is None else [
        Rule("x", deadline_s / DAY_S, f"deadline {format_duration(deadline_s)}", "deadline")
    ]  # fmt: skip
    chart = Chart(
        f"share of runs done, {days[0]:.3g} to {days[-1]:.3g} days",
        x=x_axis,
        y=Axis((0, 25, 50, 75, 100), ("0%", "25%", "50%", "75%", "100%")),
        x_unit="days",
        curves=[Curve("line", [*points, (x_axis.ticks[-1], 100.0)])],
        rules=deadline,
    )
    return [Text("Share of the simulated runs that are done by then.", "dim"), chart]


def badput_bars(shares: Mapping[str, Mapping[str, float]]) -> list[Block]:
    """Where wall-clock time goes, one bar per case; the shares of a case add up to 1."""
    bars = [
        Bar(
            name,
            f"{100 * parts['work']:.1f} % work",
            [Segment(cause, share, f"{100 * share:.1f} %", _FILLS[cause]) for cause, share in parts.items()],
        )
        for name, parts in shares.items()
    ]
    return [Text("Wall-clock time of all simulated runs.", "dim", only="page"), Bars(bars, whole=1.0)]


@to_json.register
def _(forecast: GoodputForecast) -> Mapping[str, object]:
    mean, failures = forecast.expected, forecast.failures
    return {
        "cluster": forecast.job.cluster.name,
        "num_nodes": forecast.job.cluster.num_nodes,
        "work_s": forecast.job.work.value,
        "job_mttf_s": mean.job_mttf.value,
        "checkpoint_interval_s": mean.interval.value,
        "save_s": failures.save.value,
        "write_s": failures.write.value,
        "expected": {
            "runtime_goodput": mean.runtime_goodput.value,
            "ettr": mean.ettr.value,
            "run_time_s": mean.run_time.value,
            "failures": mean.failures.value,
            "preemptions": mean.preemptions.value,
            "waiting_share": mean.waiting.value,
        },
        "spares_needed": round(forecast.needed.value),
        "spares": forecast.spares,
        "deadline_s": forecast.deadline_s,
        "simulated": {"trials": forecast.options.trials, "seed": forecast.options.seed}
        | _outcome_json(forecast.outcome, forecast.deadline_s),
        "by_spares": [
            {"spares": spares} | _outcome_json(outcome, forecast.deadline_s)
            for spares, outcome in forecast.by_spares.items()
        ],
        "notes": list(forecast.notes),
    }


def _outcome_json(outcome: SimulationOutcome, deadline_s: float | None) -> dict[str, object]:
    return {
        "runtime_goodput": outcome.runtime_goodput,
        "ettr": outcome.ettr,
        "failures": float(outcome.failures.mean()),
        "preemptions": float(outcome.preemptions.mean()),
        "finish_s": {name: outcome.quantile_s(share) for name, share in _QUANTILES.items()},
        "chance": None if deadline_s is None else outcome.chance(deadline_s),
        "shares": outcome.shares(),
    }
