"""Requests that schemathesis makes from the API's description never meet an error of the server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.conftest import ADMIN, Server

PROGRAM = shutil.which("schemathesis", path=str(Path(sys.executable).parent))


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="schemathesis is not installed")
def test_no_request_is_an_error_of_the_server(server: Server, trained: str, tmp_path: Path) -> None:
    description = server.ask("/api/v1/openapi.json").json
    for path in description["paths"].values():
        for parameter in (one for operation in path.values() for one in operation.get("parameters", [])):
            if parameter["name"] == "run":
                parameter["schema"] = {"enum": [trained]}  # a name that exists
    del description["paths"]["/api/v1/nodes"]["get"]["parameters"]  # 503 is right for a Slurm that does not answer
    (tmp_path / "api.json").write_text(json.dumps(description))
    command = [str(PROGRAM), "run", "api.json", "--url", f"http://127.0.0.1:{server.port}", "--seed", "7"]
    command += ["-H", f"Authorization: Bearer {ADMIN}", "-n", "10", "--phases", "examples,coverage,fuzzing"]
    command += ["--request-timeout", "240"]  # the server is in this process, which a busy machine may let wait
    command += ["-c", "not_a_server_error,response_schema_conformance,content_type_conformance", "--no-color"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("token", ["", "Bearer", "Basic dXNlcjpwYXNz", "Bearer \xff"])
def test_a_strange_token_is_no_error_of_the_server(server: Server, token: str) -> None:
    assert server.ask("/api/v1/jobs", token=None, Authorization=token).status == 401
