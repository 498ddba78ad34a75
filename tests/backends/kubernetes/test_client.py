"""What the backend makes of an API server's answers, and of none."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import LAUNCH_AT, FakeClock
from trainworks.backends.kubernetes.client import (
    Conflict,
    KubernetesClient,
    KubernetesRefusedError,
    NotFound,
    NotServed,
)
from trainworks.errors import EnvironmentProblem, MissingExtraError, UnreachableError, UsageError
from trainworks.host import process
from trainworks.host.network import listen

Answer = tuple[Any, ...]
"""Status, body, and the value of `Retry-After` where there is one. A body of bytes is cut before its last one."""

asked: list[str] = []
"""Methods of the requests to the last server."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., KubernetesClient]]:
    """A function that makes a client of a server that answers so, one question after the other."""
    servers: list[HTTPServer] = []

    def start(*answers: Answer) -> KubernetesClient:
        rest = list(answers)
        asked.clear()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body, *after = rest.pop(0) if len(rest) > 1 else rest[0]
                asked.append(self.command)
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(status)
                for seconds in after:
                    self.send_header("Retry-After", seconds)
                if is_cut := isinstance(body, bytes):
                    self.send_header("Content-Length", str(len(body) + 1))
                self.end_headers()
                said = body if is_cut else body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.wfile.write(said)

            do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815, as http.server calls them

            def log_message(self, *arguments: Any) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return client_of(tmp_path, servers[-1].server_address[1])

    yield start
    for one in servers:
        one.shutdown()
        one.server_close()


