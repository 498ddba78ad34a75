"""The pages of the cluster: jobs, nodes and costs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response

from trainworks.api.observing.job_board import JobQuery, UsageKey
from trainworks.api.run_handle import JobState
from trainworks.errors import UsageError, suggest
from trainworks.report import job_list
from trainworks.report.job_list import known_columns
from trainworks.report.proving.health import nodes_page
from trainworks.report.rendering.document import Section, Text
from trainworks.report.rendering.renderer import build_document
from trainworks.serve.access import Visitor
from trainworks.serve.frame import render, sign_in_page
from trainworks.serve.guard import VisitorOf
from trainworks.serve.site import Site

_COLUMNS_COOKIE = "trainworks-columns"
_A_YEAR_S = 365 * 86_400
_COSTS: Mapping[str, tuple[str, tuple[UsageKey, ...]]] = {
    "": ("month, owner and team", ("month", "user", "team")),
    "team": ("month and team", ("month", "team")),
    "owner": ("month and owner", ("month", "user")),
    "month": ("month", ("month",)),
}
"""Sums of costs by their name in the address -> title, and keys."""
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


def pages(site: Site) -> APIRouter:
    """The list of jobs, nodes, costs and the form for a token; none of them is part of the API's description."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    _job_pages(router, site)

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
        return render(document, "costs.html", visitor, by=by, sums={name: title for name, (title, _) in _COSTS.items()})

    @router.get("/login")
    def login_page() -> Response:
        return sign_in_page(200)

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
        shown = known_columns(columns or request.cookies.get(_COLUMNS_COOKIE, "").split("."))
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
