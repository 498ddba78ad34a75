"""Render any result: the module of its subject builds the document and the JSON."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from trainworks.results import Result

if TYPE_CHECKING:
    from trainworks.report.rendering.document import Document

_SUBJECTS = {
    "AccuracyReport": "accuracy",
    "BenchReport": "proving.bench",
    "BenchVerdicts": "proving.bench_verdicts",
    "CalibrationResult": "calibration",
    "CapacityPlan": "capacity",
    "ClusterPlan": "cluster_plan",
    "ClusterVerification": "proving.cluster_verification",
    "CostReport": "cost",
    "Diagnosis": "runs.why",
    "DrillReport": "proving.drill",
    "FleetHealth": "proving.fleet_health",
    "GoodputForecast": "goodput",
    "LayoutComparison": "layout_comparison",
    "NetworkPlan": "network",
    "NodeHealth": "proving.health",
    "Forecast": "forecast",
    "Overview": "runs.overview",
    "Proposal": "size",
    "ResolvedRun": "local_plan",
    "ReviewReport": "proving.review",
    "RunComparison": "runs.run_comparison",
    "ScoreReport": "score",
    "SharedCapacity": "size_teams",
    "RangeTestResult": "sweeps.range_test",
    "SweepResult": "sweeps.sweep",
    "StoragePlan": "storage",
    "TrackReport": "tracking",
    "Usage": "observing.job_costs",
    "Report": "runs.run_report",
}
"""Type of a result -> module of `trainworks.report` that shows it."""


class _Subject(Protocol):
    def document(self, result: Any) -> Document: ...

    def to_json(self, result: Any) -> dict[str, Any]: ...


def _subject(result: object) -> _Subject:
    name = next((_SUBJECTS[each.__name__] for each in type(result).__mro__ if each.__name__ in _SUBJECTS), None)
    if name is None:
        raise TypeError(f"no module of trainworks.report shows {type(result).__name__}")
    return cast(_Subject, import_module(f"trainworks.report.{name}"))


def build_document(result: object) -> Document:
    """The result as a document."""
    return _subject(result).document(result)


def to_json(result: object) -> dict[str, Any]:
    """The figures in base units, each key with its unit."""
    return _subject(result).to_json(result)


class _DocumentRenderer:
    """Renders the documents of results; rich and jinja2 are imported by the first one."""

    def text(self, result: Result) -> str:
        from trainworks.report.rendering.text import render_text  # noqa: PLC0415

        return render_text(build_document(result))

    def page(self, result: Result) -> str:
        from trainworks.report.rendering.page import render_page  # noqa: PLC0415

        return render_page(build_document(result))

    def frame(self, result: Result) -> str:
        from trainworks.report.rendering.page import render_frame  # noqa: PLC0415

        return render_frame(build_document(result))

    def write_page(self, result: Result, path: Path) -> None:
        from trainworks.report.rendering.page import write_page  # noqa: PLC0415

        write_page(build_document(result), path)

    def to_json(self, result: Result) -> dict[str, Any]:
        return to_json(result)


Result.renderer = _DocumentRenderer()
