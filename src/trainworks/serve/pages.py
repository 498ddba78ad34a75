"""The pages: each is a document of the report, in the frame of the site."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from trainworks.api.inputs import described_run
from trainworks.api.observing.job_board import JobQuery
from trainworks.api.observing.logs import LEVELS, last_lines, log_names
from trainworks.api.observing.run_views import RunView
from trainworks.api.observing.why import diagnosis_of
from trainworks.api.planning.described import plan_cluster
from trainworks.api.run_handle import JobState
from trainworks.api.run_request import read_run_file
from trainworks.errors import TrainworksError, UsageError
from trainworks.report import jobs as jobs_view
from trainworks.report.live import log_document, run_document
from trainworks.report.proving.health import nodes_page
from trainworks.report.rendering.document import Document, Preformatted, Section, Text
from trainworks.report.rendering.page import page_environment
from trainworks.report.rendering.renderer import build_document
from trainworks.serve.access import Role, Visitor
from trainworks.serve.assets import asset_url
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
_ENVIRONMENT = page_environment("serve/templates")
_ENVIRONMENT.globals["asset"] = asset_url


def render(document: Document, template: str, visitor: Visitor | None, **context: Any) -> str:
    """A document in the frame of the site, or in a template that extends it."""
    shown = {"document": document, "sections": document.shown("page"), "visitor": visitor}
    shown |= {"may_submit": visitor is not None and visitor.role >= Role.SUBMITTER, "live": "", "back": ""}
    return _ENVIRONMENT.get_template(template).render(**shown | context)


def problem_page(problem: TrainworksError, status: int, visitor: Visitor | None) -> Response:
    """The answer to a request that failed."""
    document = Document("This did not work", "error", [Section("", [Preformatted(problem.render())])])
    return HTMLResponse(render(document, "site.html", visitor), status)


def sign_in_page(status: int = 401) -> Response:
    """The form for a token."""
    return HTMLResponse(render(Document("Sign in", "trainworks", []), "sign_in.html", None), status)


async def _form(request: Request) -> dict[str, str]:
    """Fields of a form that was sent, with the line ends of a file: a browser sends CR LF."""
    fields = parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True)
    return {name: text.replace("\r\n", "\n") for name, text in fields}


FormOf = Annotated[Mapping[str, str], Depends(_form)]


def pages(site: Site) -> APIRouter:
    """All pages; none of them is part of the API's description."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    _job_pages(router, site)
    _run_pages(router, site)
    _form_pages(router, site)

    @router.get("/nodes")
    def nodes_of(visitor: VisitorOf, cluster: Annotated[str, Query(max_length=200)] = "") -> str:
        def compute() -> str:
            machine = site.machine()
            document = nodes_page(site.nodes(cluster or None), machine.load, machine.health)
            return render(document, "nodes.html", visitor, cluster=cluster, clusters=("", *site.clusters()))

        return site.shared.get(("nodes page", cluster, visitor), compute)

    @router.get("/costs")
    def costs_page(visitor: VisitorOf) -> str:
        document = site.shared.get("costs page", lambda: build_document(site.board.usage()), age_s=30.0)
        return render(document, "site.html", visitor)

    @router.get("/compare")
    def compare_page(
        visitor: VisitorOf,
        first: Annotated[str, Query(max_length=200)] = "",
        second: Annotated[str, Query(max_length=200)] = "",
    ) -> str:
        document = Document("Compare runs", "comparison", [])
        if first and second:
            document = build_document(site.comparison(first, second))
        return render(document, "compare.html", visitor, first=first, second=second)

    @router.get("/login")
    def login_page() -> Response:
        return sign_in_page(200)

    return router


def _job_pages(router: APIRouter, site: Site) -> None:
    @router.get("/")
    def jobs_page(
        visitor: VisitorOf,
        state: Annotated[str, Query(max_length=20)] = "",
        owner: Annotated[str, Query(max_length=100)] = "",
        text: Annotated[str, Query(max_length=100)] = "",
        before: Annotated[str, Query(max_length=15, pattern=r"^\d*$")] = "",
    ) -> str:
        query = JobQuery(state, owner, text, int(before) if before else None)
        return site.shared.get((query, visitor), partial(_jobs, site, query, visitor))