def client_of(folder: Path, port: int) -> KubernetesClient:
    names = {"cluster": "c", "user": "u"}
    configuration = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "x"}}],
        "contexts": [{"name": "c", "context": names}],
        "current-context": "c",
    }
    (folder / "config").write_text(json.dumps(configuration), encoding="utf-8")
    return KubernetesClient(configuration=str(folder / "config"), clock=FakeClock())


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ((404, {"message": 'jobsets "x" not found'}), NotFound, 'jobsets "x" not found'),
        ((404, "404 page not found\n"), NotServed, "does not serve `/apis/x`"),
        ((409, {"message": "already exists"}), Conflict, "already exists"),
        ((403, {"message": "ada cannot list"}), KubernetesRefusedError, "ada cannot list"),
        ((422, {"message": "spec: Required"}), KubernetesRefusedError, "spec: Required"),
        ((401, {"message": "Unauthorized"}), EnvironmentProblem, "does not accept your credentials"),
        ((503, "upstream is gone"), UnreachableError, "does not answer: 503"),
        ((429, {"message": "too many requests"}), UnreachableError, "too many requests"),
    ],
)
def test_an_answer_means_one_thing(
    server: Callable[..., KubernetesClient], answer: Answer, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as raised:
        server(answer).get("/apis/x")
    assert raised.type is kind


CUT = (200, b'{"items": [1]')


def test_an_answer_that_is_cut_is_asked_for_again(server: Callable[..., KubernetesClient]) -> None:
    assert (server(CUT, CUT, (200, {"items": [1]})).list("/api/v1/pods"), asked) == ([1], ["GET"] * 3)


def test_a_cut_answer_to_a_request_that_must_not_be_repeated_is_none(server: Callable[..., KubernetesClient]) -> None:
    with pytest.raises(UnreachableError, match=r"the API server does not answer: .*IncompleteRead"):
        server(CUT).create("/api/v1/pods", {})
    assert asked == ["POST"]


BUSY = (503, "upstream is gone")


@pytest.mark.parametrize("answer", [(429, {"message": "too many"}, "7"), (500, ""), (502, ""), BUSY, (504, "")])
def test_a_busy_server_delays_a_request_and_does_not_fail_it(
    server: Callable[..., KubernetesClient], answer: Answer
) -> None:
    client = server(answer, answer, (200, {"items": [1]}))
    assert (client.list("/api/v1/pods"), asked) == ([1], ["GET"] * 3)
    waited_s = client._clock.now() - LAUNCH_AT
    assert waited_s == (14.0 if answer[0] == 429 else 1.5)


def test_a_server_that_stays_busy_ends_the_patience_with_one_message(server: Callable[..., KubernetesClient]) -> None:
    client = server(BUSY)
    with pytest.raises(UnreachableError, match=r"does not answer: 503 .*\(asked 7 times in 24 s\)"):
        client.get("/api/v1/pods")
    assert len(asked) == 7
    with pytest.raises(UnreachableError, match=r"too many$"):
        server((429, {"message": "too many"}, "3600")).get("/api/v1/pods")
    assert asked == ["GET"]


def test_what_could_be_done_twice_is_asked_again_only_if_the_server_has_not_read_it(
    server: Callable[..., KubernetesClient],
) -> None:
    client = server((429, {"message": "too many"}, "1"), (201, {"kind": "JobSet"}))
    assert (client.create("/jobsets", {}), asked) == ({"kind": "JobSet"}, ["POST", "POST"])
    with pytest.raises(UnreachableError, match="does not answer: 503"):
        server(BUSY, (201, {})).create("/jobsets", {})
    assert asked == ["POST"]
    server(BUSY, (200, {})).patch("/jobsets/x", {})
    server(BUSY, (404, {"message": "not found"})).delete("/jobsets/x")  # the first request has done it
    assert asked == ["DELETE", "DELETE"]
    with pytest.raises(NotFound):
        server((404, {"message": "not found"})).delete("/jobsets/x")


def test_a_kind_that_is_not_served_says_nothing_of_its_objects() -> None:
    assert issubclass(NotServed, UnreachableError) and not issubclass(NotServed, UsageError)


def test_a_server_that_is_away(tmp_path: Path) -> None:
    with listen() as free:
        port = free.getsockname()[1]
    with pytest.raises(UnreachableError, match="the API server does not answer") as silent:
        client_of(tmp_path, port).get("/api")
    assert silent.value.hint == "check that `kubectl get nodes` works"


def test_a_server_that_hangs_is_left_within_the_time_of_its_client(tmp_path: Path) -> None:
    with listen() as hanging:  # it takes the connection and says nothing
        client = client_of(tmp_path, hanging.getsockname()[1]).within(0.2)
        with pytest.raises(UnreachableError, match=r"timed out.*timeout=0\.2"):
            client.get("/apis/x")


def test_all_pages_of_a_list_are_read(server: Callable[..., KubernetesClient]) -> None:
    client = server((200, {"items": [1, 2], "metadata": {"continue": "more"}}), (200, {"items": [3], "metadata": {}}))
    assert client.list("/api/v1/pods") == [1, 2, 3]


def test_a_log_is_read_line_by_line(server: Callable[..., KubernetesClient]) -> None:
    assert list(server((200, "one\n\ntwo\rthree")).lines("/log", {})) == ["one", "", "two\rthree"]


@pytest.mark.parametrize("text", [None, "", "contexts: 7", "{}"])
def test_without_a_configuration_the_hint_names_kubeconfig(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config").write_text(text)
    with pytest.raises(EnvironmentProblem, match="cannot load the configuration of a Kubernetes cluster") as missing:
        KubernetesClient(configuration=str(tmp_path / "config")).get("/api")
    assert "KUBECONFIG" in (missing.value.hint or "")


def test_a_context_that_there_is_not(tmp_path: Path) -> None:
    client_of(tmp_path, 1)
    with pytest.raises(EnvironmentProblem, match=r"cannot load the configuration of a Kubernetes cluster.*far-away"):
        KubernetesClient("far-away", str(tmp_path / "config")).get("/api")


def test_without_the_extra_the_hint_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "kubernetes.config", None)
    with pytest.raises(MissingExtraError) as missing:
        KubernetesClient().get("/api")
    assert missing.value.hint == "pip install 'trainworks[kubernetes]'"


def test_nothing_is_imported_before_the_first_question() -> None:
    program = "import sys, trainworks.backends.kubernetes.backend; sys.exit('kubernetes' in sys.modules)"
    assert process.run(process.python_program(program)).exit_code == 0
