"""The pages of the cluster: jobs, nodes and costs."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from trainworks.api.observing.job_board import JobQuery
from trainworks.api.run_handle import JobState
from trainworks.report import jobs as jobs_view
from trainworks.report.proving.health import nodes_page
from trainworks.report.rendering.document import Document, Section, Text
from trainworks.report.rendering.renderer import build_document
from trainworks.serve.access import Visitor
from trainworks.serve.frame import render, sign_in_page
from trainworks.serve.guard import VisitorOf
from trainworks.serve.site import Site


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
    def costs_page(visitor: VisitorOf) -> str:
        document = site.shared.get("costs page", lambda: build_document(site.board.usage()), age_s=30.0)
        return render(document, "site.html", visitor)

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
