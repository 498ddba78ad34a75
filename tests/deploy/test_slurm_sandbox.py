"""The files of a Slurm sandbox, and what it refuses; a real one is started by `tests/backends/slurm`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ports import free_port
from tests.users import require_root
from trainworks.deploy.sandbox import slurm
from trainworks.deploy.sandbox.slurm import SlurmSandbox
from trainworks.deploy.sandbox.slurm_files import SandboxSize, SlurmPaths, slurm_files
from trainworks.errors import EnvironmentProblem, PortInUseError, UsageError
from trainworks.host.network import listen


def rendered(size: SandboxSize) -> str:
    files = slurm_files(size, SlurmPaths(Path("/tmp/sandbox")), host="ada")
    return "\n".join(f"--- {name}\n{text}" for name, text in files.items())


def test_four_nodes_of_eight_accelerators(golden) -> None:
    golden("slurm_sandbox.txt", rendered(SandboxSize()))


def test_accounting_brings_a_database_and_quotas(golden) -> None:
    golden("slurm_sandbox_accounting.txt", rendered(SandboxSize(nodes=1, accelerators=0, accounting=True)))


def test_what_was_never_started_has_no_status(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no sandbox in"):
        SlurmSandbox(tmp_path).status()


def test_what_was_never_started_can_be_purged(tmp_path: Path) -> None:
    SlurmSandbox(tmp_path).purge()
    assert tmp_path.is_dir()


def test_missing_programs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(slurm.shutil, "which", lambda program, path: None if program == "slurmd" else program)
    with pytest.raises(EnvironmentProblem, match="slurmd missing") as refused:
        SlurmSandbox(tmp_path).up(SandboxSize())
    assert refused.value.hint == "trainworks sandbox slurm install"


def test_it_wants_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(EnvironmentProblem, match="needs root"):
        SlurmSandbox(tmp_path).up(SandboxSize())


def test_the_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "missing_programs", lambda accounting: [])
    monkeypatch.setattr("os.geteuid", lambda: 0)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(EnvironmentProblem, match="belongs to another user"):
        SlurmSandbox(tmp_path / "link").up(SandboxSize())


@pytest.mark.root
@pytest.mark.parametrize(("offset", "daemon"), [(0, "slurmctld"), (11, "slurmd-node2"), (1, "slurmdbd")])
def test_a_port_that_is_taken_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int, daemon: str
) -> None:
    require_root()
    monkeypatch.setattr(slurm, "missing_programs", lambda accounting: [])
    first = free_port(14)
    with listen(first + offset), pytest.raises(PortInUseError) as refused:
        SlurmSandbox(tmp_path).up(SandboxSize(first_port=first, accounting=True))
    assert refused.value.message == f"cannot start {daemon}: another program listens on port {first + offset}"
    assert str(refused.value.hint).startswith("choose other ports: `--port ")
    assert not any(tmp_path.iterdir())


def test_on_demand_nodes_cannot_exceed_all_nodes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`--cloud 5` exceeds `--nodes 4`"):
        SlurmSandbox(tmp_path).up(SandboxSize(nodes=4, cloud=5))


def test_the_last_nodes_come_and_go(tmp_path: Path) -> None:
    files = slurm_files(SandboxSize(nodes=3, cloud=2, down_after_s=7), SlurmPaths(tmp_path), host="ada")
    nodes = [line for line in files["slurm.conf"].splitlines() if line.startswith("NodeName=")]
    assert [line.split()[-1] for line in nodes] == ["State=UNKNOWN", "State=CLOUD", "State=CLOUD"]
    assert "PartitionName=cloud Nodes=node[2-3] MaxTime=INFINITE State=UP SuspendTime=7" in files["slurm.conf"]
    assert {"resume.sh", "suspend.sh"} <= files.keys()
