"""A forecast as a person reads it, as JSON, and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table

from trainworks.cli.options import option_errors
from trainworks.plan.reliability.forecast import GoodputForecast
from trainworks.plan.reliability.scenario import SimulationOutcome
from trainworks.report.goodput_page import write_goodput_page
from trainworks.report.parts import fact_table, note_lines, print_parts, title
from trainworks.units import format_duration

__all__ = ["forecast_as_json", "print_forecast", "write_plot"]

_QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}


def print_forecast(found: GoodputForecast, console: Console) -> None:
    """Failures and checkpoints, the finish, where the time goes, and what spares change."""
    parts: list[Sequence[RenderableType]] = [
        [_facts(found)],
        [title(f"where the time goes, {found.options.trials:,} simulated runs"), _shares(found.outcome)],
        [title("spares"), _spares(found)],
        note_lines(found.notes),
    ]
    print_parts(parts, console)


def _facts(found: GoodputForecast) -> Table:
    mean, failures, cluster = found.expected, found.failures, found.job.cluster
    low, high = (found.outcome.quantile_s(_QUANTILES[name]) for name in ("p10", "p90"))
    rows = {
        "cluster": f"{cluster.name}: {cluster.num_nodes:,} node{'s' if cluster.num_nodes > 1 else ''} of "
        f"{cluster.accelerators_per_node}",
        "work": f"{_time(found.job.work.value)} on all nodes, if nothing fails",
        "failures": f"one every {_time(mean.job_mttf.value)}, {_few(mean.failures.value)} in the run; "
        f"{_node_mttf(found)}",
        **_preemptions(found),
        "checkpoint": f"every {_time(mean.interval.value)}, training stands still for {_time(failures.save.value)}, "
        f"{_time(failures.write.value)} more until it is written",
        "recovery": f"{_time(failures.detection.value)} to notice, {_time(failures.restart.value)} to restart, "
        f"{_time(failures.repair.value)} to repair a node",
        "expected": f"runtime goodput {_percent(mean.runtime_goodput.value)}, ETTR {_percent(mean.ettr.value)}, "
        f"run time {_time(mean.run_time.value)}",
        "spares": _needed(found),
        "finish": f"{_time(found.outcome.quantile_s(0.5))} (80 %: {_time(low)} to {_time(high)}) "
        f"with {_count(found.spares)}",
    }
    if found.deadline_s is not None:
        chance = found.outcome.chance(found.deadline_s)
        rows["deadline"] = f"{_time(found.deadline_s)}: met by {_percent(chance)} of the runs"
    return fact_table(rows)


def _node_mttf(found: GoodputForecast) -> str:
    """What one node does, all failures taken together."""
    own = found.failures.node_mttf
    every = own.inputs.get("node_mttf", own)
    return f"a node has one every {_time(every.value)} ({(every.source or '').partition(':')[0]})"


def _preemptions(found: GoodputForecast) -> dict[str, str]:
    """How often the capacity is taken; nothing where it is not."""
    life, mean = found.failures.capacity_life, found.expected
    if life is None:
        return {}
    saved = "with notice to save" if found.failures.saves_before_preemption else "without notice to save"
    return {"preemptions": f"one every {_time(life.value)}, {_few(mean.preemptions.value)} in the run, {saved}"}


def _few(count: float) -> str:
    return f"{count:.1f}" if count < 10 else f"{count:,.0f}"


def _needed(found: GoodputForecast) -> str:
    needed, nodes = found.needed, found.job.cluster.num_nodes
    limit = needed.inputs["limit"].value
    share = _percent(needed.value / nodes)
    return f"{needed.value:,.0f} ({share}) are needed to wait for nodes less than {100 * limit:g} % of the time"


def _shares(outcome: SimulationOutcome) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    mean = float(outcome.wall_s.mean())
    for name, share in outcome.shares().items():
        if share > 0:
            table.add_row(name, _percent(share), _time(share * mean))
    return table


def _spares(found: GoodputForecast) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    columns = ["spares", "goodput", "waiting", *_QUANTILES]
    for name in columns + ([] if found.deadline_s is None else ["in time"]):
        table.add_column(name, justify="right", no_wrap=True)
    for spares, outcome in found.by_spares.items():
        cells = [f"{spares:,}", _percent(outcome.runtime_goodput), _percent(outcome.shares()["waiting for nodes"])]
        cells += [_time(outcome.quantile_s(share)) for share in _QUANTILES.values()]
        if found.deadline_s is not None:
            cells.append(_percent(outcome.chance(found.deadline_s)))
        table.add_row(*cells, style="bold" if spares == found.spares else None)
    return table


def _time(seconds: float) -> str:
    """`54d` for 54 days and no hour."""
    head, _, tail = format_duration(seconds).partition(" ")
    return head if tail in ("0h", "0m", "0s") else f"{head} {tail}".rstrip()


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _count(spares: int) -> str:
    return f"{spares:,} spare{'' if spares == 1 else 's'}"


def forecast_as_json(found: GoodputForecast) -> dict[str, Any]:
    """All figures in base units."""
    mean, failures = found.expected, found.failures
    return {
        "cluster": found.job.cluster.name,
        "num_nodes": found.job.cluster.num_nodes,
        "work_s": found.job.work.value,
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
        "spares_needed": round(found.needed.value),
        "spares": found.spares,
        "deadline_s": found.deadline_s,
        "simulated": {"trials": found.options.trials, "seed": found.options.seed}
        | _outcome_as_json(found.outcome, found.deadline_s),
        "by_spares": [
            {"spares": spares} | _outcome_as_json(outcome, found.deadline_s)
            for spares, outcome in found.by_spares.items()
        ],
        "notes": list(found.notes),
    }


def _outcome_as_json(outcome: SimulationOutcome, deadline_s: float | None) -> dict[str, Any]:
    return {
        "runtime_goodput": outcome.runtime_goodput,
        "ettr": outcome.ettr,
        "failures": float(outcome.failures.mean()),
        "preemptions": float(outcome.preemptions.mean()),
        "finish_s": {name: outcome.quantile_s(share) for name, share in _QUANTILES.items()},
        "chance": None if deadline_s is None else outcome.chance(deadline_s),
        "shares": outcome.shares(),
    }


def write_plot(plot: Path | None, found: GoodputForecast) -> None:
    """Write the page, if one is wanted.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    if plot is None:
        return
    about = f"{found.job.cluster.name}, {_time(found.job.work.value)} of work, {_count(found.spares)}"
    shares = {f"{_count(spares)}": outcome.shares() for spares, outcome in found.by_spares.items()}
    with option_errors("--plot", plot):
        write_goodput_page(
            plot,
            title=found.job.title,
            about=about,
            finishes_s=found.outcome.wall_s.tolist(),
            shares=shares,
            deadline_s=found.deadline_s,
        )
