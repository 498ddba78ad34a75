"""The frame of every page: documents of the report in the templates of the site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, Response

from trainworks.errors import TrainworksError
from trainworks.report.rendering.document import Document, Preformatted, Section
from trainworks.report.rendering.page import page_environment
from trainworks.serve.access import Role, Visitor
from trainworks.serve.assets import asset_url

_ENVIRONMENT = page_environment("serve/templates")
_ENVIRONMENT.globals["asset"] = asset_url


def render(document: Document, template: str, visitor: Visitor | None, **context: Any) -> str:
    """A document in the frame of the site, or in a template that extends it."""
    shown = {"document": document, "sections": document.shown("page"), "visitor": visitor}
    shown |= {"may_submit": visitor is not None and visitor.role >= Role.SUBMITTER}
    shown |= {"live": "", "back": "", "has_charts": False}
    return _ENVIRONMENT.get_template(template).render(**shown | context)


def problem_page(problem: TrainworksError, status: int, visitor: Visitor | None) -> Response:
    """The answer to a request that failed."""
    document = Document("This did not work", "error", [Section("", [Preformatted(problem.render())])])
    return HTMLResponse(render(document, "site.html", visitor), status)


def sign_in_page(join: str, status: int = 401) -> Response:
    """The form for a token; `join` is the command with which a member of a shared page gets one, empty elsewhere."""
    return HTMLResponse(render(Document("Sign in", "trainworks", []), "sign_in.html", None, join=join), status)


async def _form(request: Request) -> dict[str, str]:
    """Fields of a form that was sent, with the line ends of a file: a browser sends CR LF."""
    fields = parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True)
    return {name: text.replace("\r\n", "\n") for name, text in fields}


FormOf = Annotated[Mapping[str, str], Depends(_form)]
"""Fields of the form of a request, as an argument of a route."""
