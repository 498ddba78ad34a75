"""A PostgreSQL of the tests' own, if the machine has its programs."""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
import sqlalchemy as sa

_SUPERUSER = "postgres"


def postgres_url(name: str) -> str:
    """A new database on the server of this test session; skips, loudly, where there is no server to start."""
    if not _programs() or not _driver():
        pytest.skip(
            "NOT TESTED: the job store on PostgreSQL; apt-get install postgresql, pip install 'psycopg[binary]'"
        )
    socket_folder = _server()
    database = "".join(letter if letter.isalnum() else "_" for letter in name.lower())[-40:]
    server = f"postgresql+psycopg://{_SUPERUSER}@/%s?host={socket_folder}"
    engine = sa.create_engine(server % "postgres", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
        connection.exec_driver_sql(f'CREATE DATABASE "{database}"')
    engine.dispose()
    return server % database


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


@cache
def _server() -> Path:
    """Started once, without a port; it refuses to run as root, and then runs as its own user."""
    programs = _programs()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    user = _SUPERUSER if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    if os.geteuid() == 0:
        shutil.chown(folder, user)
    settings = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
    control = [str(programs / "pg_ctl"), "-D", str(folder / "data"), "-w", "-l", str(folder / "log"), "-o", settings]
    for command in (
        [str(programs / "initdb"), "-D", str(folder / "data"), "-U", _SUPERUSER, "--auth=trust", "-N"],
        [*control, "start"],
    ):
        subprocess.run(command, user=user if os.geteuid() == 0 else None, check=True, capture_output=True, cwd=folder)

    def stop() -> None:
        stopping = [str(programs / "pg_ctl"), "-D", str(folder / "data"), "-m", "immediate", "stop"]
        subprocess.run(stopping, user=user if os.geteuid() == 0 else None, check=False, capture_output=True, cwd=folder)
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    return folder
