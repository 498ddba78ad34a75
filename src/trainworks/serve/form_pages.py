"""Pages with a run file in and something out: a plan, or a queued job."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from trainworks.api.inputs import described_run
from trainworks.api.planning.described import plan_cluster
from trainworks.api.run_request import read_run_file
from trainworks.errors import TrainworksError, UsageError
from trainworks.report.rendering.document import Document, Preformatted, Section
from trainworks.report.rendering.renderer import build_document
from trainworks.serve.access import Role, Visitor
from trainworks.serve.frame import FormOf, render
from trainworks.serve.guard import VisitorOf
from trainworks.serve.site import Site, check_role

_EXAMPLE = """\
name: hello
run: echo hello from rank $RANK
"""
_PLAN_EXAMPLE = """\
name: llama-2-7b
workload:
  task: causal-lm
  model: {preset: llama-2-7b}
  data: {sequence_length: 4096}
  precision: bf16
  global_batch: 1024
  train_for: 100B tokens
cluster: 16 nodes of DGX H100
"""


def form_pages(site: Site) -> APIRouter:
    """The pages of plans and submissions."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

    @router.get("/submit")
    def submit_form(visitor: VisitorOf) -> str:
        check_role(visitor, Role.SUBMITTER)
        return _text_form("Submit", "submit", visitor, _EXAMPLE)

    @router.post("/submit")
    def submit_run(visitor: VisitorOf, form: FormOf) -> Response:
        try:
            run = site.submit(visitor, form.get("text", ""))
        except UsageError as problem:
            return HTMLResponse(_text_form("Submit", "submit", visitor, form.get("text", ""), problem), 422)
        return RedirectResponse(f"/runs/{run.job.id if run.job else run.id}", 303)

    @router.get("/plan")
    def plan_form(visitor: VisitorOf) -> str:
        check_role(visitor, Role.SUBMITTER)
        return _text_form("Plan", "plan", visitor, _PLAN_EXAMPLE)

    @router.post("/plan")
    def plan_run(visitor: VisitorOf, form: FormOf) -> Response:
        check_role(visitor, Role.SUBMITTER)
        text = form.get("text", "")
        try:
            request = read_run_file(text)
            run_file, _ = described_run(request.run_file, None, task="a page plans")
            document = build_document(plan_cluster(run_file, request.source, all_sizes=False, learning=True))
        except TrainworksError as problem:
            return HTMLResponse(_text_form("Plan", "plan", visitor, text, problem), 422)
        return HTMLResponse(render(document, "form.html", visitor, action="/plan", text=text))

    return router


def _text_form(title: str, action: str, visitor: Visitor, text: str, problem: TrainworksError | None = None) -> str:
    sections = [Section("", [Preformatted(problem.render())])] if problem else []
    return render(Document(title, action, sections), "form.html", visitor, action=f"/{action}", text=text)
