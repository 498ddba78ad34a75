"""JupyterLab for one user, behind a token."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import socket
from typing import Any

from trainworks.agent.development.serving import Place, find_program, write_private
from trainworks.host import process
from trainworks.record.dev_environment import DevServer

PACKAGE = "jupyterlab (pip install jupyterlab)"
_TIMEOUT_S = 5.0


class JupyterServing:
    """`jupyter-lab` in the foreground.

    Args:
        place: where it listens.

    Raises:
        EnvironmentProblem: it is not installed.
    """

    name = "jupyter-lab"

    def __init__(self, place: Place) -> None:
        program = find_program("jupyter-lab", PACKAGE)
        self._place = place
        self._token_file = place.folder / "token"
        if not self._token_file.exists():
            write_private(self._token_file, secrets.token_urlsafe(32) + "\n")
        self._token = self._token_file.read_text(encoding="utf-8").strip()
        runtime = place.folder / "jupyter"  # the keys of its kernels
        runtime.mkdir(mode=0o700, exist_ok=True)
        command = [program, "--no-browser", f"--ServerApp.ip={place.address}", f"--ServerApp.port={place.port}"]
        command += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={place.working_folder}"]
        command += ["--allow-root"] if os.geteuid() == 0 else []
        own = {"JUPYTER_TOKEN": self._token, "JUPYTER_RUNTIME_DIR": str(runtime)}
        self.child = process.spawn(
            process.ending_with_parent(command), log=place.log, env=dict(os.environ) | own, folder=place.working_folder
        )

    def answers(self) -> bool:
        """Return true once the server accepts the token."""
        return self._get("/api/kernels") is not None

    def in_use(self) -> int:
        """Number of busy kernels; a server that does not answer has none."""
        kernels = self._get("/api/kernels") or []
        return sum(kernel.get("execution_state") == "busy" for kernel in kernels if isinstance(kernel, dict))

    def describe(self) -> DevServer:
        """Address, user and token file."""
        return DevServer(
            kind="jupyter",
            host=socket.gethostname(),
            address=self._place.address,
            port=self._place.port,
            user=self._place.user,
            token_file=str(self._token_file.absolute()),
        )

    def _get(self, path: str) -> list[Any] | None:
        """A list from the REST API of the server; None if it has no answer."""
        connection = http.client.HTTPConnection(self._place.address, self._place.port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"Authorization": f"token {self._token}"})
            answer = connection.getresponse()
            content = json.loads(answer.read()) if answer.status == 200 else None
        except (OSError, ValueError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return content if isinstance(content, list) else None
