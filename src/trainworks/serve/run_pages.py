"""The pages of runs: one in tabs, its logs, the causes of lost time, and several runs beside each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import StringConstraints

from trainworks.api.observing.logs import LEVELS, last_lines, log_sizes
from trainworks.api.observing.run_views import RunView
from trainworks.api.observing.why import diagnosis_of
from trainworks.errors import UnknownRunError, UsageError, suggest
from trainworks.report import jobs as jobs_view
from trainworks.report.pages import job_list
from trainworks.report.pages.overlay import METRICS, overlay_document, overlay_section
from trainworks.report.pages.run_tabs import MORE_METRICS, TABS, LogLink, RunPage, Tab, log_document
from trainworks.report.rendering.document import Block, Cell, Document, Section, Styled, Table, Text, left
from trainworks.report.rendering.renderer import build_document
from trainworks.serve.access import Role, Visitor
from trainworks.serve.frame import render
from trainworks.serve.guard import VisitorOf
from trainworks.serve.site import MOST_CHANGES, Change, Site, check_role

Chosen = Annotated[Sequence[Annotated[str, StringConstraints(max_length=200)]], Query(max_length=MOST_CHANGES)]
"""Runs that were ticked in the list of jobs."""
_MOST_RUNS = 50
"""Runs over each other, of the 64 that the server keeps in memory."""
_BEST_TRIALS = 10
_DRAWN_POINTS = 400
"""Points of a curve that is drawn without a script; with one the page asks for those of the range that it shows."""


def run_pages(site: Site) -> APIRouter:
    """All pages about runs."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

    @router.get("/runs/{name}/why")
    def why_page(visitor: VisitorOf, name: str) -> str:
        diagnosis = site.diagnosis(name, diagnosis_of)

        def compute() -> str:
            return render(build_document(diagnosis), "run.html", visitor, **_frame(name, "time"), actions=[])

        return site.shared.get(("why page", name, visitor), compute, stamp=diagnosis)

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
        frame = _frame(name, "logs") | {"live": f"/live?run={name}&log={log}"}
        return render(document, "log.html", visitor, **frame, text=text, level=level, levels=LEVELS)

    @router.post("/runs/{name}/{action}")
    def act(visitor: VisitorOf, name: str, action: str) -> Response:
        actions: dict[str, Callable[[Visitor, str], object]] = {"stop": site.stop, "resume": site.resume}
        if action not in actions:
            raise UsageError(f"no action `{action}`")
        actions[action](visitor, name)
        return RedirectResponse(f"/runs/{name}", 303)

    _change_pages(router, site)
    _tab_pages(router, site)
    _overlay_pages(router, site)
    return router


def _change_pages(router: APIRouter, site: Site) -> None:
    @router.get("/change")
    def confirm(visitor: VisitorOf, change: Change, run: Chosen = ()) -> str:
        check_role(visitor, Role.SUBMITTER)
        views = [(name, site.view(name)) for name in dict.fromkeys(run)]
        chosen = [(name, view.job.row if view.job else view.report().state) for name, view in views]
        document = job_list.chosen_jobs(change, chosen)
        query = urlencode([("change", change), *(("run", name) for name, _ in views)])
        return render(document, "change.html", visitor, query=query, chosen=views)

    @router.post("/change")
    def change_all(visitor: VisitorOf, change: Change, run: Chosen = ()) -> str:
        results = site.change_all(visitor, change, run)
        shown = [(one.job, one.run, ". ".join(filter(None, (one.problem, one.hint)))) for one in results]
        return render(job_list.changed_jobs(change, shown), "site.html", visitor)


def _tab_pages(router: APIRouter, site: Site) -> None:
    @router.get("/runs/{name}")
    def overview(visitor: VisitorOf, name: str) -> str:
        return tab_page(visitor, name, "overview")

    @router.get("/runs/{name}/{tab}")
    def any_tab(visitor: VisitorOf, name: str, tab: str) -> str:
        found = next((each for each in TABS if each == tab), None)
        if found is None:
            raise UnknownRunError(f"no page `{tab}` of a run", hint=suggest(tab, TABS))
        return tab_page(visitor, name, found)

    def tab_page(visitor: Visitor, name: str, tab: Tab) -> str:
        view = site.view(name)

        def compute() -> str:
            report = view.report()
            ended = report.state in ("FAILED", "STOPPED", "LOST")
            actions = ["resume"] if ended else [] if report.state == "SUCCEEDED" else ["stop"]
            document = _page(view, name, tab).document(tab)
            frame = _frame(name, tab) | {"live": f"/live?run={name}", "has_charts": tab == "curves"}
            return render(document, "run.html", visitor, **frame, actions=actions)

        return site.shared.get(("run", view.run.path, name, tab, visitor), compute, stamp=view.stamp())


