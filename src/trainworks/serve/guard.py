"""What every request passes: host, size, origin and token; and the headers that every answer gets."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Collection, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from fastapi import Depends
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainworks.serve.access import Access, Visitor
from trainworks.serve.team import ROLE_HEADER, MemberServers, content_policy

MOST_BODY_BYTES = 1 << 20
_READS = ("GET", "HEAD", "OPTIONS")
_ASSETS = "/static/"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class _TooLargeError(Exception):
    pass


class RequestGuard:
    """ASGI middleware; `request.state.visitor` is the visitor afterwards.

    `cookie` is the name of the one with the token; ports of a host share cookies, so it has the port in it.
    `is_encrypted`: browsers connect by TLS. `hosts` are the names by which browsers may reach the server, besides
    `localhost` and every address: a page of another site whose name was pointed at this machine has another name.
    `refuse` makes the answer to a request without a valid token. `team` answers the requests of members.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        cookie: str,
        is_encrypted: bool,
        hosts: Collection[str],
        refuse: Callable[[Request], Response],
        team: MemberServers | None = None,
    ) -> None:
        self._app = app
        self._access = access
        self._cookie = cookie
        self._is_encrypted = is_encrypted
        self._hosts = {"localhost", *(name.lower() for name in hosts)}
        self._refuse = refuse
        self._team = team

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        host = Headers(scope=scope).get("host", "") if self._team is not None else None
        send = _with_headers(send, {**_HEADERS, "Content-Security-Policy": content_policy(host)})
        receive = _limited(receive)
        try:
            answering = self._refusal(scope) or await self._answering(Request(scope, receive))
            await answering(scope, receive, send)
        except _TooLargeError:
            await PlainTextResponse("the request is too large\n", 413)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not is_host_of(headers, self._hosts):
            known = ", ".join(sorted(self._hosts))
            text = f"this server is not the host of the request: it is {known}, or an address\n"
            return PlainTextResponse(f"{text}hint: add the name to `hosts` in the access file\n", 421)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MOST_BODY_BYTES:
            return PlainTextResponse("the request is too large\n", 413)
        if scope["method"] not in _READS and not is_same_origin(headers):
            return PlainTextResponse("the request comes from a page of another site\n", 403)
        return None

    async def _answering(self, request: Request) -> ASGIApp:
        """What answers a request: the application, a member's server, a redirect or a refusal."""
        path = request.scope["path"]
        if path == "/login":
            return await self._sign_in(request) if request.method == "POST" else self._app
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        bearer = token.strip() if kind.lower() == "bearer" else ""
        cookie = _cookies(request.headers).get(self._cookie, "").strip()
        if path.startswith(_ASSETS) and request.method in _READS:
            return self._app
        is_signing_in = "token" in request.query_params and request.method == "GET"
        if self._team is not None and not is_signing_in and (member := self._team.member((cookie, bearer))):
            return self._team.passing_on(member)
        visitor = self._visitor(request.headers, bearer or cookie)
        request.state.visitor = visitor
        if is_signing_in:
            return self._signed_in(request, request.query_params["token"])
        return self._app if visitor is not None else self._refuse(request)

    def _visitor(self, headers: Headers, token: str) -> Visitor | None:
        proxy = self._access.proxy
        users = headers.getlist(proxy.header) if proxy else []
        visitor = self._access.visitor(token, users[0] if len(users) == 1 else None)
        return visitor.at_most(headers.getlist(ROLE_HEADER)) if visitor else None

    async def _sign_in(self, request: Request) -> Response:
        fields = dict(parse_qsl((await request.body()).decode("utf-8", "replace")))
        return self._signed_in(request, fields.get("token", "").strip())

    def _signed_in(self, request: Request, token: str) -> Response:
        """Keep a valid token in a cookie, and take it out of the address, which browsers remember and show.

        That of a member is checked by the member's server. A page of another site cannot sign its reader in to a shared
        page, as a member of its choice.
        """
        is_of_member = self._team is not None and self._team.member([token]) is not None
        if not is_of_member and self._access.visitor(token, None) is None:
            return self._refuse(request)
        if self._team is not None and not is_same_origin(request.headers):
            return self._refuse(request)
        rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        path = "/" if request.url.path == "/login" else quote("/" + request.url.path.lstrip("/"))
        answer = RedirectResponse(f"{path}?{urlencode(rest)}" if rest else path, 303)
        answer.set_cookie(self._cookie, token, httponly=True, samesite="lax", secure=self._is_encrypted, path="/")
        return answer


def is_host_of(headers: Headers, names: Collection[str]) -> bool:
    """Whether a request is for one of these names, or for an address: no other site can have an address as its name.

    >>> is_host_of(Headers({"host": "[::1]:8765"}), ["localhost"])
    True
    >>> is_host_of(Headers({"host": "rebound.example:8765"}), ["localhost"])
    False
    """
    given = headers.getlist("host")
    try:
        name = urlsplit(f"//{given[0]}").hostname if len(given) == 1 else None
    except ValueError:
        return False
    if name is None or name in names:
        return name is not None
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_same_origin(headers: Headers) -> bool:
    """Whether a page of this server, or no page at all, sent a request that changes something.

    Browsers say so in `Sec-Fetch-Site`; older ones send `Origin`, whose host must then be that of the request. A
    request with neither header comes from a program.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


def _cookies(headers: Headers) -> dict[str, str]:
    try:
        return {name: one.value for name, one in SimpleCookie(headers.get("cookie", "")).items()}
    except CookieError:
        return {}


def _limited(receive: Receive) -> Receive:
    num_bytes = 0

    async def limited() -> Message:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > MOST_BODY_BYTES:
            raise _TooLargeError
        return message

    return limited


def _with_headers(send: Send, added: Mapping[str, str]) -> Callable[[Message], Awaitable[None]]:
    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in added.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return answer


async def visitor_of(request: Request) -> Visitor:
    """The visitor whom the guard let in; asynchronous, so that no thread has to start for it."""
    visitor: Any = request.state.visitor
    assert isinstance(visitor, Visitor)
    return visitor


VisitorOf = Annotated[Visitor, Depends(visitor_of)]
"""The visitor, as an argument of a route."""
