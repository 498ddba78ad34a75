"""What the backend makes of an API server's answers, and of none."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

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

Answer = tuple[int, Any]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., KubernetesClient]]:
    """A function that makes a client of a server that answers so, one question after the other."""
    servers: list[HTTPServer] = []

    def start(*answers: Answer) -> KubernetesClient:
        rest = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = rest.pop(0)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode() if isinstance(body, str) else json.dumps(body).encode())

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
    return KubernetesClient(configuration=str(folder / "config"))


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
