"""Streams of server-sent events: open pages learn that what they show has changed.

Pages of the same run, log or list share one look per second, however many are open. The number of open streams is
bounded, so that forgotten tabs cannot use up the sockets and the memory of the server.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable

from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from trainworks.errors import TrainworksError
from trainworks.serve.access import Visitor

MOST_STREAMS = 300
"""Open streams of all visitors: a page keeps one."""
MOST_STREAMS_OF_A_USER = 30
"""Open streams of one user whom the proxy names; the server cannot distinguish the holders of a token."""
LOOK_EVERY_S = 1.0
_SIGN_OF_LIFE_S = 15.0


class TooManyStreamsError(TrainworksError):
    """The limit of open streams is reached, for one user or for all."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, hint="close pages, or reload this one now and then")
        self.status = status


class LiveStreams:
    """All open streams of a server; used from its event loop alone."""

    def __init__(self, most: int = MOST_STREAMS, most_of_a_user: int = MOST_STREAMS_OF_A_USER) -> None:
        self._most, self._most_of_a_user = most, most_of_a_user
        self._subjects: dict[Hashable, _Subject] = {}
        self._num_open: Counter[str | None] = Counter()

    async def open(self, visitor: Visitor, key: Hashable, stamp: Callable[[], object]) -> StreamingResponse:
        """The stream of a page: an event whenever the value of `stamp` changes.

        Args:
            visitor: the reader of the page.
            key: names what the page shows; streams with the same key share the stamp of the first one.
            stamp: looks at what the page shows; called in a thread, once a second for all streams with this key.

        Raises:
            TooManyStreamsError: the limit of the user (429) or of the server (503) is reached.
            UnknownRunError: `stamp` finds no such run.
        """
        self._take_place(visitor.user)
        try:
            subject = self._subjects.get(key)
            if subject is None:
                before = await run_in_threadpool(stamp)  # a page that is fetched once the stream is open is no older
                subject = self._subjects.setdefault(key, _Subject(stamp, before))
            listener = subject.join()
        except BaseException:
            self._num_open[visitor.user] -= 1
            raise

        def leave() -> None:
            self._num_open[visitor.user] -= 1
            if subject.leave(listener) and self._subjects.get(key) is subject:
                del self._subjects[key]

        return _Stream(_events(subject, listener), leave)

    def _take_place(self, user: str | None) -> None:
        if self._num_open.total() >= self._most:
            raise TooManyStreamsError(f"{self._most} pages are open, the most that this server keeps up to date", 503)
        if user is not None and self._num_open[user] >= self._most_of_a_user:
            raise TooManyStreamsError(f"{user} has {self._most_of_a_user} pages open, the most of one user", 429)
        self._num_open[user] += 1


class _Subject:
    """What pages of one kind show, its last stamp, and the streams that follow it."""

    def __init__(self, stamp: Callable[[], object], before: object) -> None:
        self._stamp, self._before = stamp, before
        self._listeners: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self.is_gone = False

    def join(self) -> asyncio.Event:
        listener = asyncio.Event()
        self._listeners.add(listener)
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        return listener

    def leave(self, listener: asyncio.Event) -> bool:
        """Whether the last listener has left."""
        self._listeners.discard(listener)
        if not self._listeners and self._task is not None:
            self._task.cancel()
        return not self._listeners

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                now = await run_in_threadpool(self._stamp)
            except (TrainworksError, OSError):  # a deleted run: the browser connects again, and gets 404
                self.is_gone = True
            if self.is_gone or now != self._before:
                self._before = None if self.is_gone else now
                for listener in self._listeners:
                    listener.set()
            if self.is_gone:
                return


class _Stream(StreamingResponse):
    """A stream that gives its place back however it ends, also if the reader is gone before it began."""

    def __init__(self, events: AsyncIterator[str], leave: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


async def _events(subject: _Subject, listener: asyncio.Event) -> AsyncIterator[str]:
    """An event per change, and a comment now and then, by which a closed connection is noticed."""
    yield "retry: 3000\n\n"
    while not subject.is_gone:
        try:
            async with asyncio.timeout(_SIGN_OF_LIFE_S):
                await listener.wait()
        except TimeoutError:
            yield ": still here\n\n"
            continue
        listener.clear()
        yield "event: changed\ndata:\n\n"
