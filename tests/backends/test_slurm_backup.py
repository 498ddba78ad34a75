"""Dumps of a real slurmdbd's database, and their restore: whole or not at all, and nothing is lost on the way."""

from __future__ import annotations

import gzip
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.backends.slurm_cluster import Cluster

pytestmark = pytest.mark.slurm

SCRIPTS = Path("src/trainworks/deploy/ansible/roles/backup/files")


class Backups:
    """The scripts of the role `backup`, against the database of the sandbox."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        paths = cluster.sandbox.paths
        self.cluster, self.folder = cluster, folder / "backups"
        stop = folder / "stop.sh"
        pid = paths.pid_file("slurmdbd")
        stop.write_text(f"pid=$(cat {pid})\nkill $pid\nwhile kill -0 $pid 2> /dev/null; do sleep 0.1; done\n")
        self.env = cluster.env | {
            "BACKUP_FOLDER": str(self.folder),
            "STATE_FOLDER": str(paths.folder / "state"),
            "SLURMDBD_CONF": str(paths.folder / "etc" / "slurmdbd.conf"),
            "DATABASE": "slurm_acct",
            "MARIADB_OPTIONS": f"--no-defaults --socket={paths.database_socket} --user=root",
            "STOP_SLURMDBD": f"bash {stop}",
            "START_SLURMDBD": "slurmdbd",
            "WAIT_S": "120",
        }

    def run(self, script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = ["bash", SCRIPTS / script, *arguments]
        return subprocess.run(command, env=self.env, check=False, capture_output=True, text=True)

    @property
    def accounts(self) -> set[str]:
        return set(self.cluster.call("sacctmgr", "--noheader", "list", "account", "format=account%30").split())


@pytest.fixture
def backups(cluster: Cluster, tmp_path: Path) -> Backups:
    if not cluster.accounting:
        pytest.skip("NOT TESTED: backups; no slurmdbd")
    return Backups(cluster, tmp_path)


def test_a_dump_brings_back_what_was_there_and_keeps_what_it_replaces(backups: Backups) -> None:
    backups.cluster.call("sacctmgr", "-i", "add", "account", "kept")
    made = backups.run("slurm-backup.sh", "one")
    assert made.stdout.splitlines() == [
        f"{backups.folder}/{name}" for name in ("database-one.sql.gz", "state-one.tar.gz")
    ]
    assert {path.stat().st_mode & 0o777 for path in backups.folder.iterdir()} == {0o600}
    with tarfile.open(backups.folder / "state-one.tar.gz") as state:
        assert "./clustername" in state.getnames()
    backups.cluster.call("sacctmgr", "-i", "add", "account", "later")
    backups.cluster.call("sacctmgr", "-i", "delete", "account", "kept")
    dump = backups.folder / "database-one.sql.gz"
    done = backups.run("slurm-restore.sh", dump)
    assert done.returncode == 0, done.stderr
    rows = dict(line.split() for line in done.stdout.splitlines())
    assert int(rows["acct_table"]) >= 3
    assert {"kept", "research"} <= backups.accounts
    assert "later" not in backups.accounts
    (before,) = backups.folder.glob("database-before-restore-*.sql.gz")
    assert "'later'" in gzip.decompress(before.read_bytes()).decode()


def test_a_dump_that_is_cut_off_changes_nothing(backups: Backups) -> None:
    backups.run("slurm-backup.sh", "two")
    text = gzip.decompress((backups.folder / "database-two.sql.gz").read_bytes())
    broken = backups.folder / "broken.sql.gz"
    accounts = backups.accounts
    for content, message in [
        (gzip.compress(text)[:-40], "is damaged"),
        (gzip.compress(text[: len(text) // 2]), "is not a complete dump"),
        (gzip.compress(b"CREATE nonsense;\n-- Dump completed\n"), "MariaDB refused"),
        (gzip.compress(b"-- Dump completed\n"), "has no tables"),
    ]:
        broken.write_bytes(content)
        done = backups.run("slurm-restore.sh", broken)
        assert done.returncode == 1
        assert message in done.stderr
    assert backups.accounts == accounts
    assert not list(backups.folder.glob("*before-restore*"))


def test_a_dump_that_fails_leaves_no_file(backups: Backups) -> None:
    backups.env["DATABASE"] = "missing"
    assert backups.run("slurm-backup.sh", "three").returncode != 0
    assert not list(backups.folder.glob("database-*"))


def test_a_nightly_backup_removes_those_that_are_too_old_alone(backups: Backups) -> None:
    backups.folder.mkdir()
    old = [backups.folder / name for name in ("state-20200101T000000Z.tar.gz", "database-upgrade-1.sql.gz")]
    for path in old:
        path.touch()
        subprocess.run(["touch", "--date=2020-01-01", path], check=True)
    assert backups.run("slurm-backup.sh").returncode == 0
    assert [path.exists() for path in old] == [False, True]
    assert len(list(backups.folder.glob("database-2*"))) == 1
