"""A calibration: the step time of the measured layout as planned before and after it."""

from __future__ import annotations

from typing import Any

from trainworks.plan.prediction import Prediction
from trainworks.report.cluster_plan import format_interval
from trainworks.report.rendering.document import Document, Section, Table, Text, left
from trainworks.units import format_step_time


def document(result: Any) -> Document:
    """The two predictions beside the measurement.

    Args:
        result: `before`, `after` and `measured_s` of `trainworks.calibrate`.
    """
    before: Prediction = result.before.best[0]
    predictions: dict[str, Prediction] = {"before": before, "after": result.after.best[0]}
    rows = [[name, format_step_time(each.step_time_s), format_interval(each)] for name, each in predictions.items()]
    remarks = []
    if result.measured_s is not None:
        measured = format_step_time(result.measured_s)
        rows.append(["measured", measured, ""])
        if not before.low_s <= result.measured_s <= before.high_s:
            outside = "outside the 80 % interval that was planned: check the run for disturbances, or measure again"
            remarks.append(Text(f"note: {measured} is {outside}", style="warning"))
    layout = Text(f"layout  {before.layout.describe()}")
    table = Table(left("", "step time", "80 %"), rows)
    return Document("Calibration", "calibration", [Section("", [layout]), Section("", [table]), Section("", remarks)])


def to_json(result: Any) -> dict[str, Any]:
    """Step times in seconds."""
    before, after = result.before.best[0], result.after.best[0]
    return {"before_s": before.step_time_s, "after_s": after.step_time_s, "measured_s": result.measured_s}
