"""The plan of a job before it is submitted."""

from __future__ import annotations

import json
from typing import Any

from trainworks.record.resolved import Forecast
from trainworks.report.rendering.document import Document, Facts, Section
from trainworks.units import format_bytes, format_duration, format_usd


def document(forecast: Forecast) -> Document:
    """Layout, step time with its interval, memory, duration and price."""
    facts = {
        "planned for": f"{forecast.cluster}, by the catalogue; on its nodes the job is planned from measured rates",
        "layout": forecast.layout.describe(),
        "step time": f"{format_duration(forecast.step_s)} (80 %: {format_duration(forecast.low_s)}"
        f" to {format_duration(forecast.high_s)})",
        "memory": f"{format_bytes(forecast.memory_bytes)} per rank",
        "training": _duration(forecast),
    }
    return Document("forecast", "plan", [Section("", [Facts.from_mapping({k: v for k, v in facts.items() if v})])])


def _duration(forecast: Forecast) -> str:
    if forecast.train_s is None:
        return ""
    price = "" if forecast.usd is None else f", {format_usd(forecast.usd)} of accelerators"
    return f"{format_duration(forecast.train_s)}{price}"


def to_json(forecast: Forecast) -> dict[str, Any]:
    """The forecast."""
    content: dict[str, Any] = json.loads(forecast.model_dump_json())
    return content
