"""The REST API, under /api/v1; /api/v1/openapi.json describes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Response
from fastapi.responses import JSONResponse
from pydantic import Field
from pydantic_core import to_json

from trainworks.api.jobs import Attempt, JobRow
from trainworks.api.nodes import NodeStatus
from trainworks.api.observing.job_board import JobQuery, JobsFound
from trainworks.api.observing.logs import LEVELS, LogPart, last_lines, log_names
from trainworks.api.observing.run_views import CURVES, SavedCheckpoint
from trainworks.api.observing.why import Diagnosis, diagnosis_of
from trainworks.errors import TrainworksError, UsageError, suggest
from trainworks.report.job_costs import HeldTime
from trainworks.report.runs.run_comparison import RunComparison
from trainworks.report.runs.summary import Report
from trainworks.serve.guard import VisitorOf
from trainworks.serve.site import MOST_CHANGES, ChangeResult, MachineState, Site

Name = Annotated[str, Path(min_length=1, max_length=200, description="Number of a job, or id of its run.")]
Names = Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Body(embed=True, max_length=MOST_CHANGES)]
Whole = Annotated[int | None, Query(ge=1, le=2**53)]


@dataclass(frozen=True, slots=True)
class ApiProblem:
    """An error: what failed, where, and the next step."""

    message: str
    place: str | None
    hint: str | None
    exit_code: int


@dataclass(frozen=True, slots=True)
class JobWithAttempts:
    """A job and every start of it."""

    job: JobRow
    attempts: list[Attempt]


@dataclass(frozen=True, slots=True)
class SubmittedRun:
    """A run that was put into its queue."""

    run: str


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ApiProblem, "description": text}
    for status, text in {
        403: "The visitor may not do this.",
        404: "No such job or run.",
        409: "The state of the run or the machine does not allow it.",
        413: "The request is too large.",
        422: "The request is wrong.",
        503: "The job store or a backend does not answer.",
    }.items()
}


def json_of_problem(problem: TrainworksError, status: int) -> Response:
    """The answer to a request that failed."""
    return JSONResponse(problem.to_json(), status)


def rest(site: Site) -> APIRouter:
    """All routes of the API."""
    router = APIRouter(prefix="/api/v1", responses=_PROBLEMS)
    _job_routes(router, site)
    _run_routes(router, site)
    _record_routes(router, site)

    @router.get("/nodes", tags=["cluster"])
    def list_nodes(cluster: Annotated[str | None, Query(max_length=200)] = None) -> list[NodeStatus]:
        """Nodes of this machine's queue, or of a cluster, with what of them is in use."""
        return site.nodes(cluster)

    @router.get("/machine", tags=["cluster"])
    def describe_machine() -> MachineState:
        """Load of the machine of the server, and its health, checked every five minutes."""
        return site.machine()

    @router.get("/costs", tags=["cluster"])
    def list_costs() -> list[HeldTime]:
        """Accelerator and core hours, and their price, by month, owner and team."""
        return site.shared.get("costs", lambda: list(site.board.usage().held), age_s=30.0)

    return router


def _job_routes(router: APIRouter, site: Site) -> None:
    @router.get("/jobs", tags=["jobs"])
    def list_jobs(
        state: Annotated[str, Query(max_length=20, description="A state, or `live`.")] = "",
        owner: Annotated[str, Query(max_length=100)] = "",
        text: Annotated[str, Query(max_length=100, description="In run, owner, engine or reason.")] = "",
        before: Whole = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        order: Annotated[str, Query(max_length=20, description="A column, the largest first after a `-`.")] = "-job",
        skip: Annotated[int, Query(ge=0, le=10**7, description="Leave out so many.")] = 0,
    ) -> JobsFound:
        """Jobs, the newest first; `next` is the `before` of the next page."""
        return site.board.find(JobQuery(state, owner, text, before, limit, order, skip))

    @router.get("/jobs/{name}", tags=["jobs"])
    def describe_job(name: Name) -> JobWithAttempts:
        """A job and its attempts."""
        job = site.board.job(name)
        return JobWithAttempts(job.row, job.attempts())

    @router.post("/jobs", tags=["jobs"], status_code=201)
    def submit_job(visitor: VisitorOf, run_file: Annotated[str, Body(embed=True, max_length=200_000)]) -> SubmittedRun:
        """Submit the run that the text of a run file describes; it runs as the user of the server."""
        return SubmittedRun(site.submit(visitor, run_file).id)

    @router.post("/jobs/{name}/stop", tags=["jobs"], status_code=202)
    def stop_job(
        visitor: VisitorOf, name: Name, at_once: Annotated[bool, Query(description="Without a checkpoint.")] = False
    ) -> SubmittedRun:
        """Ask a run to stop; a workload saves a checkpoint first."""
        return SubmittedRun(site.stop(visitor, name, at_once=at_once).id)

    @router.post("/jobs/stop", tags=["jobs"])
    def stop_jobs(visitor: VisitorOf, jobs: Names, at_once: Annotated[bool, Body()] = False) -> list[ChangeResult]:
        """Stop several runs, by number of their job or id; with a result for each."""
        return site.change_all(visitor, "stop", jobs, at_once=at_once)

    @router.post("/jobs/resume", tags=["jobs"])
    def resume_jobs(visitor: VisitorOf, jobs: Names) -> list[ChangeResult]:
        """Queue several runs again that have ended; with a result for each."""
        return site.change_all(visitor, "resume", jobs)

    @router.post("/jobs/{name}/resume", tags=["jobs"], status_code=202)
    def resume_job(visitor: VisitorOf, name: Name) -> SubmittedRun:
        """Queue a run that has ended again; a workload continues from its newest checkpoint."""
        return SubmittedRun(site.resume(visitor, name).id)


