"""Homes of accounts: no mount of a stack hides the one that Ansible logs in as, and shared ones are created once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trainworks.api.deploying import check_stack, render_stack
from trainworks.errors import RunFileError

ROCE = Path("examples/cluster/stack-roce.yaml")
ANSIBLE = Path(sys.executable).with_name("ansible-playbook")
NAMESPACE = """set -e
mount -t tmpfs layers "$1"
for folder in /etc /var/lib /home /srv; do
    mine=$1$(tr / - <<< "$folder")
    mkdir -p "$mine"/{upper,work}
    mount -t overlay layer -o "lowerdir=$folder,upperdir=$mine/upper,workdir=$mine/work" "$folder"
done
useradd --create-home --shell /bin/bash --uid 48211 keeper
install -d -o keeper -g keeper -m 700 /home/keeper/.ssh
install -o keeper -g keeper -m 600 "$2/key" /home/keeper/.ssh/authorized_keys
cd "$2"
for turn in 1 2; do "$3" -i localhost, -e ansible_python_interpreter=/usr/bin/python3 play.yaml > "turn$turn"; done
getent passwd keeper > passwd
stat --format '%a %U %n' /var/lib/keeper /var/lib/keeper/.ssh /var/lib/keeper/.ssh/authorized_keys \
    /srv/alice /srv/alice/.ssh /srv/alice/.ssh/authorized_keys > modes
ls -d /home/alice > local-home || true
"""
"""A machine of its own for accounts: what is written to these folders is gone with the mount namespace."""


def roce(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    """The example with NFS at /home, with other texts."""
    text = ROCE.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (tmp_path / "stack.yaml").write_text(text)
    return tmp_path / "stack.yaml"


def test_cloud_init_puts_the_administrator_where_no_mount_of_the_stack_is(tmp_path: Path) -> None:
    files = render_stack(roce(tmp_path))
    (user,) = yaml.safe_load(files["cloud-init/user-data.yaml"])["users"]
    variables = yaml.safe_load(files["group_vars/all.yaml"])
    assert user["homedir"] == variables["admin_home"] == "/var/lib/deploy"
    assert "/home" in variables["mount_folders"]
    assert not any(f"{user['homedir']}/".startswith(f"{at}/") for at in variables["mount_folders"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("admin_keys:", "admin: ubuntu\nadmin_home: /home/ubuntu\nadmin_keys:"),
        ("admin_keys:", "admin_home: /home\nadmin_keys:"),
        ("at: /home,", "at: /var/lib,"),
        ("at: /home,", "at: /var/lib/,"),
        ("at: /home,", "at: //var/./lib,"),
        ("at: /home,", "at: /,"),
        ("at: /local}", "at: /var/lib/deploy}"),
    ],
)
def test_check_refuses_a_mount_that_hides_the_key_of_the_account(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(RunFileError, match="and hides its keys: no playbook would reach a node again"):
        check_stack(roce(tmp_path, (old, new)))


@pytest.mark.parametrize(
    ("mount", "homes"),
    [
        ("{kind: nfs, at: /home, server: store1, export: /export/home}", ("/export/home", ["store1"], True)),
        ("{kind: nfs, at: /home/, server: store1, export: /export/home}", ("/export/home", ["store1"], True)),
        ("{kind: nfs, at: /home, server: filer9, export: /vol/home}", ("/vol/home", [], True)),
        ("{kind: beegfs, at: /home, server: mgmt1}", ("/home", ["login1"], True)),
        ("{kind: nfs, at: /homes, server: store1, export: /export/home}", ("/home", 18, False)),
    ],
)
def test_homes_are_created_by_a_host_whose_root_may(
    tmp_path: Path, mount: str, homes: tuple[str, list[str] | int, bool]
) -> None:
    stack = roce(tmp_path, ("{kind: nfs, at: /home, server: store1, export: /export/home}", mount))
    found = yaml.safe_load(render_stack(stack)["group_vars/all.yaml"])["homes"]
    hosts = found["hosts"] if isinstance(homes[1], list) else len(found["hosts"])
    assert (found["at"], hosts, found["shared"]) == homes


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_node_with_the_account_below_the_mount_keeps_its_key_and_gets_homes_once(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name, text in render_stack(roce(tmp_path)).items():
        if name.startswith("roles/") and "/tasks/" in name:
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "vars": {
            "admin": "keeper",
            "admin_home": "/var/lib/keeper",
            "mount_folders": ["/shared", "/home"],
            "homes": {"at": "/srv", "hosts": ["localhost"], "shared": True},
            "users": [{"name": "alice", "uid": 48212, "keys_of_login": ["ssh-ed25519 BBBB alice"]}],
        },
        "tasks": [{"ansible.builtin.import_role": {"name": "base", "tasks_from": "account.yaml"}}],
        "roles": [],
    }
    play["tasks"].append({"ansible.builtin.import_role": {"name": "users"}})  # type: ignore[attr-defined]
    (project / "play.yaml").write_text(yaml.safe_dump([play]))
    (project / "key").write_text("ssh-ed25519 AAAA admin\n")
    (tmp_path / "layers").mkdir()
    command = ["unshare", "--mount", "bash", "-c", NAMESPACE, "bash", tmp_path / "layers", project, ANSIBLE]
    environment = os.environ | {"ANSIBLE_HOME": str(tmp_path / "ansible"), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if "mount:" in done.stderr:
        pytest.skip("this machine does not allow overlays")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "passwd").read_text().split(":")[5:] == ["/var/lib/keeper", "/bin/bash\n"]
    assert (project / "modes").read_text().splitlines() == [
        "700 keeper /var/lib/keeper",
        "700 keeper /var/lib/keeper/.ssh",
        "600 keeper /var/lib/keeper/.ssh/authorized_keys",
        "755 alice /srv/alice",
        "700 alice /srv/alice/.ssh",
        "600 alice /srv/alice/.ssh/authorized_keys",
    ]
    assert (project / "local-home").read_text() == ""
    assert "changed=0" in (project / "turn2").read_text()
