"""A fake of Ray's dashboard that replays recorded answers of Ray 2.60."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())


class FakeDashboard:
    """Answers over HTTP. `answers` beat what it remembers: (status, text) by method and path, once each or for ever."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.packages: dict[str, bytes] = {}
        self.groups: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.answers: dict[str, Any] = {}

    def answer(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """One call."""
        asked = f"{method} {path.partition('?')[0]}"
        self.asked.append(asked)
        self.headers.append(headers)
        if asked in self.answers:
            given = self.answers[asked]
            code, text = given.pop(0) if isinstance(given, list) else given
            if isinstance(given, list) and not given:
                del self.answers[asked]
            return code, text.encode()
        code, found = self._remembered(method, asked.partition(" ")[2], body)
        return code, found if isinstance(found, bytes) else json.dumps(found).encode()

    def _remembered(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        *_, parent, name = path.split("/")
        if parent == "gcs":
            if method == "PUT":
                self.packages[name] = body
            return (200, b"") if name in self.packages else (404, b"Package does not exist")
        if path == "/api/jobs/":
            return self._submitted(json.loads(body)) if method == "POST" else (200, list(self.jobs.values()))
        if path in ("/api/v0/placement_groups", "/api/v0/nodes"):
            rows = self.groups if name == "placement_groups" else RECORDED["nodes"]["nodes"]
            return 200, {"result": True, "msg": "", "data": {"result": {"result": rows}}}
        job = self.jobs.get(parent if name in ("stop", "logs") else name)
        if job is None:
            return 404, RECORDED["answer_missing"]["text"].encode()
        return 200, {"stop": {"stopped": True}, "logs": RECORDED["logs"]}.get(name, job)

    def _submitted(self, request: dict[str, Any]) -> tuple[int, Any]:
        name = request["submission_id"]
        if name in self.jobs:
            return RECORDED["answer_taken"]["code"], RECORDED["answer_taken"]["text"].encode()
        self.jobs[name] = RECORDED["pending"]["job"] | request
        return 200, {"job_id": name, "submission_id": name}
