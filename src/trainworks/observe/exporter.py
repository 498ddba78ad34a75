"""Give metrics to Prometheus: over HTTP, or as a file for node_exporter's textfile collector.

The server is that of the standard library: a scrape is one GET every few seconds, and the exporter runs on every node
without another package.
"""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trainworks.errors import ArgumentError, EnvironmentProblem
from trainworks.host.listening import SHORTEST_TOKEN, ListenAddress, is_token, open_socket, read_secret
from trainworks.observe.metrics.fabric import FABRIC_FAMILIES
from trainworks.observe.metrics.family import MetricFamily, MetricSample
from trainworks.observe.metrics.gpus import GPU_FAMILIES
from trainworks.observe.metrics.queue import QUEUE_FAMILIES
from trainworks.observe.metrics.runs import RUN_FAMILIES

HEALTH_CODES = {"ok": 0, "warning": 1, "failed": 2, "unknown": 3}
"""Verdict -> exit code of a Nagios plugin; a check that does not apply to the node has no sample."""
HEALTH_STATUS = MetricFamily(
    "trainworks_health_check_status",
    "Verdict of a health check: 0 ok, 1 warning, 2 failed, 3 unknown.",
    labels=("check",),
    source="`trainworks health`",
)
HEALTH_AT = MetricFamily(
    "trainworks_health_timestamp_seconds", "Time of the last health checks.", source="`trainworks health`"
)
HEALTH_FAMILIES = (HEALTH_STATUS, HEALTH_AT)


def health_samples(verdicts: Mapping[str, str], checked_at: float) -> Iterator[MetricSample]:
    """Verdicts by check; those that do not apply are left out."""
    yield HEALTH_AT.sample(checked_at)
    for check, verdict in verdicts.items():
        if verdict in HEALTH_CODES:
            yield HEALTH_STATUS.sample(HEALTH_CODES[verdict], check)


COLLECTOR_SUCCESS = MetricFamily(
    "trainworks_exporter_collector_success",
    "1 if the collector could read everything.",
    labels=("collector",),
    source="the exporter",
)
COLLECTOR_SECONDS = MetricFamily(
    "trainworks_exporter_collector_duration_seconds",
    "Time that the collector took.",
    labels=("collector",),
    source="the exporter",
)
RUNS_UNREADABLE = MetricFamily(
    "trainworks_exporter_runs_unreadable", "Runs whose record could not be read.", source="the exporter"
)
RUNS_LEFT_OUT = MetricFamily(
    "trainworks_exporter_runs_left_out", "Running runs beyond the 200 newest.", source="the exporter"
)
FAMILIES = {
    "Runs": RUN_FAMILIES,
    "Queue": QUEUE_FAMILIES,
    "GPUs": GPU_FAMILIES,
    "Network": FABRIC_FAMILIES,
    "Health checks": HEALTH_FAMILIES,
    "The exporter": (COLLECTOR_SUCCESS, COLLECTOR_SECONDS, RUNS_UNREADABLE, RUNS_LEFT_OUT),
}
"""Families by subject."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SILENCE_S = 10.0
"""Longest wait for a request, or for a reader that does not take the answer."""


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """Who may read, and how the connection is protected."""

    token: str | None = None
    """Bearer token of every request; None admits all who can connect."""
    certificate: Path | None = None
    """PEM file for TLS; None for plain HTTP."""
    key: Path | None = None


def read_token(file: Path) -> str:
    """The token in a file, which only its owner may read.

    Raises:
        ArgumentError: the file is missing or has no token, or other users can read it.
    """
    token = read_secret(file, argument="token_file").strip()
    if not is_token(token):
        raise ArgumentError(
            f"the token in `{file}` is shorter than {SHORTEST_TOKEN} printable ASCII characters",
            argument="token_file",
            hint=f"make one: (umask 077; openssl rand -hex 32 > {file})",
        )
    return token


class MetricsServer(ThreadingHTTPServer):
    """Answers GET /metrics; `serve_forever` works until `shutdown`.

    Several threads call `render`, which makes the text of the metrics.

    Raises:
        PortInUseError: another program listens there.
        EnvironmentProblem: the address is not one of this machine, or the certificate cannot be read.
    """

    daemon_threads = True

    def __init__(self, render: Callable[[], str], address: ListenAddress, security: ServerSecurity) -> None:
        self.render = render
        self.token = security.token
        context = _tls(security)
        super().__init__((address.host, address.port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = open_socket(address)
        self.server_address = self.socket.getsockname()
        if context is not None:  # the handshake belongs to the thread of the request, which has a time limit
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a reader that goes away, or speaks no TLS, is not worth a traceback."""


def _tls(security: ServerSecurity) -> ssl.SSLContext | None:
    if security.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(security.certificate, security.key)
    except (OSError, ssl.SSLError) as error:
        raise EnvironmentProblem(
            f"cannot read the certificate `{security.certificate}`: {error.strerror or error}", place="--tls-cert"
        ) from None
    return context


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = _SILENCE_S
    server_version = "trainworks"
    sys_version = ""

    def do_GET(self) -> None:
        if not self._is_allowed():
            self._answer(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong\n", {"WWW-Authenticate": "Bearer"})
        elif self.path.partition("?")[0] == "/metrics":
            self._answer(HTTPStatus.OK, self.server.render())
        else:
            self._answer(HTTPStatus.NOT_FOUND, "metrics are at /metrics\n")

    def _is_allowed(self) -> bool:
        if self.server.token is None:
            return True
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        return hmac.compare_digest(given, f"Bearer {self.server.token}".encode())

    def _answer(self, status: HTTPStatus, text: str, headers: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": CONTENT_TYPE, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, the name is that of http.server
        """Nothing: requests come every few seconds."""
