"""Storage of a stack: each kind of mount with its options, arrays of drives, keys that are in no file, and stripes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from trainworks.api.deploying import render_stack
from trainworks.errors import RunFileError

EXAMPLE = Path("examples/cluster/stack-roce.yaml")
FILES = "roles/storage/files"
BEEGFS = "kind: beegfs, at: /shared, server: mgmt1"
SCALE = "kind: scale, at: /shared, device: fs1"
CEPH = EXAMPLE.read_text().partition("- {kind: cephfs, ")[2].partition("}\n")[0]


def rendered(tmp_path: Path, old: str = "", new: str = "") -> Mapping[str, str]:
    """The project of the example with another text."""
    text = EXAMPLE.read_text()
    assert old in text
    (tmp_path / "stack.yaml").write_text(text.replace(old, new, 1))
    return render_stack(tmp_path / "stack.yaml")


def test_each_mount_has_the_options_that_matter_and_why(tmp_path: Path, golden) -> None:
    files = rendered(tmp_path)
    names = [f"{FILES}/{name}.mount" for name in ("shared", "scratch", "export", "local")]
    others = rendered(tmp_path, f"kind: cephfs, {CEPH}", BEEGFS)
    names_of_others = [f"{FILES}/{name}" for name in ("shared.mount", "client-shared.conf")]
    texts = [(name, files[name]) for name in names] + [(name, others[name]) for name in names_of_others]
    golden("deploy_storage.txt", "\n".join(f"# --- {name}\n{text}" for name, text in texts))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_units_of_every_kind(tmp_path: Path) -> None:
    units: list[Path] = []
    for folder, files in (("a", rendered(tmp_path)), ("b", rendered(tmp_path, f"kind: cephfs, {CEPH}", BEEGFS))):
        (tmp_path / folder).mkdir()
        for name in (name for name in files if name.endswith(".mount")):
            units.append(tmp_path / folder / Path(name).name)
            units[-1].write_text(files[name])
    for folder in ("a", "b"):
        command = ["systemd-analyze", "verify", *(unit for unit in units if unit.parent.name == folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("mount", "secrets"),
    [
        (
            f"kind: cephfs, {CEPH}",
            [{"secret": "ceph.client.nodes.secret", "path": "/etc/ceph/ceph.client.nodes.secret"}],
        ),
        (BEEGFS, [{"secret": "beegfs.conn.auth", "path": "/etc/beegfs/conn.auth"}]),
        (SCALE, []),
    ],
    ids=["cephfs", "beegfs", "scale"],
)
def test_keys_of_file_systems_come_from_a_folder_that_git_ignores(tmp_path: Path, mount: str, secrets: list) -> None:
    files = rendered(tmp_path, f"kind: cephfs, {CEPH}", mount)
    assert yaml.safe_load(files["group_vars/all.yaml"])["storage_secrets"] == secrets
    assert "secrets/" in files[".gitignore"]


def test_storage_scale_mounts_by_its_own_command(tmp_path: Path) -> None:
    files = rendered(tmp_path, f"kind: cephfs, {CEPH}", SCALE)
    assert f"{FILES}/shared.mount" not in files
    assert yaml.safe_load(files["group_vars/all.yaml"])["scale_mounts"] == [{"at": "/shared", "name": "fs1"}]
    assert "mountpoint -q /shared" in files["roles/scheduler/files/nodes_gpu/prolog.sh"]


def test_metadata_is_mirrored_and_scratch_is_not(tmp_path: Path) -> None:
    arrays = yaml.safe_load(rendered(tmp_path)["group_vars/all.yaml"])["storage_arrays"]
    assert [(each["group"], each["options"][0]) for each in arrays] == [
        ("compute", "--level=0"),
        ("storage", "--level=10"),
    ]


def test_a_folder_is_striped_for_what_it_holds(tmp_path: Path) -> None:
    folders = yaml.safe_load(rendered(tmp_path)["group_vars/all.yaml"])["striped_folders"]
    assert [(each["path"], each["options"][:4]) for each in folders] == [
        ("/scratch/checkpoints", ["-E", "1G", "-c", "1"]),
        ("/scratch/datasets", ["-c", "1", "-S", "4M"]),
    ]
    assert all(each["why"] for each in folders)


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        (", client: nodes", "", "mounts.1", "a mount of CephFS has `monitors` and `file_system` and `client`"),
        (CEPH, f"{CEPH}, device: fs1", "mounts.1", "none of `server`, `device`, `folders`"),
        (f"kind: cephfs, {CEPH}", f"{BEEGFS}, client: a", "mounts.1", "a mount of BeeGFS has `server`"),
        (", /dev/nvme3n1], at: /export", "], at: /export", "metadata.devices", "at least 4"),
        (", /dev/nvme3n1], at: /export", ", /dev/nvme3n1, /dev/nvme4n1], at: /export", "metadata", "pairs of drives"),
        ("roles: [storage]", "roles: [login]", "", "`metadata` is on hosts with the role `storage`"),
        ("use: shards", "use: small", "mounts.2.folders.1.use", "must be one of"),
        ("    folders:", "    read_only: true\n    folders:", "mounts.2", "the mount is read-only"),
    ],
    ids=["no client", "device of another", "client of another", "three drives", "five drives", "roles", "use", "read"],
)
def test_a_problem_of_storage_has_its_place(tmp_path: Path, old: str, new: str, place: str, message: str) -> None:
    with pytest.raises(RunFileError) as raised:
        rendered(tmp_path, old, new)
    found = [(each.place or "", each.message) for each in raised.value.problems]
    assert any(message in text and where.endswith(place) for where, text in found), raised.value.render()
