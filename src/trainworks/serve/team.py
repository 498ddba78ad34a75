"""A shared page: what a member asks is passed to the server that this member runs on the same machine.

So each job is submitted, stopped and resumed by its own user, who also reads what this user may read and no more. The
shared server has no rights over its members: it stores no token of theirs, checks none, and starts nothing. A member's
server checks the token; the shared one makes sure that only a server of the user whom the token names gets it.

A member's server can be any program, and its pages have the origin of all others. So none of its scripts and styles
runs, none of its headers arrives but those of `_PASSED_BACK`, and no browser keeps what it sent: `/static/` is the
shared server's own, and the policy of every answer names that folder alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress

import h11
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainworks.errors import NotOwnerError, TrainworksError, UnreachableError, UsageError
from trainworks.serve.access import Role, TeamAccess
from trainworks.serve.team_folder import MemberToken, TeamFolder

ROLE_HEADER = "trainworks-role"
"""Role of a member on the shared page, for the member's server, which gives its visitor no more than that."""
_ANSWER_S = 240.0
"""Longest time until an answer begins: the first page of a run of a million steps takes seconds."""
_CHUNK_BYTES = 1 << 16
_PASSED_ON = ("accept", "content-type", "sec-fetch-site")
"""Headers of a request that a member's server gets. The origin is not among them: it is checked, and `Host` is new."""
_PASSED_BACK = (b"content-type", b"content-length", b"location", b"retry-after")
"""Headers of its answer that a browser gets, besides the cookies of `_COOKIES`; a location is of this site."""
_COOKIES = ("trainworks-columns",)
"""Cookies of pages, both ways; the one with the token is not among them."""
_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]+)?")


class MemberServers:
    """The servers of the members: who they are, and where they listen, says `access`. `answer` makes the page, or the
    JSON, of a problem.
    """

    def __init__(self, access: TeamAccess, answer: Callable[[Request, TrainworksError], Response]) -> None:
        self._access = access
        self._folder = TeamFolder(access.folder)
        self._answer = answer

    @staticmethod
    def member(tokens: Iterable[str]) -> MemberToken | None:
        """The first of these tokens that is one of a member's server."""
        return next(filter(None, map(MemberToken.parse, tokens)), None)

    def passing_on(self, member: MemberToken) -> ASGIApp:
        """An application that passes a request to the server of a member, and its answer back as it comes."""

        async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            body = await request.body()
            try:
                reader, writer = await self._connected(member)
                try:
                    await _while_there(receive, self._exchange(request, body, member, reader, writer, send))
                finally:
                    writer.close()
            except TrainworksError as problem:
                await self._answer(request, problem)(scope, receive, send)

        return pass_on

    async def _connected(self, member: MemberToken) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._access.role_of(member.uid) is None:
            raise NotOwnerError(
                f"user {member.uid} is not a member of this page",
                hint="let its administrator add the user to `team.members` in the access file",
            )
        return await asyncio.open_unix_connection(sock=self._folder.connect(member.uid))

    async def _exchange(
        self,
        request: Request,
        body: bytes,
        member: MemberToken,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        send: Send,
    ) -> None:
        """Send the request, and pass the answer on.

        Raises:
            UsageError: the request has what HTTP/1.1 has no form for.
            UnreachableError: the connection ended before an answer began, or none began in time.
        """
        wire = h11.Connection(h11.CLIENT)
        try:
            for event in (self._request(request, body, member), h11.Data(data=body), h11.EndOfMessage()):
                writer.write(wire.send(event) or b"")
        except h11.LocalProtocolError as error:
            raise UsageError(f"this request cannot be passed on: {error}") from None
        try:
            async with asyncio.timeout(_ANSWER_S):
                start = await _next_event(wire, reader)
            assert isinstance(start, h11.Response)
        except (OSError, TimeoutError, h11.RemoteProtocolError):
            problem = f"the server of user {member.uid} does not answer"
            raise UnreachableError(problem, hint=f"start it anew: {self._folder.command}") from None
        await send(_start(start))
        with suppress(OSError, h11.RemoteProtocolError):  # it was killed: the reader sees that the answer is cut
            while isinstance(part := await _next_event(wire, reader), h11.Data):
                await send({"type": "http.response.body", "body": bytes(part.data), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _request(self, request: Request, body: bytes, member: MemberToken) -> h11.Request:
        role = self._access.role_of(member.uid) or Role.VIEWER
        query = request.scope["query_string"]
        cookies = "; ".join(f"{name}={request.cookies[name]}" for name in _COOKIES if name in request.cookies)
        headers = {name: value for name in _PASSED_ON if (value := request.headers.get(name)) is not None}
        headers |= {"cookie": cookies} if cookies else {}
        headers |= {"host": "localhost", "connection": "close", "content-length": str(len(body))}
        headers |= {"authorization": f"Bearer {member.secret}", ROLE_HEADER: role.name}
        return h11.Request(
            method=request.method,
            target=request.scope["raw_path"] + (b"?" + query if query else b""),
            headers=[(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()],
        )


def content_policy(shared_host: str | None) -> str:
    """Content security policy of every answer. `shared_host` is the `Host` of a request to a shared page, where scripts
    and styles come from `/static/` alone; None for a server of one user, whose whole site is its own.

    >>> content_policy("train.example:8765").split("; ")[1:3]
    ['style-src train.example:8765/static/', 'script-src train.example:8765/static/']
    >>> content_policy("a.example; script-src *").split("; ")[2]
    "script-src 'none'"
    """
    static = "'self'"
    if shared_host is not None:
        static = f"{shared_host}/static/" if _HOST.fullmatch(shared_host) else "'none'"
    return (
        f"default-src 'none'; style-src {static}; script-src {static}; connect-src 'self'; img-src 'self' data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def _start(response: h11.Response) -> Message:
    headers = []
    for name, value in response.headers:
        is_cookie = name == b"set-cookie" and value.partition(b"=")[0].decode("latin-1") in _COOKIES
        leads_away = name == b"location" and (value[:1] != b"/" or value[1:2] in b"/\\")
        if is_cookie or (name in _PASSED_BACK and not leads_away):
            headers.append((name, value))
    return {"type": "http.response.start", "status": response.status_code, "headers": headers}


async def _next_event(wire: h11.Connection, reader: asyncio.StreamReader) -> h11.Event:
    """The next part of an answer, without those that only announce one."""
    while isinstance(event := wire.next_event(), h11.InformationalResponse) or event is h11.NEED_DATA:
        if event is h11.NEED_DATA:
            wire.receive_data(await reader.read(_CHUNK_BYTES))
    assert isinstance(event, h11.Event)
    return event


async def _while_there(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Work until it is done, or the reader has left."""
    task = asyncio.create_task(work)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        await task
    except asyncio.CancelledError:
        if not watching.done():  # the server ends
            raise
    finally:
        watching.cancel()
