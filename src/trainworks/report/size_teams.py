"""One cluster for several runs: the kinds of node that serve all teams."""

from __future__ import annotations

from typing import Any

from trainworks.plan.sizing.result import SHARED_WEEKS, SharedCapacity
from trainworks.report.rendering.document import Column, Document, Section, Table, Text, right
from trainworks.units import format_duration, format_usd

_MAX_ROWS = 10


def document(shared: SharedCapacity) -> Document:
    """One row for every kind of node."""
    rows = []
    for item in shared.clusters[:_MAX_ROWS]:
        answer, price = item.answer, item.usd_per_week
        jobs = ", ".join(f"{name} {_job(*job)}" for name, job in item.jobs.items())
        rows.append(
            [
                f"{answer.nodes.value:,.0f}",
                f"{answer.utilisation.value:.0%}",
                f"{answer.spare_share.value:.0%}",
                format_duration(answer.wait.value),
                "no offer" if price is None else format_usd(price).removesuffix(" USD"),
                f"{item.candidate.node}: {jobs}",
            ]
        )
    columns = right("nodes", "used", "spare", "wait of 90 %", "USD a week")
    node = Column("node and what one job of each takes", wrap=True)
    return Document(
        "One cluster for several runs",
        "proposal",
        [
            Section("", [Text(f"promise: {shared.promise}; {SHARED_WEEKS} weeks of starts replayed")]),
            Section("", [Table([*columns, node], rows)]),
            Section("", [Text(f"not {name}: {reason}") for name, reason in shared.skipped.items()]),
        ],
    )


def _job(nodes: int, seconds: float) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''} for {format_duration(seconds)}"


def to_json(shared: SharedCapacity) -> dict[str, Any]:
    """Everything that the table shows, in base units."""
    return {
        "promise": shared.promise,
        "clusters": [
            {
                "node": item.candidate.node,
                "nodes": item.answer.nodes.value,
                "accelerators": item.answer.capacity.value,
                "mean_load": item.answer.load.mean.value,
                "utilisation": item.answer.utilisation.value,
                "spare_share": item.answer.spare_share.value,
                "wait_p90_s": item.answer.wait.value,
                "usd_per_week": item.usd_per_week,
                "jobs": {name: {"nodes": count, "run_time_s": time} for name, (count, time) in item.jobs.items()},
            }
            for item in shared.clusters
        ],
        "not_proposed": shared.skipped,
    }
