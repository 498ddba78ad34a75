"""Parts that the ssh server and JupyterLab share: their folder, their programs, their faults."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from trainworks.errors import EnvironmentProblem
from trainworks.host.network import listen
from trainworks.record.dev_environment import DevKind, DevServer
from trainworks.record.run_dir import RunDir

_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin")
"""Where servers are installed; the search path of a user often lacks them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server runs."""

    run_dir: RunDir
    address: str
    """To listen on."""
    port: int
    user: str
    working_folder: Path

    @property
    def folder(self) -> Path:
        """Folder of keys and tokens, closed to other users."""
        return self.run_dir.dev_folder

    @property
    def log(self) -> Path:
        """Output of the server."""
        return self.run_dir.rank_log(0)

    def describe(self, kind: DevKind, *, host_key: str | None = None, token_file: str | None = None) -> DevServer:
        """How to reach a server of a kind there."""
        return DevServer(
            kind=kind,
            host=socket.gethostname(),
            address=self.address,
            port=self.port,
            user=self.user,
            host_key=host_key,
            token_file=token_file,
        )


def place_of(run_dir: RunDir, address: str, user: str, working_folder: Path) -> Place:
    """Open the folder of the server, and choose a free port."""
    run_dir.dev_folder.mkdir(mode=0o700, exist_ok=True)
    run_dir.dev_folder.chmod(0o700)
    with listen(address=address) as probe:
        port = probe.getsockname()[1]
    return Place(run_dir, address, port, user, working_folder)


def find_program(name: str, package: str) -> str:
    """Path of a program, also beside this interpreter and in the folders of system services.

    Raises:
        EnvironmentProblem: it is not installed on this node; names the package to install.
    """
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise EnvironmentProblem(f"`{name}` is not installed on {socket.gethostname()}; install {package} there")
    return found


def write_private(path: Path, text: str) -> None:
    """Replace a file that only its owner can read."""
    scratch = path.with_name(f".{path.name}.new")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
    scratch.replace(path)
