"""A Zabbix of the tests' own: Debian's server and frontend on a PostgreSQL database, reached through its API."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.ports import free_port
from tests.postgres import postgres_url

_SERVER, _FRONTEND = Path("/usr/sbin/zabbix_server"), Path("/usr/share/zabbix")
_SCHEMA = Path("/usr/share/zabbix-server-pgsql")
_PACKAGES = "zabbix-server-pgsql zabbix-frontend-php php-cli php-pgsql"
_PATIENCE_S = 240.0
_WEBHOOK = """
var request = new HttpRequest();
request.addHeader('Content-Type: application/json');
request.post(JSON.parse(value).url, JSON.parse(value).message);
return 'OK';
"""


def require_zabbix() -> None:
    """Skip, loudly, where Debian's packages are not installed."""
    if not (_SERVER.exists() and _FRONTEND.exists() and shutil.which("php") and os.geteuid() == 0):
        pytest.skip(f"NOT TESTED: the template in a real Zabbix; as root: apt-get install {_PACKAGES}")


class Zabbix:
    """Its API.

    Args:
        port: of the frontend.
    """

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api_jsonrpc.php"
        self._token: str | None = None

    def login(self) -> None:
        """Wait for the frontend, log in as its first administrator, and leave Zabbix's own server unwatched.

        It has no agent here, which Zabbix would tell after three minutes.
        """
        self._token = until(lambda: self.call("user.login", username="Admin", password="zabbix"), "the frontend")
        for host in self.call("host.get", output=["hostid"]):
            self.call("host.update", hostid=host["hostid"], status=1)

    def call(self, method: str, **parameters: Any) -> Any:
        """The result of a method; an error of the API is an assertion."""
        body = {"jsonrpc": "2.0", "method": method, "params": parameters, "auth": self._token, "id": 1}
        headers = {"Content-Type": "application/json-rpc"}
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as found:
            answer = json.load(found)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def import_template(self, text: str) -> str:
        """Import a template of ours; its id."""
        new, change = {"createMissing": True}, {"createMissing": True, "updateExisting": True}
        rules = dict.fromkeys(("items", "discoveryRules", "triggers", "templates"), change) | {"groups": new}
        assert self.call("configuration.import", format="yaml", source=text, rules=rules)
        (found,) = self.call("template.get", filter={"host": ["Trainworks"]})
        return str(found["templateid"])

    def add_host(self, name: str, template: str, exporter: str) -> str:
        """A host that has the template and reads this exporter; its id."""
        (group,) = self.call("hostgroup.get", filter={"name": ["Linux servers"]})
        macros = [{"macro": "{$TRAINWORKS.URL}", "value": f"{exporter}/metrics"}]
        groups, templates = [{"groupid": group["groupid"]}], [{"templateid": template}]
        created = self.call("host.create", host=name, groups=groups, templates=templates, macros=macros)
        return str(created["hostids"][0])

    def tell(self, webhook: str) -> None:
        """Send the name of every new problem to a webhook."""
        parameters = [{"name": "url", "value": webhook}, {"name": "message", "value": "{ALERT.MESSAGE}"}]
        message = '{"alerts": [{"status": "firing", "labels": {"alertname": "{EVENT.NAME}"}}]}'
        templates = [{"eventsource": "0", "recovery": "0", "subject": "problem", "message": message}]
        media = self.call(
            "mediatype.create",
            type="4",
            name="webhook",
            script=_WEBHOOK,
            parameters=parameters,
            message_templates=templates,
        )["mediatypeids"][0]
        (admin,) = self.call("user.get", filter={"username": "Admin"})
        self.call("user.update", userid=admin["userid"], medias=[{"mediatypeid": media, "sendto": ["duty"]}])
        send = {"operationtype": "0", "opmessage": {"default_msg": "1", "mediatypeid": media}}
        send |= {"opmessage_usr": [{"userid": admin["userid"]}]}
        self.call("action.create", name="tell", eventsource="0", esc_period="1h", operations=[send])