def _overlay_pages(router: APIRouter, site: Site) -> None:
    @router.get("/compare")
    def compare_page(
        visitor: VisitorOf,
        run: Annotated[list[str] | None, Query(max_length=200)] = None,
        metric: Annotated[str, Query(max_length=40)] = "loss",
    ) -> str:
        if metric not in METRICS:
            raise UsageError(f"no curve `{metric}`", hint=suggest(metric, METRICS))
        names = list(dict.fromkeys(name.strip() for name in run or () if name.strip()))
        if len(names) > _MOST_RUNS:
            raise UsageError(f"{len(names)} runs are chosen, at most {_MOST_RUNS} fit over each other")

        def compute() -> str:
            shown = {"chosen": names, "metric": metric, "metrics": METRICS, "has_charts": bool(names)}
            return render(_compared(site, names, metric), "compare.html", visitor, **shown)

        stamp = [site.view(name).stamp() for name in names]
        return site.shared.get(("compared", metric, *names, visitor), compute, stamp=stamp)

    @router.get("/sweeps")
    def sweeps_page(visitor: VisitorOf) -> str:
        names = site.sweeps()
        rows: list[list[Cell]] = [[Styled(name, href=f"/sweeps/{quote(name)}")] for name in names]
        blocks: list[Block] = (
            [Table(left("sweep"), rows)] if rows else [Text("No sweep is in the folder of runs.", "dim")]
        )
        return render(Document("Sweeps", "sweeps", [Section("", blocks)]), "site.html", visitor)

    @router.get("/sweeps/{name}")
    def sweep_page(visitor: VisitorOf, name: str) -> str:
        sweep = site.sweep(name)
        best = [trial.run for trial in sweep.ranked() if trial.run is not None][:_BEST_TRIALS]
        overlay = f"/compare?{urlencode([('run', run) for run in best])}" if len(best) > 1 else ""

        def compute() -> str:
            return render(build_document(sweep), "sweep.html", visitor, overlay=overlay, num_best=len(best))

        return site.shared.get(("sweep page", name, visitor), compute, stamp=sweep)


def _compared(site: Site, names: Sequence[str], metric: str) -> Document:
    """One curve of these runs over each other; of two runs every difference has its figure, too."""
    if not names:
        return Document("Compare runs", "comparison", [], about="Choose runs in the list of jobs, or name them here.")
    runs = site.overlay(names, metric, points=_DRAWN_POINTS)
    if len(runs) != 2:
        return overlay_document(runs, metric)
    pair = build_document(site.comparison(*names))
    sections = [overlay_section(runs, metric), *pair.without("Loss").sections]
    return replace(pair, sections=[*sections[1:2], sections[0], *sections[2:]])


def _frame(name: str, tab: Tab) -> dict[str, object]:
    """What the template of every page of a run needs."""
    links = [(f"/runs/{name}" if each == "overview" else f"/runs/{name}/{each}", title) for each, title in TABS.items()]
    return {"name": name, "tabs": links, "tab": TABS[tab]}


def _page(view: RunView, name: str, tab: Tab) -> RunPage:
    """What the tab needs; nothing else is read."""
    logs = log_sizes(view.run.run_dir) if tab == "logs" else {}
    return RunPage(
        name,
        view.report(),
        events=view.events() if tab == "events" else (),
        job=_job_sections(view) if tab == "overview" else (),
        logs=[LogLink(log, f"/runs/{name}/logs/{log}", num_bytes) for log, num_bytes in logs.items()],
        checkpoints=view.checkpoints() if tab == "checkpoints" else (),
        metrics=view.curves(tuple(MORE_METRICS), points=_DRAWN_POINTS) if tab == "curves" else None,
    )


def _job_sections(view: RunView) -> Sequence[Section]:
    job = view.job
    if job is None:
        return []
    price, attempts, code, lives = job.hour_price, job.attempts(), job.kept_code, job.lives()
    return jobs_view.detail_document(
        job.row, attempts, price=price, code=code, failure=(), now=time.time(), lives=lives
    ).sections
