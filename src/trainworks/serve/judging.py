"""Pages and REST of judgements: why a run is slow, and two runs compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response
from fastapi.responses import HTMLResponse

from trainworks.api.observing.compare import RunComparison, compare_reports
from trainworks.api.observing.why import Diagnosis, diagnosis_of
from trainworks.report.rendering.document import Document
from trainworks.report.runs import run_comparison, why
from trainworks.serve.access import Visitor
from trainworks.serve.guard import visitor_of
from trainworks.serve.site import Site

Name = Annotated[str, Path(min_length=1, max_length=200, description="Number of a job, or id of its run.")]
VisitorOf = Annotated[Visitor, Depends(visitor_of)]
_DIAGNOSIS_AGE_S = 30.0
"""It prices other layouts, which takes a second."""


def judging(site: Site, render: Callable[..., str], problems: dict[int | str, dict[str, Any]]) -> APIRouter:
    """Its routes.

    Args:
        site: the use cases.
        render: puts a document into a template.
        problems: descriptions of answers to requests that fail.
    """
    router = APIRouter()

    def diagnosis(name: str) -> Diagnosis:
        view = site.view(name)
        return site.shared.get(
            ("diagnosis", view.run.path), lambda: diagnosis_of(view.run, view.all_metrics()), age_s=_DIAGNOSIS_AGE_S
        )

    def comparison(first: str, second: str) -> RunComparison:
        views = [site.view(name) for name in (first, second)]
        return site.shared.get(
            ("comparison", *(view.run.path for view in views)),
            lambda: compare_reports([(view.run.resolved, view.report()) for view in views]),
            stamp=[view.stamp() for view in views],
        )

    @router.get("/runs/{name}/why", include_in_schema=False, response_class=HTMLResponse)
    def why_page(visitor: VisitorOf, name: str) -> str:
        return render(why.document(diagnosis(name)), "site.html", visitor, back=f"/runs/{name}")

    @router.get("/compare", include_in_schema=False, response_class=HTMLResponse)
    def compare_page(
        visitor: VisitorOf,
        first: Annotated[str, Query(max_length=200)] = "",
        second: Annotated[str, Query(max_length=200)] = "",
    ) -> str:
        document = Document("Compare runs", "comparison", [])
        if first and second:
            document = run_comparison.document(comparison(first, second))
        return render(document, "compare.html", visitor, first=first, second=second)

    @router.get("/api/v1/runs/{run}/why", tags=["runs"], response_model=Diagnosis, responses=problems)
    def diagnose_run(run: Name) -> Response:
        """Causes of lost time, the costliest first, each with evidence and a remedy; at most half a minute old."""
        return Response(diagnosis(run).model_dump_json(), media_type="application/json")

    @router.get("/api/v1/runs/{run}/compare/{other}", tags=["runs"], response_model=RunComparison, responses=problems)
    def compare_runs(run: Name, other: Name) -> Response:
        """Settings, step parts, losses and cost of two runs; differences are relative to the first."""
        return Response(comparison(run, other).model_dump_json(), media_type="application/json")

    return router