def _jobs(site: Site, query: JobQuery, visitor: Visitor) -> str:
    found = site.board.find(query)
    document = jobs_view.list_document(found.jobs, time.time(), address="/runs/{}")
    counts = ", ".join(f"{count:,} {state.lower()}" for state, count in found.counts.items())
    wanted = {name: value for name in ("state", "owner", "text") if (value := getattr(query, name))}
    nothing = [Section("", [Text("No job matches.")])] if wanted else []
    return render(
        Document(
            document.title,
            document.kind,
            document.sections if found.jobs else nothing,
            about=counts or "No job was submitted yet",
        ),
        "jobs.html",
        visitor,
        live="/live",
        query=query,
        states=["live", *JobState],
        next_page=f"/?{urlencode(wanted | {'before': found.next})}" if found.next else "",
        first_page=f"/?{urlencode(wanted)}" if query.before else "",
    )


def _run_pages(router: APIRouter, site: Site) -> None:
    @router.get("/runs/{name}")
    def run_page(visitor: VisitorOf, name: str) -> str:
        view = site.view(name)

        def compute() -> str:
            report, run_dir = view.report(), view.run.run_dir
            logs = [(log, f"/runs/{name}/logs/{log}") for log in log_names(run_dir)]
            document = run_document(report, view.events(), job=_job_sections(view), logs=logs)
            ended = report.state in ("FAILED", "STOPPED", "LOST")
            actions = ["resume"] if ended else [] if report.state == "SUCCEEDED" else ["stop"]
            return render(document, "run.html", visitor, live=f"/live?run={name}", name=name, actions=actions)

        return site.shared.get(("run", view.run.path, name, visitor), compute, stamp=view.stamp())

    @router.get("/runs/{name}/why")
    def why_page(visitor: VisitorOf, name: str) -> str:
        return render(build_document(site.diagnosis(name, diagnosis_of)), "site.html", visitor, back=f"/runs/{name}")

    @router.get("/runs/{name}/logs/{log}")
    def log_page(
        visitor: VisitorOf,
        name: str,
        log: str,
        text: Annotated[str, Query(max_length=200)] = "",
        level: Annotated[str, Query(max_length=20)] = "",
    ) -> str:
        run_dir = site.view(name).run.run_dir
        part = last_lines(run_dir, log, text=text, level=level)
        document = log_document(run_dir.run_id, log, part.lines, text=text, level=level, is_cut=part.is_cut)
        frame = {"live": f"/live?run={name}&log={log}", "back": f"/runs/{name}"}
        return render(document, "log.html", visitor, **frame, text=text, level=level, levels=LEVELS)

    @router.post("/runs/{name}/{action}")
    def act(visitor: VisitorOf, name: str, action: str) -> Response:
        actions: dict[str, Callable[[Visitor, str], object]] = {"stop": site.stop, "resume": site.resume}
        if action not in actions:
            raise UsageError(f"no action `{action}`")
        actions[action](visitor, name)
        return RedirectResponse(f"/runs/{name}", 303)


def _job_sections(view: RunView) -> Sequence[Section]:
    job = view.job
    if job is None:
        return []
    price, attempts, code, lives = job.usd_per_accelerator_hour, job.attempts(), job.kept_code, job.lives()
    return jobs_view.detail_document(
        job.row, attempts, price=price, code=code, failure=(), now=time.time(), lives=lives
    ).sections


def _form_pages(router: APIRouter, site: Site) -> None:
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


def _text_form(title: str, action: str, visitor: Visitor, text: str, problem: TrainworksError | None = None) -> str:
    sections = [Section("", [Preformatted(problem.render())])] if problem else []
    return render(Document(title, action, sections), "form.html", visitor, action=f"/{action}", text=text)
