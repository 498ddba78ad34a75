"""Style sheets and scripts: read once, compressed once, and kept by browsers until their content changes."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

_FOLDER = Path(__file__).parent / "static"
_STYLE = _FOLDER.parent.parent / "report/templates/style.css"
_FILES = {
    "site.css": (_STYLE, _FOLDER / "site.css"),
    "live.js": (_FOLDER / "live.js",),
    "uplot.css": (_FOLDER / "uplot/uPlot.min.css",),
    "uplot.js": (_FOLDER / "uplot/uPlot.iife.min.js",),
    "charts.js": (_FOLDER / "charts.js",),
}
"""Name in the address -> files whose texts it joins. uPlot 1.6.32 (MIT) draws curves: 22 kB compressed, without
`eval` and inline styles, which the content security policy of every answer forbids."""
_A_YEAR = "public, max-age=31536000, immutable"
_TEN_MINUTES = "max-age=600"


class Asset:
    """One file as browsers get it."""

    def __init__(self, name: str) -> None:
        self.body = "\n".join(file.read_text(encoding="utf-8") for file in _FILES[name]).encode()
        self.packed = gzip.compress(self.body, 9, mtime=0)
        self.version = hashlib.sha256(self.body).hexdigest()[:12]
        self.media_type = "text/css" if name.endswith(".css") else "text/javascript"


@cache
def asset(name: str) -> Asset:
    """The asset of that name.

    Raises:
        KeyError: no such asset.
    """
    return Asset(name)


def asset_url(name: str) -> str:
    """Address of an asset, which changes with its content."""
    return f"/static/{name}?v={asset(name).version}"


def assets() -> APIRouter:
    """The route of all assets."""
    router = APIRouter(include_in_schema=False)

    @router.get("/static/{name}")
    def send(request: Request, name: str) -> Response:
        if name not in _FILES:
            raise HTTPException(404)
        found = asset(name)
        kept = _A_YEAR if request.query_params.get("v") == found.version else _TEN_MINUTES
        headers = {"Cache-Control": kept, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(found.packed, 200, headers | {"Content-Encoding": "gzip"}, found.media_type)
        return Response(found.body, 200, headers, found.media_type)

    return router
