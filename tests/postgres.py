"""A PostgreSQL of the tests' own, if the machine has its programs."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

_SUPERUSER = "postgres"


def postgres_url(name: str, on: PostgresServer | None = None) -> str:
    """A new database, on the server of this test session if on no other; see `require_postgres`."""
    require_postgres()
    database = "".join(letter if letter.isalnum() else "_" for letter in name.lower())[-40:]
    server = f"postgresql+psycopg://{_SUPERUSER}@/%s?host={(on or _shared_server()).folder}"
    engine = sa.create_engine(server % "postgres", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
        connection.exec_driver_sql(f'CREATE DATABASE "{database}"')
    engine.dispose()
    return server % database


def require_postgres() -> None:
    """Skip, loudly, where there is no server to start."""
    if not _programs() or not _driver():
        pytest.skip(
            "NOT TESTED: the job store on PostgreSQL; apt-get install postgresql, pip install 'psycopg[binary]'"
        )


def _programs() -> Path | None:
    """Folder of initdb and postgres; Debian keeps them off the path."""
    on_path = shutil.which("initdb")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return Path(on_path).parent if on_path else found[-1].parent if found else None


def _driver() -> bool:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return False
    return True


class PostgresServer:
    """A server without a port, until this program ends; it refuses to run as root, and then runs as its own user."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        if os.geteuid() == 0:
            shutil.chown(self.folder, _SUPERUSER)
            self.folder.chmod(0o711)  # its socket is for every user
        self._do("initdb", "-U", _SUPERUSER, "--auth=trust", "-N")
        self.start()
        atexit.register(self._remove)

    def start(self) -> None:
        """Start it, or start it again."""
        settings = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c fsync=off"
        self._do("pg_ctl", "-w", "-t", "240", "-l", str(self.folder / "log"), "-o", settings, "start")

    def kill(self) -> None:
        """As `kill -9` of the server, which takes the processes of its connections along.

        Until the last of them has ended, none can be started again: they share memory. The server is stopped first,
        so that it makes no other process meanwhile.
        """
        server = psutil.Process(int((self.folder / "data" / "postmaster.pid").read_text().split()[0]))
        server.suspend()
        ending = [*server.children(), server]
        for process in ending:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(ending, timeout=240)

    def _do(self, program: str, *arguments: str) -> None:
        programs = _programs()
        assert programs is not None
        command = [str(programs / program), "-D", str(self.folder / "data"), *arguments]
        user = _SUPERUSER if os.geteuid() == 0 else None
        subprocess.run(command, user=user, check=True, capture_output=True, cwd=self.folder)

    def _remove(self) -> None:
        with suppress(subprocess.CalledProcessError):
            self._do("pg_ctl", "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def _shared_server() -> PostgresServer:
    return PostgresServer()
