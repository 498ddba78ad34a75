"""A proxy in front of an S3-compatible store, which can be switched to fail every tenth request."""

from __future__ import annotations

import threading
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import urlsplit

_EVERY = 10
_TIMEOUT_S = 60.0
_OF_THE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length"}
_SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
"""Answer of a store that is overloaded; clients try again."""


class FailingStore:
    """Passes requests on to the store at `http://host:port`, and answers every tenth with 503 while it fails.

    Requests keep the `Host` that their client signed, so that a store that checks signatures accepts them.
    """

    def __init__(self, address: str) -> None:
        self._store = urlsplit(address)
        self._lock = threading.Lock()
        self._is_failing = False
        self._requests = 0
        self.failed = 0
        """Requests that were answered with 503."""
        outer = self

        class Handler(_Handler):
            proxy = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        """Address of the proxy."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FailingStore:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fail(self) -> None:
        """Fail every tenth request from now on."""
        self._is_failing = True

    def recover(self) -> None:
        """Pass on every request again."""
        self._is_failing = False

    def fails_this(self) -> bool:
        """Count a request; True if it is to fail."""
        with self._lock:
            self._requests += self._is_failing
            fails = self._is_failing and self._requests % _EVERY == 0
            self.failed += fails
        return fails

    def connect(self) -> HTTPConnection:
        """Open a connection to the store."""
        return HTTPConnection(self._store.hostname or "", self._store.port, timeout=_TIMEOUT_S)


class _Handler(BaseHTTPRequestHandler):
    proxy: FailingStore
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.proxy.fails_this():
            self._answer(503, [("Content-Type", "application/xml")], _SLOW_DOWN)
            return
        store = self.proxy.connect()
        try:
            store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _OF_THE_CONNECTION:
                    store.putheader(name, value)
            store.putheader("Content-Length", str(len(body)))
            store.endheaders(body)
            answer = store.getresponse()
            content, size = answer.read(), answer.headers.get("Content-Length")
            headers = [each for each in answer.headers.items() if each[0].lower() not in _OF_THE_CONNECTION]
            self._answer(answer.status, headers, content, size if self.command == "HEAD" else None)
        except (OSError, HTTPException) as error:
            self._answer(502, [], str(error).encode())
        finally:
            store.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815, the names are those of http.server

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, size: str | None = None) -> None:
        """Send an answer; that of a HEAD request has the size of the object, and no content."""
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        has_content = status not in (204, 304)
        if has_content:
            self.send_header("Content-Length", size or str(len(content)))
        self.end_headers()
        if has_content and self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, the name is that of http.server
        """Requests are not logged."""
