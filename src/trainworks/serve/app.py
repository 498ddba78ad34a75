"""The application: guard, pages, REST and live events, and the server that runs it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from trainworks import __version__, errors
from trainworks.api.observing.logs import log_names
from trainworks.serve.access import Access
from trainworks.serve.assets import assets
from trainworks.serve.frame import problem_page, sign_in_page
from trainworks.serve.guard import RequestGuard, VisitorOf
from trainworks.serve.pages import pages
from trainworks.serve.rest import json_of_problem, rest
from trainworks.serve.run_pages import run_pages
from trainworks.serve.site import Site
from trainworks.serve.streams import LOOK_EVERY_S, LiveStreams, TooManyStreamsError
from trainworks.serve.team import MemberServers
from trainworks.serve.team_folder import TeamFolder

_STATUS: dict[type[errors.TrainworksError], int] = {
    errors.UnknownRunError: 404,
    errors.NotOwnerError: 403,
    errors.UsageError: 422,
    errors.UnreachableError: 503,
    errors.DamagedStoreError: 503,
    errors.EnvironmentProblem: 409,
    errors.TrainworksError: 409,
}
"""Status of an answer by kind of error, the special ones first."""
_SWITCH_EVERY_S = 0.0005
"""How long one thread may compute while another waits: with Python's 5 ms a request that needs a page at hand would
wait 5 ms each time that it passes from thread to thread while a page is made."""


def create_app(
    site: Site, access: Access, *, port: int, is_encrypted: bool, hosts: Collection[str] = (), most_streams: int = 300
) -> FastAPI:
    """The application for the use cases of `site`; the cookie has `port` in its name.

    `is_encrypted`: browsers connect by TLS. `hosts` are names of this machine; see `RequestGuard`. `most_streams` pages
    are kept up to date at the same time.
    """
    app = FastAPI(
        title="Trainworks",
        version=__version__,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    streams = LiveStreams(most_streams)
    join = TeamFolder(access.team.folder).command if access.team else ""
    for router in (rest(site), assets(), pages(site, join), run_pages(site)):
        app.include_router(router)
    app.add_exception_handler(TooManyStreamsError, _answer_to_too_many)
    app.add_exception_handler(errors.TrainworksError, _answer_to_problem)
    app.add_exception_handler(RequestValidationError, _answer_to_invalid)
    app.add_exception_handler(HTTPException, _answer_to_unknown)
    app.add_middleware(
        RequestGuard,
        access=access,
        cookie=f"trainworks-{port}",
        is_encrypted=is_encrypted,
        hosts={*hosts, *access.hosts},
        refuse=partial(_refuse, join),
        team=MemberServers(access.team, _answer_to) if access.team else None,
    )

    @app.get("/live", include_in_schema=False)
    async def live(
        visitor: VisitorOf,
        run: Annotated[str | None, Query(max_length=200)] = None,
        log: Annotated[str | None, Query(max_length=20)] = None,
    ) -> Response:
        return await streams.open(visitor, (run, log), _stamp_of(site, run, log))

    return app


def _stamp_of(site: Site, run: str | None, log: str | None) -> Callable[[], object]:
    """A function whose value changes with a page."""

    def compute() -> object:
        if run is None:
            return site.board.version()
        view = site.view(run)
        if log in log_names(view.run.run_dir):
            return (view.run.run_dir.logs / f"{log}.log").stat().st_size
        return view.stamp()

    return lambda: site.shared.get(("stamp", run, log), compute, age_s=LOOK_EVERY_S / 2)


def _wants_json(request: Request) -> bool:
    return request.url.path.startswith("/api/")


def _answer(request: Request, problem: errors.TrainworksError, status: int) -> Response:
    if _wants_json(request):
        return json_of_problem(problem, status)
    return problem_page(problem, status, getattr(request.state, "visitor", None))


def _answer_to(request: Request, problem: errors.TrainworksError) -> Response:
    return _answer(request, problem, next(status for kind, status in _STATUS.items() if isinstance(problem, kind)))


async def _answer_to_problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, errors.TrainworksError)
    return _answer_to(request, problem)


async def _answer_to_too_many(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, TooManyStreamsError)
    answer = json_of_problem(problem, problem.status)
    answer.headers["Retry-After"] = "30"
    return answer


async def _answer_to_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    detail = error.errors()[0]
    place = ".".join(str(part) for part in detail["loc"])
    return _answer(request, errors.UsageError(str(detail["msg"]), place=place), 422)


async def _answer_to_unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer(request, errors.UsageError(str(error.detail)), error.status_code)


def _refuse(join: str, request: Request) -> Response:
    if _wants_json(request):
        return json_of_problem(errors.UsageError("the token is missing or wrong"), 401)
    return sign_in_page(join)


def serve_forever(app: FastAPI, listening: socket.socket, *, certificate: Path | None, key: Path | None) -> None:
    """Serve until a signal ends the process."""
    sys.setswitchinterval(_SWITCH_EVERY_S)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    uvicorn.Server(config).run(sockets=[listening])
    sys.stdout.flush()
