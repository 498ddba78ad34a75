"""A real server on a free port, over a job store and runs of its own."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.report.conftest import RunWriter, make_plan
from tests.serve.browser import CHROMIUM
from trainworks.record.step_time import ExpectedStep
from trainworks.serve.access import Access
from trainworks.serve.app import create_app
from trainworks.serve.site import Site

VIEWER, SUBMITTER, ADMIN, PROXY = (
    "viewer-token-0123456",
    "submitter-token-0123",
    "admin-token-01234567",
    "proxy-token-01234567",
)
ACCESS = Access.model_validate(
    {
        "tokens": {"viewer": VIEWER, "submitter": SUBMITTER, "admin": ADMIN},
        "hosts": ["train.example"],
        "proxy": {"token": PROXY, "admins": ["root-of-the-lab"], "submitters": ["alice"], "viewers": ["bob"]},
    }
)


@dataclass
class Answer:
    """What the server answered."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Server:
    """A running server, and requests to it; paths are sent as they are written."""

    port: int
    runs: Path
    cookies: dict[str, str] = field(default_factory=dict)

    def ask(
        self, path: str, *, method: str = "GET", token: str | None = ADMIN, body: str | bytes = "", **headers: str
    ) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent.setdefault("Authorization", f"Bearer {token}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=240)
        connection.putrequest(method, path, skip_accept_encoding=True, skip_host="Host" in sent)
        data = body.encode() if isinstance(body, str) else body
        for name, value in (sent | ({"Content-Length": str(len(data))} if method == "POST" else {})).items():
            connection.putheader(name, value)
        connection.endheaders(data or None)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)

    def post(self, path: str, content: Any = None, **keys: Any) -> Answer:
        body = "" if content is None else json.dumps(content)
        return self.ask(path, method="POST", body=body, Content_Type="application/json", **keys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder of the server, whose queue is its own."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRAINWORKS_DATA", str(folder / "data"))
        patched.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    (folder / "runs").mkdir()
    with serving(Site(folder / "runs")) as port:
        yield Server(port, folder / "runs")


class serving:  # noqa: N801, reads as a statement
    """Serve while the block lasts."""

    def __init__(self, site: Site, access: Access = ACCESS) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        app = create_app(site, access, port=self.port, is_encrypted=False)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self.port

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(240)
        self._socket.close()


@pytest.fixture(scope="module")
def trained(server: Server) -> str:
    """Id of a run that trained, failed, trained again and finished; its plan has an interval."""
    expected = ExpectedStep(low_s=0.09, high_s=0.14, by_rate_s={}, learned_from=3)
    writer = RunWriter(server.runs, make_plan(expected=expected), None)
    writer.launch().steps(120).checkpoint().steps(30)
    writer.wait(1).fail(message="<b>SIGKILL</b>").wait(2).attempt(from_step=120).steps(180).checkpoint().finish()
    writer.run_dir.rank_log(0).write_text("step 1\n\x1b[31mred\x1b[0m <script>alert(1)</script>\nstep 3: NaN\n")
    return writer.run_dir.run_id


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Debian's Chromium, driven by playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=240_000)
        yield browser
        browser.close()
