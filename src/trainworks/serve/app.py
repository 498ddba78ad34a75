"""The application: guard, pages, REST and live events, and the server that runs it."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from trainworks import __version__, errors
from trainworks.api.observing.logs import log_names
from trainworks.serve.access import Access
from trainworks.serve.guard import RequestGuard
from trainworks.serve.pages import pages, problem_page, sign_in_page
from trainworks.serve.rest import json_of_problem, rest
from trainworks.serve.site import Site

_FOLDER = Path(__file__).parent
_STYLES = (_FOLDER.parent / "report/templates/style.css", _FOLDER / "static/site.css")
_LOOK_EVERY_S = 1.0
_SIGN_OF_LIFE_S = 15.0
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


def create_app(site: Site, access: Access, *, port: int, is_encrypted: bool) -> FastAPI:
    """The application for the use cases of `site`; the cookie has `port` in its name. `is_encrypted`: browsers connect
    by TLS.
    """
    app = FastAPI(
        title="Trainworks",
        version=__version__,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(rest(site))
    app.include_router(pages(site))
    app.add_exception_handler(errors.TrainworksError, _answer_to_problem)
    app.add_exception_handler(RequestValidationError, _answer_to_invalid)
    app.add_exception_handler(HTTPException, _answer_to_unknown)
    app.add_middleware(
        RequestGuard, access=access, cookie=f"trainworks-{port}", is_encrypted=is_encrypted, refuse=_refuse
    )
    style = "\n".join(file.read_text(encoding="utf-8") for file in _STYLES)
    script = (_FOLDER / "static/live.js").read_text(encoding="utf-8")
    kept = {"Cache-Control": "max-age=600"}
    app.get("/static/site.css", include_in_schema=False)(lambda: Response(style, 200, kept, "text/css"))
    app.get("/static/live.js", include_in_schema=False)(lambda: Response(script, 200, kept, "text/javascript"))

    @app.get("/live", include_in_schema=False)
    async def live(
        run: Annotated[str | None, Query(max_length=200)] = None,
        log: Annotated[str | None, Query(max_length=20)] = None,
    ) -> Response:
        stamp = _stamp_of(site, run, log)
        before = await run_in_threadpool(stamp)  # a page that is fetched once the stream is open is no older
        return StreamingResponse(_changes(stamp, before), media_type="text/event-stream")

    return app


def _stamp_of(site: Site, run: str | None, log: str | None) -> Callable[[], object]:
    """A function whose value changes with a page; visitors of the same page share its values."""

    def compute() -> object:
        if run is None:
            return site.board.version()
        view = site.view(run)
        if log in log_names(view.run.run_dir):
            return (view.run.run_dir.logs / f"{log}.log").stat().st_size
        return view.stamp()

    return lambda: site.shared.get(("stamp", run, log), compute, age_s=_LOOK_EVERY_S / 2)


async def _changes(stamp: Callable[[], object], before: object) -> AsyncIterator[str]:
    """Server-sent events: one per change, and a comment now and then, by which a closed connection is noticed."""
    silence_s = 0.0
    yield "retry: 3000\n\n"
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        now = await run_in_threadpool(stamp)
        silence_s += _LOOK_EVERY_S
        if now != before:
            before, silence_s = now, 0.0
            yield "event: changed\ndata:\n\n"
        elif silence_s >= _SIGN_OF_LIFE_S:
            silence_s = 0.0
            yield ": still here\n\n"


def _wants_json(request: Request) -> bool:
    return request.url.path.startswith("/api/")


def _answer(request: Request, problem: errors.TrainworksError, status: int) -> Response:
    if _wants_json(request):
        return json_of_problem(problem, status)
    return problem_page(problem, status, getattr(request.state, "visitor", None))


async def _answer_to_problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, errors.TrainworksError)
    status = next(status for kind, status in _STATUS.items() if isinstance(problem, kind))
    return _answer(request, problem, status)


async def _answer_to_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    detail = error.errors()[0]
    place = ".".join(str(part) for part in detail["loc"])
    return _answer(request, errors.UsageError(str(detail["msg"]), place=place), 422)


async def _answer_to_unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer(request, errors.UsageError(str(error.detail)), error.status_code)


def _refuse(request: Request) -> Response:
    if _wants_json(request):
        return json_of_problem(errors.UsageError("the token is missing or wrong"), 401)
    return sign_in_page()


def serve_forever(app: FastAPI, listening: socket.socket, *, certificate: Path | None, key: Path | None) -> None:
    """Serve until a signal ends the process."""
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
