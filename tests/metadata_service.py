"""Metadata services of AWS, GCP and Azure on the loopback address, as far as notices need them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class MetadataService:
    """What the clouds would answer; tests change it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.token = "first"
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.machine = "worker_1"
        self.events: list[dict[str, Any]] = []
        self.spot_action: str | None = None
        self.rebalance: str | None = None
        self.broken = False
        self.changed = threading.Condition()
        self.num_waiting = 0
        """Requests that wait for a change of a value of GCP."""

    def reclaim(self, seconds: float) -> None:
        """EC2 interrupts this spot instance."""
        at = datetime.fromtimestamp(time.time() + seconds, UTC)
        self.spot_action = json.dumps({"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")})

    def schedule(self, kind: str, machine: str, at: float | None) -> None:
        """Azure schedules an event."""
        not_before = "" if at is None else format_datetime(datetime.fromtimestamp(at, UTC), usegmt=True)
        event = {"EventId": "1", "EventType": kind, "ResourceType": "VirtualMachine", "Resources": [machine]}
        self.events.append(event | {"EventStatus": "Scheduled", "NotBefore": not_before})

    def change(self, key: str, value: str) -> None:
        """A value of GCP changes."""
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def change_when_awaited(self, key: str, value: str) -> None:
        """A value of GCP changes as soon as a request waits for it."""
        with self.changed:
            self.changed.wait_for(lambda: self.num_waiting > 0)
            self.change(key, value)

    def answer(self, method: str, target: str, headers: Any) -> tuple[int, str, str]:
        """Status, text and ETag."""
        url = urlsplit(target)
        if self.broken:
            return 200, "<html>not JSON", ""
        if url.path.startswith("/latest/"):
            return *self._aws(method, url.path, headers), ""
        if url.path.startswith("/computeMetadata/v1/instance/"):
            return self._gcp(url.path.rpartition("/")[2], parse_qs(url.query), headers)
        return *self._azure(url.path, headers), ""

    def _aws(self, method: str, path: str, headers: Any) -> tuple[int, str]:
        if path == "/latest/api/token":
            fits = method == "PUT" and headers["X-aws-ec2-metadata-token-ttl-seconds"]
            return (200, self.token) if fits else (400, "")
        if headers["X-aws-ec2-metadata-token"] != self.token:
            return 401, ""
        found = {
            "/latest/meta-data/spot/instance-action": self.spot_action,
            "/latest/meta-data/events/recommendations/rebalance": self.rebalance,
        }[path]
        return (404, "") if found is None else (200, found)

    def _gcp(self, key: str, query: dict[str, list[str]], headers: Any) -> tuple[int, str, str]:
        if headers["Metadata-Flavor"] != "Google":
            return 403, "", ""
        with self.changed:
            if query["last_etag"] == [self.values[key]]:  # the ETag of a value is the value
                self.num_waiting += 1
                self.changed.notify_all()
                self.changed.wait_for(
                    lambda: query["last_etag"] != [self.values[key]], min(float(query["timeout_sec"][0]), 5.0)
                )
                self.num_waiting -= 1
            return 200, self.values[key], self.values[key]

    def _azure(self, path: str, headers: Any) -> tuple[int, str]:
        if headers["Metadata"] != "true":
            return 400, ""
        if path == "/metadata/instance/compute/name":
            return 200, self.machine
        return 200, json.dumps({"DocumentIncarnation": 1, "Events": self.events})


@contextmanager
def metadata_service() -> Iterator[MetadataService]:
    """The service, until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text, etag = service.answer(self.command, self.path, self.headers)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.send_header("ETag", etag)
            self.end_headers()
            self.wfile.write(text.encode())

        do_PUT = do_GET  # noqa: N815 as BaseHTTPRequestHandler names it

        def log_message(self, *arguments: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service = MetadataService(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
