"""The plan and the cost of a job before it is submitted."""

from __future__ import annotations

import json
from typing import Any

from trainworks.plan.cost.expected import ExpectedCost
from trainworks.record.resolved import Forecast
from trainworks.report.rendering.document import Document, Facts, Section
from trainworks.units import format_bytes, format_duration, format_usd


def document(forecast: Forecast) -> Document:
    """Layout, step time with its interval, memory and duration."""
    facts = {
        "planned for": f"{forecast.cluster}, by the catalogue; on its nodes the job is planned from measured rates",
        "layout": forecast.layout.describe(),
        "step time": f"{format_duration(forecast.step_s)} (80 %: {format_duration(forecast.low_s)}"
        f" to {format_duration(forecast.high_s)})",
        "memory": f"{format_bytes(forecast.memory_bytes)} per rank",
        "training": "" if forecast.train_s is None else format_duration(forecast.train_s),
    }
    return Document("forecast", "plan", [Section("", [Facts.from_mapping({k: v for k, v in facts.items() if v})])])


def cost_text(cost: ExpectedCost) -> str:
    """`90.0 USD to 110 USD (80 %): 8 accelerators at 2.50 USD an hour`; without a plan the most that it can be."""
    jobs = f"{cost.jobs} jobs of " if cost.jobs > 1 else ""
    of = f"{jobs}{cost.accelerators} accelerators"
    rate = f"at {format_usd(cost.usd_per_accelerator_hour)} an hour"
    if cost.low_usd is not None:
        return f"{format_usd(cost.low_usd)} to {format_usd(cost.high_usd)} (80 %): {of} {rate}"
    once = "each starts once" if cost.jobs > 1 else "it starts once"
    return f"at most {format_usd(cost.high_usd)} if {once}: {of} for {format_duration(cost.high_s)} {rate}"


def to_json(forecast: Forecast) -> dict[str, Any]:
    """The forecast."""
    content: dict[str, Any] = json.loads(forecast.model_dump_json())
    return content
