"""A receiver of alerts, in the form that Alertmanager sends."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Webhook(HTTPServer):
    """Keeps the alerts that it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.firing: list[dict[str, str]] = []
        """Labels of the alerts, in the order of their arrival."""


class _Post(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.firing += [alert["labels"] for alert in message["alerts"] if alert["status"] == "firing"]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Nothing."""
