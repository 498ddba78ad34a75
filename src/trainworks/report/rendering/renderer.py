"""Render any result: the module of its subject registers how to build the document and the JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import singledispatch
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainworks.errors import MissingExtraError
from trainworks.files import write_atomic
from trainworks.report.rendering.printable import printable
from trainworks.results import PdfFile, Picture, Result

if TYPE_CHECKING:
    from pydantic import BaseModel

    from trainworks.report.rendering.document import Document

_SUBJECTS = {
    "Acceptance": "proving.cluster_verification",
    "AccuracyReport": "proving.accuracy",
    "BenchReport": "proving.bench",
    "BenchVerdicts": "proving.bench",
    "CalibrationResult": "cluster_plan",
    "CapacityPlan": "capacity",
    "ClusterPlan": "cluster_plan",
    "ClusterVerification": "proving.cluster_verification",
    "UpgradePlan": "proving.cluster_verification",
    "CostReport": "cost",
    "Diagnosis": "judgement",
    "DrillReport": "proving.drill",
    "FleetHealth": "proving.health",
    "GoodputForecast": "goodput",
    "LayoutComparison": "cluster_plan",
    "MetricTable": "artifacts",
    "NetworkPlan": "network",
    "NodeHealth": "proving.health",
    "Forecast": "local_plan",
    "Overview": "overview",
    "Proposal": "size",
    "ResolvedRun": "local_plan",
    "ReviewReport": "proving.review",
    "RunComparison": "judgement",
    "RunTable": "artifacts",
    "RunOverlay": "pages.overlay",
    "ScoreReport": "score",
    "SharedCapacity": "capacity",
    "RangeTestResult": "sweep",
    "SweepResult": "sweep",
    "StoragePlan": "storage",
    "TrackReport": "artifacts",
    "Usage": "job_costs",
    "Report": "run_report",
}
"""Type of a result -> module of `trainworks.report` that shows it; the first such result imports it."""


@singledispatch
def build_document(result: object) -> Document:
    """The result as a document."""
    _import_subject(result)
    return build_document.dispatch(type(result))(result)


@singledispatch
def to_json(result: object) -> Mapping[str, object]:
    """The figures in base units, each key with its unit."""
    _import_subject(result)
    return to_json.dispatch(type(result))(result)


def model_json(model: BaseModel) -> Mapping[str, object]:
    """All fields of a model; a number that is not finite as its type writes it."""
    content: Mapping[str, object] = json.loads(model.model_dump_json())
    return content


def _import_subject(result: object) -> None:
    """Import the module that registers functions for this type; both are looked up again afterwards."""
    name = next((_SUBJECTS[each.__name__] for each in type(result).__mro__ if each.__name__ in _SUBJECTS), None)
    if name is None:
        raise TypeError(f"no module of trainworks.report shows {type(result).__name__}")
    import_module(f"trainworks.report.{name}")


def require_pdf() -> None:
    """Make sure that PDF can be written.

    Raises:
        MissingExtraError: the library that writes it is not installed.
    """
    if find_spec("reportlab") is None:
        raise MissingExtraError("reportlab", "pdf")


class _DocumentRenderer:
    """Renders the documents of results; rich and jinja2 are imported by the first one."""

    def line(self, result: Result) -> str:
        return printable(build_document(result).title if result.verdict is None else result.verdict.sentence)

    def text(self, result: Result) -> str:
        from trainworks.report.rendering.text import render_text  # noqa: PLC0415

        return render_text(build_document(result))

    def page(self, result: Result) -> str:
        from trainworks.report.rendering.page import render_page  # noqa: PLC0415

        return render_page(build_document(result))

    def cell(self, result: Result) -> dict[str, str]:
        from trainworks.report.rendering.page import render_cell  # noqa: PLC0415

        return render_cell(build_document(result))

    def plots(self, result: Result) -> Mapping[str, Picture]:
        from trainworks.report.rendering.page import plots_of  # noqa: PLC0415

        return plots_of(build_document(result))

    def write_page(self, result: Result, path: Path) -> None:
        from trainworks.report.rendering.page import write_page  # noqa: PLC0415

        write_page(build_document(result), path)

    def pdf(self, result: Result) -> PdfFile:
        require_pdf()
        from trainworks.report.rendering.pdf.pages import render_pdf  # noqa: PLC0415

        return render_pdf(build_document(result))

    def write_pdf(self, result: Result, path: Path) -> tuple[str, ...]:
        pdf = self.pdf(result)
        write_atomic(path, pdf.content)
        return pdf.notes

    def to_json(self, result: Result) -> dict[str, Any]:
        verdict = {} if result.verdict is None else {"verdict": result.verdict.to_json()}
        return {**verdict, **to_json(result)}


Result.renderer = _DocumentRenderer()
