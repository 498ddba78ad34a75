"""`... trainworks.agent.development.node ssh|jupyter`: the program of a job of `trainworks dev`, on its first node.

It starts the server, writes down how to reach it, prints the same as one line for backends without shared files, and
keeps dev/use.json, from which the supervisor's idle policy knows open sessions and busy kernels. It ends with the
server; on the other nodes of the job it waits.
"""

from __future__ import annotations

import http.client
import json
import os
import pwd
import secrets
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from trainworks.agent.development.serving import Place, find_program, place_of, write_private
from trainworks.agent.development.ssh import KEYS_VARIABLE, SshServing
from trainworks.errors import EnvironmentProblem, TrainworksError
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.network import LOOPBACK
from trainworks.record.dev_environment import DevServer, DevUse
from trainworks.record.events.job import FailureEvent
from trainworks.record.run_dir import RunDir

READY = "trainworks-dev "
"""Start of the line that says how to reach the server, as JSON."""
_STARTS_WITHIN_S = 120.0
_POLL_S = 0.1
_LOOK_EVERY_S = 1.0
_STOP_ARRIVES_S = 1.0
"""A request to stop ends the server and this program at once; it may reach the server first."""


def serve(server: Serving, run_dir: RunDir, clock: Clock) -> None:
    """Follow a server to its end, which is always a failure: a request to stop ends this program as well.

    Raises:
        EnvironmentProblem: the server has ended, or does not answer in two minutes.
    """
    deadline = clock.now() + _STARTS_WITHIN_S
    while not server.answers():
        _check_alive(server, clock)
        if clock.now() > deadline:
            raise EnvironmentProblem(f"{server.name} does not answer {_STARTS_WITHIN_S:.0f} s after its start")
        clock.sleep(_POLL_S)
    described, use = server.describe(), DevUse()
    run_dir.write_dev_server(described)
    sys.stdout.write(f"{READY}{described.model_dump_json()}\n")
    sys.stdout.flush()
    while True:
        _check_alive(server, clock)
        now = server.in_use()
        if now != use.open:
            use = DevUse(open=now, opened=use.opened + max(0, now - use.open))
            run_dir.write_dev_use(use)
        process.wait_any([server.child], _LOOK_EVERY_S)


def _check_alive(server: Serving, clock: Clock) -> None:
    code = server.child.exit_code()
    if code is None:
        return
    clock.sleep(_STOP_ARRIVES_S)
    ending = f"was killed by {process.signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    raise EnvironmentProblem(f"{server.name} {ending}")


def _start(kind: str, run_dir: RunDir) -> Serving:
    resolved = run_dir.read_resolved()
    in_pod = resolved.run_file.cluster.engine == "kubernetes"  # reached by `kubectl port-forward`
    address = LOOPBACK if in_pod else os.environ.get("MASTER_ADDR", LOOPBACK)
    place = place_of(run_dir, address, _user(), Path(resolved.working_folder))
    run_dir.forget_dev()
    if kind == "ssh":
        return SshServing(place, os.environ.get(KEYS_VARIABLE, ""), os.environ)
    return JupyterServing(place)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise EnvironmentProblem(f"user id {os.geteuid()} has no name on {socket.gethostname()}") from None


def main(kind: str) -> int:
    """Start the server and follow it; returns the exit code of the command."""
    run_dir, clock = RunDir(Path(os.environ["TRAINWORKS_RUN_DIR"])), SystemClock()
    process.die_with_parent(signal.SIGTERM)
    if os.environ.get("NODE_RANK", "0") != "0":
        signal.pause()
        return 0
    try:
        serve(_start(kind, run_dir), run_dir, clock)
    except TrainworksError as error:
        run_dir.note(
            FailureEvent(
                kind="failure",
                rank=0,
                node=0,
                host=socket.gethostname(),
                pid=os.getpid(),
                cause="environment",
                exit_code=int(error.exit_code),
                signal=None,
                message=error.message,
            )
        )
        sys.stderr.write(f"{error.message}\n")
        return int(error.exit_code)
    return 0


PACKAGE = "jupyterlab (pip install jupyterlab)"
_TIMEOUT_S = 5.0
_SILENT_FOR_S = 600.0
"""Time for which a server that does not answer is used as it was: a busy machine may stop it, and not its kernels."""


class JupyterServing:
    """`jupyter-lab` in the foreground, at `place`.

    Raises:
        EnvironmentProblem: it is not installed.
    """

    name = "jupyter-lab"

    def __init__(self, place: Place) -> None:
        program = find_program("jupyter-lab", PACKAGE)
        self._place = place
        self._busy, self._busy_at = 0, 0.0
        """Busy kernels when the server answered last, and the time of that answer."""
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
        """Number of busy kernels; a server that has not answered for ten minutes has none."""
        kernels = self._get("/api/kernels")
        if kernels is not None:
            self._busy_at = time.monotonic()
            self._busy = sum(kernel.get("execution_state") == "busy" for kernel in kernels if isinstance(kernel, dict))
        return self._busy if time.monotonic() - self._busy_at < _SILENT_FOR_S else 0

    def describe(self) -> DevServer:
        """Address, user and token file."""
        return self._place.describe("jupyter", token_file=str(self._token_file.absolute()))

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


Serving = SshServing | JupyterServing


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
