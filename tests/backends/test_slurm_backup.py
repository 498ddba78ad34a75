"""Copies of a real slurmdbd's database and slurmctld's state, and their restore: whole or not at all."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.backends.slurm_cluster import Cluster, wait_until
from trainworks.deploy.sandbox.slurm_files import CLUSTER

pytestmark = pytest.mark.slurm

SCRIPTS = Path("src/trainworks/deploy/ansible/roles/backup/files")


class Backups:
    """The scripts of the role `backup`, against the database of the sandbox."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        paths = cluster.sandbox.paths
        self.cluster, self.folder = cluster, folder / "backups"
        stop, stop_slurmctld = (folder / f"stop-{name}.sh" for name in ("slurmdbd", "slurmctld"))
        for script, name in ((stop, "slurmdbd"), (stop_slurmctld, "slurmctld")):
            pid = paths.pid_file(name)
            script.write_text(f"pid=$(cat {pid})\nkill $pid\nwhile kill -0 $pid 2> /dev/null; do sleep 0.1; done\n")
        self.env = cluster.env | {
            "BACKUP_FOLDER": str(self.folder),
            "STATE_FOLDER": str(paths.folder / "state"),
            "SLURMDBD_CONF": str(paths.folder / "etc" / "slurmdbd.conf"),
            "DATABASE": "slurm_acct",
            "MARIADB_OPTIONS": f"--no-defaults --socket={paths.database_socket} --user=root",
            "STOP_SLURMDBD": f"bash {stop}",
            "START_SLURMDBD": "slurmdbd",
            "WAIT_S": "120",
            "AS_SLURM": "env",
            "STOP_SLURMCTLD": f"bash {stop_slurmctld}",
            "START_SLURMCTLD": f"slurmctld -f {paths.conf}",
        }

    def run(self, script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = ["bash", SCRIPTS / script, *arguments]
        return subprocess.run(command, env=self.env, check=False, capture_output=True, text=True)

    @property
    def jobs(self) -> list[str]:
        return self.cluster.call("squeue", "--noheader", "--format=%i").split()

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


def test_a_state_brings_back_the_queue_and_keeps_what_it_replaces(backups: Backups) -> None:
    cluster = backups.cluster
    job = cluster.call("sbatch", "--parsable", "--hold", "--wrap=true").strip()
    # it saves its state when it stops
    subprocess.run(["bash", "-c", backups.env["STOP_SLURMCTLD"]], check=True)
    assert backups.run("slurm-backup.sh", "queue").returncode == 0
    subprocess.run(["bash", "-c", backups.env["START_SLURMCTLD"]], env=backups.env, check=True)
    wait_until(lambda: job in backups.jobs)
    cluster.call("scancel", job)
    wait_until(lambda: job not in backups.jobs)
    copy = backups.folder / "state-queue.tar.gz"
    try:
        done = backups.run("slurm-restore-state.sh", copy)
        assert (done.returncode, done.stderr) == (0, "")
        assert int(dict(line.split() for line in done.stdout.splitlines())["jobs"]) >= 1
        assert job in backups.jobs
        (before,) = backups.folder.glob("state-before-restore-*.tar.gz")
        with tarfile.open(before) as state:
            assert "./clustername" in state.getnames()
    finally:
        cluster.call("scancel", job)


def state(path: Path, **files: bytes) -> Path:
    """A copy of a state with these files."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def test_a_state_that_is_damaged_or_of_another_cluster_changes_nothing(backups: Backups) -> None:
    backups.folder.mkdir()
    whole = state(backups.folder / "state-whole.tar.gz", clustername=CLUSTER.encode(), job_state=b"x" * 2000)
    cut = backups.folder / "state-cut.tar.gz"
    cut.write_bytes(whole.read_bytes()[:-20])
    for copy, message in [
        (cut, "is damaged"),
        (state(backups.folder / "state-other.tar.gz", clustername=b"elsewhere"), "is of the cluster 'elsewhere'"),
        (state(backups.folder / "state-none.tar.gz", job_state=b"x"), "is no state of slurmctld"),
    ]:
        done = backups.run("slurm-restore-state.sh", copy)
        assert (done.returncode, message in done.stderr, "nothing was changed" in done.stderr) == (1, True, True)
    assert not list(backups.folder.glob("*before-restore*"))


def test_a_state_that_slurmctld_cannot_read_is_taken_back(backups: Backups) -> None:
    backups.folder.mkdir()
    job = backups.cluster.call("sbatch", "--parsable", "--hold", "--wrap=true").strip()
    try:
        copy = state(backups.folder / "state-bad.tar.gz", clustername=CLUSTER.encode(), job_state=b"\xff" * 2000)
        backups.env["WAIT_S"] = "20"
        done = backups.run("slurm-restore-state.sh", copy)
        assert done.returncode == 1
        assert "what was there is back" in done.stderr
        assert job in backups.jobs
    finally:
        backups.cluster.call("scancel", job)
