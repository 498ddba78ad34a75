"""The pages of the cluster: jobs, nodes, costs, and a run file in for a plan or a queued job out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated
from urllib.parse import urlencode

import yaml
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from trainworks.api.inputs import described_run
from trainworks.api.observing.job_board import JobQuery, UsageKey
from trainworks.api.planning.described import plan_cluster
from trainworks.api.run_handle import JobState
from trainworks.api.run_request import read_run_file
from trainworks.errors import TrainworksError, UsageError, suggest
from trainworks.report.pages import job_list
from trainworks.report.proving.health import nodes_page
from trainworks.report.rendering.document import Document, Preformatted, Section, Text
from trainworks.report.rendering.renderer import build_document
from trainworks.serve.access import Role, Visitor
from trainworks.serve.frame import FormOf, render, sign_in_page
from trainworks.serve.guard import VisitorOf
from trainworks.serve.site import Site, check_role

_COLUMNS_COOKIE = "trainworks-columns"
_A_YEAR_S = 365 * 86_400
_COSTS: Mapping[str, tuple[str, tuple[UsageKey, ...]]] = {
    "": ("month, owner and team", ("month", "user", "team")),
    "team": ("month and team", ("month", "team")),
    "owner": ("month and owner", ("month", "user")),
    "month": ("month", ("month",)),
}
"""Sums of costs by their name in the address -> title, and keys."""
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
ORDER_TITLES = {
    "-job": "newest first",
    "job": "oldest first",
    "-started": "started last first",
    "-ended": "ended last first",
    "run": "by run",
    "state": "by state",
    "owner": "by owner",
    "-priority": "by priority",
}
"""Orders that the form offers; the headings of the list have the others."""


def pages(site: Site, join: str) -> APIRouter:
    """All pages except those of runs; none of them is part of the API's description. `join`: see `sign_in_page`."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    _job_pages(router, site)
    _form_pages(router, site)

    @router.get("/nodes")
    def nodes_of(visitor: VisitorOf, cluster: Annotated[str, Query(max_length=200)] = "") -> str:
        def compute() -> str:
            machine = site.machine()
            document = nodes_page(site.nodes(cluster or None), machine.load, machine.health)
            return render(document, "nodes.html", visitor, cluster=cluster, clusters=("", *site.clusters()))

        return site.shared.get(("nodes page", cluster, visitor), compute)

    @router.get("/costs")
    def costs_page(visitor: VisitorOf, by: Annotated[str, Query(max_length=20)] = "") -> str:
        if by not in _COSTS:
            raise UsageError(f"no sum `{by}`", hint=suggest(by, _COSTS))
        keys = _COSTS[by][1]
        document = site.shared.get(("costs", by), lambda: build_document(site.board.usage(keys)), age_s=30.0)
        sums = {name: title for name, (title, _) in _COSTS.items()}
        page = partial(render, document, "costs.html", visitor, by=by, sums=sums)
        return site.shared.get(("costs page", by, visitor), page, stamp=document)

    @router.get("/login")
    def login_page() -> Response:
        return sign_in_page(join, 200)

    return router


def _job_pages(router: APIRouter, site: Site) -> None:
    @router.get("/")
    def jobs_page(
        request: Request,
        visitor: VisitorOf,
        state: Annotated[str, Query(max_length=20)] = "",
        owner: Annotated[str, Query(max_length=100)] = "",
        text: Annotated[str, Query(max_length=100)] = "",
        before: Annotated[str, Query(max_length=15, pattern=r"^\d*$")] = "",
        order: Annotated[str, Query(max_length=20)] = "-job",
        skip: Annotated[int, Query(ge=0, le=10**7)] = 0,
        columns: Annotated[list[str] | None, Query(max_length=40)] = None,
    ) -> Response:
        query = JobQuery(state, owner, text, int(before) if before else None, order=order or "-job", skip=skip)
        shown = job_list.known_columns(columns or request.cookies.get(_COLUMNS_COOKIE, "").split("."))
        key = (query, shown, visitor)
        answer = HTMLResponse(site.shared.get(key, partial(_jobs, site, query, shown, visitor)))
        if columns:
            answer.set_cookie(_COLUMNS_COOKIE, ".".join(shown), max_age=_A_YEAR_S, httponly=True, samesite="lax")
        return answer


def _jobs(site: Site, query: JobQuery, columns: Sequence[str], visitor: Visitor) -> str:
    found = site.board.find(query)
    wanted = {name: value for name in ("state", "owner", "text") if (value := getattr(query, name))}
    ordered = wanted | ({"order": query.order} if query.order != "-job" else {})

    def address(more: Mapping[str, object]) -> str:
        return f"/?{urlencode(more)}" if more else "/"

    document = job_list.jobs_page(
        found.jobs,
        time.time(),
        columns=columns,
        order=query.order,
        in_order=lambda order: address(wanted | {"order": order}),
    )
    counts = ", ".join(f"{count:,} {state.lower()}" for state, count in found.counts.items())
    nothing = [Section("", [Text("No job matches.")])] if wanted else []
    following = {"before": found.next} if found.next else {"skip": query.skip + len(found.jobs)}
    return render(
        replace(
            document,
            sections=document.sections if found.jobs else nothing,
            about=counts or "No job was submitted yet",
        ),
        "jobs.html",
        visitor,
        live="/live",
        query=query,
        states=["live", *JobState],
        orders=ORDER_TITLES,
        columns=[(name, title, name in columns) for name, title in job_list.COLUMNS.items()],
        cards=job_list.run_cards(site.live_runs()),
        next_page=address(ordered | following) if found.has_more else "",
        first_page=address(ordered) if query.before or query.skip else "",
    )


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
    texts = {name: value.strip() for name, value in fields.items() if value.strip()}
    given = {name: int(text) if text.isdecimal() and len(text) < 16 else text for name, text in texts.items()}
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


def _plan_page(
    document: Document, visitor: Visitor, text: str, fields: Mapping[str, str], *, has_plan: bool = False
) -> str:
    labelled = [(name, *_PLAN_LABELS[name], fields[name]) for name in _PLAN_FIELDS]
    return render(document, "plan.html", visitor, fields=labelled, text=text, has_plan=has_plan)


def _text_form(title: str, action: str, visitor: Visitor, text: str, problem: TrainworksError | None = None) -> str:
    sections = [Section("", [Preformatted(problem.render())])] if problem else []
    return render(Document(title, action, sections), "form.html", visitor, action=f"/{action}", text=text)
