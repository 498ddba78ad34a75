"""Pages with a run file in and something out: a plan, or a queued job."""

from __future__ import annotations

from collections.abc import Mapping

import yaml
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
_PLAN_FIELDS = {
    "model": "llama-2-7b",
    "cluster": "16 nodes of DGX H100",
    "sequence_length": "4096",
    "global_batch": "1024",
    "train_for": "100B tokens",
    "precision": "bf16",
    "deadline": "",
    "budget": "",
}
"""Field of the form of a plan -> its value at first."""
_PLAN_LABELS = {
    "model": ("Model", "llama3-70b"),
    "cluster": ("Cluster", "4 nodes of 8x A100-SXM-80GB over 8x HDR"),
    "sequence_length": ("Tokens per sequence", "4096"),
    "global_batch": ("Sequences per step", "1024"),
    "train_for": ("Train for", "2B tokens"),
    "precision": ("Precision", "bf16"),
    "deadline": ("Deadline", "3h, or none"),
    "budget": ("Budget", "2000 USD, or none"),
}
"""Field -> label, and an example."""


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
        return _plan_page(Document("Plan", "plan", []), visitor, plan_text(_PLAN_FIELDS), _PLAN_FIELDS)

    @router.post("/plan")
    def plan_run(visitor: VisitorOf, form: FormOf) -> Response:
        check_role(visitor, Role.SUBMITTER)
        fields = {name: form.get(name, "") for name in _PLAN_FIELDS}
        text = form["text"] if "text" in form else plan_text(fields)
        try:
            request = read_run_file(text)
            run_file, _ = described_run(request.run_file, None, task="a page plans")
            document = build_document(plan_cluster(run_file, request.source, all_sizes=False, learning=True))
        except TrainworksError as problem:
            found = Document("Plan", "plan", [Section("", [Preformatted(problem.render())])])
            return HTMLResponse(_plan_page(found, visitor, text, fields, has_plan=False), 422)
        return HTMLResponse(_plan_page(document, visitor, text, fields, has_plan=True))

    return router


def plan_text(fields: Mapping[str, str]) -> str:
    """The run file of a plan whose fields were filled in; an empty one is left out.

    >>> print(plan_text({"model": "llama-2-7b", "cluster": "4 nodes of DGX H100", "deadline": ""}), end="")
    name: plan
    workload:
      task: causal-lm
      model:
        preset: llama-2-7b
    cluster: 4 nodes of DGX H100
    """
    given = {name: _number_or_text(value.strip()) for name, value in fields.items() if value.strip()}
    parts = {
        "model": {"preset": given["model"]} if "model" in given else None,
        "data": {"sequence_length": given["sequence_length"]} if "sequence_length" in given else None,
        **{name: given.get(name) for name in ("precision", "global_batch", "train_for")},
    }
    workload = {"task": "causal-lm", **{name: part for name, part in parts.items() if part is not None}}
    goal = {name: given[name] for name in ("deadline", "budget") if name in given}
    run_file = {"name": "plan", "workload": workload, "cluster": given.get("cluster"), "goal": goal or None}
    kept = {name: part for name, part in run_file.items() if part is not None}
    return str(yaml.safe_dump(kept, sort_keys=False, allow_unicode=True))


def _number_or_text(value: str) -> int | str:
    return int(value) if value.isdecimal() and len(value) < 16 else value


def _plan_page(
    document: Document, visitor: Visitor, text: str, fields: Mapping[str, str], *, has_plan: bool = False
) -> str:
    labelled = [(name, *_PLAN_LABELS[name], fields[name]) for name in _PLAN_FIELDS]
    return render(document, "plan.html", visitor, fields=labelled, text=text, has_plan=has_plan)


def _text_form(title: str, action: str, visitor: Visitor, text: str, problem: TrainworksError | None = None) -> str:
    sections = [Section("", [Preformatted(problem.render())])] if problem else []
    return render(Document(title, action, sections), "form.html", visitor, action=f"/{action}", text=text)