@contextmanager
def running_zabbix(folder: Path) -> Iterator[Zabbix]:
    """Server and frontend until the block ends, with their files in this folder."""
    database = sa.make_url(postgres_url("zabbix"))
    place, name = str(database.query["host"]), str(database.database)
    _load_schema(place, name)
    port = free_port(2)  # the server refuses those above 32767
    with _running(_server(folder, place, name, port)), _running(_frontend(folder, place, name, port, port + 1)):
        zabbix = Zabbix(port + 1)
        zabbix.login()
        yield zabbix


@contextmanager
def _running(process: subprocess.Popen[bytes]) -> Iterator[None]:
    with process:
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # a server that stops slowly leaves children behind


def until(ask: Callable[[], Any], what: str) -> Any:
    """The first answer that is not empty."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            if found := ask():
                return found
        except (OSError, json.JSONDecodeError):
            pass
        assert time.monotonic() < deadline, f"waited {_PATIENCE_S:.0f} s for {what}"
        time.sleep(0.5)


def _load_schema(place: str, name: str) -> None:
    text = b"".join(gzip.decompress((_SCHEMA / f"{part}.sql.gz").read_bytes()) for part in ("schema", "images", "data"))
    command = ["psql", "--quiet", "--set=ON_ERROR_STOP=1", "--host", place, "--username=postgres", name]
    subprocess.run(command, input=text, check=True, capture_output=True)


def _server(folder: Path, place: str, name: str, port: int) -> subprocess.Popen[bytes]:
    settings = {
        "AllowRoot": 1,
        "DBHost": place,
        "DBName": name,
        "DBUser": "postgres",
        "ListenIP": "127.0.0.1",
        "ListenPort": port,
        "LogFile": folder / "zabbix_server.log",
        "PidFile": folder / "zabbix_server.pid",
        "SocketDir": folder,
        "CacheUpdateFrequency": 1,
        "StartPollers": 1,
        "StartPreprocessors": 1,
        "StartLLDProcessors": 1,
        "StartEscalators": 1,
        "StartAlerters": 1,
        "StartHistoryPollers": 1,
        "StartTrappers": 1,
        "StartPingers": 0,
        "StartDiscoverers": 0,
        "StartHTTPPollers": 0,
    }
    path = folder / "zabbix_server.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return subprocess.Popen(
        [_SERVER, "--foreground", "--config", path], start_new_session=True, stdout=subprocess.DEVNULL
    )


def _frontend(folder: Path, place: str, name: str, server: int, port: int) -> subprocess.Popen[bytes]:
    """A copy of the frontend, because Debian's own reads its configuration in /etc."""
    root = folder / "frontend"
    shutil.copytree(_FRONTEND, root, symlinks=False, ignore_dangling_symlinks=True)
    config, reader = root / "conf" / "zabbix.conf.php", root / "include" / "classes" / "core" / "CConfigFile.php"
    reader.write_text(reader.read_text().replace("/etc/zabbix/zabbix.conf.php", str(config)))
    database = {
        "TYPE": "POSTGRESQL",
        "SERVER": place,
        "PORT": "0",
        "DATABASE": name,
        "USER": "postgres",
        "PASSWORD": "",
    }
    lines = [f"$DB['{key}'] = '{value}';" for key, value in {**database, "SCHEMA": "", "ENCRYPTION": False}.items()]
    lines += [f"$ZBX_SERVER = '127.0.0.1'; $ZBX_SERVER_PORT = '{server}'; $ZBX_SERVER_NAME = '';"]
    config.write_text("<?php\n" + "\n".join(lines).replace("'False'", "false") + "\n")
    limits = ["-d", "memory_limit=256M", "-d", "max_execution_time=300", "-d", "post_max_size=16M"]
    command = ["php", *limits, "-S", f"127.0.0.1:{port}", "-t", str(root)]
    with (folder / "frontend.log").open("wb") as log:
        return subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)