def _run_routes(router: APIRouter, site: Site) -> None:
    @router.get("/runs/{run}", tags=["runs"], response_model=Report)
    def report_run(run: Name) -> Response:
        """The report: state, planned and measured, where the time went, attempts, checkpoints, thinned curves."""
        view = site.view(run)
        text = site.shared.get(("report", view.run.path), lambda: view.report().model_dump_json(), stamp=view.stamp())
        return Response(text, media_type="application/json")

    @router.get("/runs/{run}/findings", tags=["runs"])
    def list_findings(run: Name) -> list[str]:
        """One sentence per difference from the plan worth a sentence, the largest first."""
        comparison = site.view(run).report().comparison
        return list(comparison.findings) if comparison else []

    @router.get("/runs/{run}/why", tags=["runs"], response_model=Diagnosis)
    def diagnose_run(run: Name) -> Response:
        """Causes of lost time, the costliest first, each with evidence and a remedy; at most half a minute old."""
        return Response(site.diagnosis(run, diagnosis_of).model_dump_json(), media_type="application/json")

    @router.get("/runs/{run}/compare/{other}", tags=["runs"], response_model=RunComparison)
    def compare_runs(run: Name, other: Name) -> Response:
        """Settings, step parts, losses and cost of two runs; differences are relative to the first."""
        return Response(site.comparison(run, other).model_dump_json(), media_type="application/json")

    @router.get("/runs/{run}/checkpoints", tags=["runs"])
    def list_checkpoints(run: Name) -> list[SavedCheckpoint]:
        """Every checkpoint that was completed, the oldest first; some may have been deleted since."""
        return site.view(run).checkpoints()


def _record_routes(router: APIRouter, site: Site) -> None:
    @router.get("/runs/{run}/metrics", tags=["runs"], response_model=dict[str, list[float | None]])
    def list_metrics(
        run: Name,
        names: Annotated[str, Query(max_length=300, description=f"Some of {', '.join(CURVES)}.")] = "loss",
        points: Annotated[int, Query(ge=2, le=20_000)] = 1000,
        first: Annotated[int, Query(ge=0, le=2**53)] = 0,
        last: Whole = None,
        lost: Annotated[bool, Query(description="The steps that a restart threw away instead.")] = False,
        mean: Annotated[int, Query(ge=1, le=10**7, description="Each value is the mean of so many.")] = 1,
    ) -> Response:
        """Metrics of the steps that count, thinned so that the first name keeps its spikes; null is not a number."""
        wanted = tuple(name.strip() for name in names.split(","))
        if unknown := [name for name in wanted if name not in CURVES]:
            raise UsageError(f"no metric `{unknown[0]}`", hint=suggest(unknown[0], CURVES))
        view, key = site.view(run), (wanted, points, first, last, lost, mean)

        def compute() -> bytes:
            return to_json(finite(view.metrics(wanted, points=points, first=first, last=last, lost=lost, mean=mean)))

        text = site.shared.get(("metrics", view.run.path, key), compute, stamp=view.stamp())
        return Response(text, media_type="application/json")

    @router.get("/runs/{run}/events", tags=["runs"])
    def list_events(
        run: Name,
        after: Annotated[int, Query(ge=0, le=2**53, description="Leave out so many.")] = 0,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    ) -> list[Mapping[str, Any]]:
        """Events in the order in which they were written."""
        return [finite(event) for event in site.view(run).events()[after : after + limit]]

    @router.get("/runs/{run}/logs", tags=["runs"])
    def list_logs(run: Name) -> list[str]:
        """Names of the logs that are on this machine."""
        return log_names(site.view(run).run.run_dir)

    @router.get("/runs/{run}/logs/{log}", tags=["runs"])
    def read_run_log(
        run: Name,
        log: Annotated[str, Path(max_length=20, description="`rank-0`, `node-0` or `supervisor`.")],
        text: Annotated[str, Query(max_length=200, description="Only lines with this text, in any case.")] = "",
        level: Annotated[str, Query(max_length=20, description=f"Least level, of {', '.join(LEVELS)}.")] = "",
        limit: Annotated[int, Query(ge=1, le=10_000)] = 500,
    ) -> LogPart:
        """The last lines of a log."""
        return last_lines(site.view(run).run.run_dir, log, text=text, level=level, limit=limit)


def finite(value: Any) -> Any:
    """A value of JSON without NaN and infinities, which are null instead."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list) else value
