"""Streams of events: how many, how they end, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.types import Message

from tests.serve.conftest import ACCESS, VIEWER
from trainworks.errors import UnknownRunError
from trainworks.serve.access import Role, Visitor
from trainworks.serve.app import create_app
from trainworks.serve.site import Site
from trainworks.serve.streams import LiveStreams, TooManyStreamsError

TOKEN, ALICE, BOB = Visitor(Role.VIEWER), Visitor(Role.VIEWER, "alice"), Visitor(Role.VIEWER, "bob")


class Reader:
    """A browser that reads a stream until it leaves."""

    def __init__(self, answer: Callable[..., Awaitable[None]]) -> None:
        self.texts: asyncio.Queue[str] = asyncio.Queue()
        self._left = asyncio.Event()
        scope: dict[str, Any] = {"type": "http", "asgi": {"spec_version": "2.0"}}
        self._task = asyncio.ensure_future(answer(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if body := message.get("body"):
            self.texts.put_nowait(body.decode())

    async def leave(self) -> None:
        self._left.set()
        await self._task

    async def end(self) -> None:
        await self._task


def test_a_full_server_refuses_further_streams_until_one_is_closed() -> None:
    async def scene() -> None:
        streams = LiveStreams(most=2)
        readers = [Reader(await streams.open(TOKEN, "jobs", lambda: 0)) for _ in range(2)]
        with pytest.raises(TooManyStreamsError, match="2 pages are open") as refused:
            await streams.open(ALICE, "jobs", lambda: 0)
        assert refused.value.status == 503
        await readers[0].leave()
        await Reader(await streams.open(ALICE, "jobs", lambda: 0)).leave()
        await readers[1].leave()

    asyncio.run(scene())


def test_one_user_cannot_take_the_streams_of_all() -> None:
    async def scene() -> None:
        streams = LiveStreams(most=10, most_of_a_user=1)
        first = Reader(await streams.open(ALICE, "jobs", lambda: 0))
        with pytest.raises(TooManyStreamsError, match="alice has 1 pages open") as refused:
            await streams.open(ALICE, "run", lambda: 0)
        assert refused.value.status == 429
        await Reader(await streams.open(BOB, "jobs", lambda: 0)).leave()
        await first.leave()

    asyncio.run(scene())


def test_a_stream_that_could_not_open_holds_no_place() -> None:
    async def scene() -> None:
        streams = LiveStreams(most=1)

        def unknown() -> object:
            raise UnknownRunError("no run `x`")

        for _ in range(3):
            with pytest.raises(UnknownRunError):
                await streams.open(TOKEN, "x", unknown)
        await Reader(await streams.open(TOKEN, "jobs", lambda: 0)).leave()

    asyncio.run(scene())


def test_readers_of_one_page_share_its_looks_and_all_learn_of_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainworks.serve.streams.LOOK_EVERY_S", 0.0)

    async def scene() -> None:
        streams, looks = LiveStreams(), 0

        def stamp() -> int:
            nonlocal looks
            looks += 1
            return 0 if looks <= 3 else 1

        readers = [Reader(await streams.open(TOKEN, "jobs", stamp)) for _ in range(5)]
        for reader in readers:
            assert await reader.texts.get() == "retry: 3000\n\n"
            assert await reader.texts.get() == "event: changed\ndata:\n\n"
        assert 4 <= looks < 20, "each reader looked by itself"
        for reader in readers:
            await reader.leave()

    asyncio.run(scene())


def test_the_streams_of_a_deleted_run_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainworks.serve.streams.LOOK_EVERY_S", 0.0)

    async def scene() -> None:
        found = [1]

        def stamp() -> int:
            if not found:
                raise UnknownRunError("no run `x`")
            return found.pop()

        await Reader(await LiveStreams().open(TOKEN, "x", stamp)).end()

    asyncio.run(scene())


def test_the_answer_of_a_full_server_says_when_to_come_back(tmp_path: Path) -> None:
    app = create_app(Site(tmp_path), ACCESS, port=1, is_encrypted=False, most_streams=0)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.get("/live", headers={"Authorization": f"Bearer {VIEWER}"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
    assert answer.json()["hint"]
