"""The exporter as Prometheus and node_exporter meet it: over HTTP, with a token, over TLS, and as a file."""

from __future__ import annotations

import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.fakes import FakeClock
from tests.observe.conftest import RunningRun
from tests.observe.monitoring import serving
from tests.observe.prometheus import values
from tests.program import trainworks_program
from trainworks.api.observing.exporter import NodeMetrics, metrics_server, write_metrics
from trainworks.cli.app import app
from trainworks.errors import ArgumentError, PortInUseError, UsageError
from trainworks.observe.exporter import CONTENT_TYPE

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A token that only this user can read."""
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


def get(url: str, token: str | None = None, context: ssl.SSLContext | None = None) -> str:
    """The body of an answer."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        return str(answer.read().decode())


def test_prometheus_reads_metrics_over_http(running: RunningRun, metrics: NodeMetrics) -> None:
    with serving(metrics_server(metrics, "127.0.0.1:0")) as url:
        assert values(get(f"{url}/metrics"))['trainworks_run_step{run="stdlib-lm-1"}'] == 80
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{url}/etc/passwd")


@pytest.mark.parametrize("given", [None, "", TOKEN[:-1], TOKEN.upper(), "ü"])
def test_a_wrong_token_reads_nothing(metrics: NodeMetrics, token_file: Path, given: str | None) -> None:
    with serving(metrics_server(metrics, "127.0.0.1:0", token_file=token_file)) as url:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(f"{url}/metrics", given)
        assert get(f"{url}/metrics", TOKEN)


def test_metrics_travel_over_tls(metrics: NodeMetrics, token_file: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    request = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", "/CN=node1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*request, "-keyout", key, "-out", certificate, *names], check=True, capture_output=True)
    server = metrics_server(metrics, "127.0.0.1:0", token_file=token_file, tls_cert=certificate, tls_key=key)
    with serving(server) as url:
        context = ssl.create_default_context(cafile=certificate)
        assert get(url.replace("http:", "https:") + "/metrics", TOKEN, context)
        with pytest.raises(OSError):
            get(f"{url}/metrics", TOKEN)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", ":0", "[::]:0", "node1:0"])
def test_other_machines_need_a_token(metrics: NodeMetrics, listen: str) -> None:
    with pytest.raises(ArgumentError, match="admits other machines"):
        metrics_server(metrics, listen)


@pytest.mark.parametrize("listen", ["9855", "localhost", "1.2.3.4:99999", "a:b:1"])
def test_an_address_that_is_none_is_refused(metrics: NodeMetrics, listen: str) -> None:
    with pytest.raises(ArgumentError, match="is not HOST:PORT"):
        metrics_server(metrics, listen)


def test_a_token_that_others_can_read_is_refused(metrics: NodeMetrics, token_file: Path) -> None:
    token_file.chmod(0o644)
    with pytest.raises(ArgumentError, match="other users can read"):
        metrics_server(metrics, "127.0.0.1:0", token_file=token_file)


@pytest.mark.parametrize("text", ["", "short", "tökentökentökentöken"])
def test_a_token_that_is_none_is_refused(metrics: NodeMetrics, token_file: Path, text: str) -> None:
    token_file.write_text(text)
    with pytest.raises(ArgumentError, match="16 printable ASCII"):
        metrics_server(metrics, "127.0.0.1:0", token_file=token_file)


def test_a_port_in_use_is_named(metrics: NodeMetrics) -> None:
    with serving(metrics_server(metrics, "127.0.0.1:0")) as url, pytest.raises(PortInUseError, match="in use"):
        metrics_server(metrics, url.removeprefix("http://"))


def test_a_file_for_node_exporter_is_written_again_and_again(
    running: RunningRun, metrics: NodeMetrics, clock: FakeClock, tmp_path: Path
) -> None:
    path = tmp_path / "trainworks.prom"
    seen: list[float] = []

    def look() -> None:
        seen.append(values(path.read_text())['trainworks_run_step{run="stdlib-lm-1"}'])
        running.steps(1)
        clock.after(30, look)

    clock.after(15, look)
    with pytest.raises(TimeoutError):
        write_metrics(metrics, path, every_s=30, clock=clock)
    assert seen[:3] == [80, 81, 82]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_file_that_node_exporter_does_not_read_is_refused(metrics: NodeMetrics, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"reads no `metrics.txt`"):
        write_metrics(metrics, tmp_path / "metrics.txt")


def test_the_command_prints_the_metrics_once(running: RunningRun, folder: Path) -> None:
    done = CliRunner().invoke(app, ["exporter", "--once", "--collect", "runs", "--runs", str(folder)])
    assert values(done.stdout)['trainworks_run_planned_steps{run="stdlib-lm-1"}'] == 300


def test_the_command_refuses_what_does_not_go_together(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["exporter", "--textfile", "a.prom", "--listen", "127.0.0.1:1"])
    assert isinstance(done.exception, UsageError)


def test_the_command_names_the_option_of_an_error() -> None:
    done = trainworks_program("exporter", "--listen", "0.0.0.0:9855")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--listen" in done.stderr
    assert "hint: add `--token-file FILE`" in done.stderr
