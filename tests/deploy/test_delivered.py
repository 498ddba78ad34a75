"""Files that the roles deliver, against the list that `verify` compares; and nodes that come and go."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trainworks.api.deploying import render_stack, write_stack
from trainworks.config.stack import Stack, load_stack
from trainworks.deploy.delivered import AppliedHosts, DeliveredFile, TaskTexts, delivered_files
from trainworks.errors import UsageError

ANSIBLE = Path(sys.executable).with_name("ansible-playbook")
STACKS = ["examples/cluster-demo/stack.yaml", *sorted(map(str, Path("examples/cluster").glob("stack*.yaml")))]
SECRETS = dict.fromkeys(("munge.key", "slurm_database", "exporter_token"), b"drawn\n")
WRITTEN_ON_THE_NODE = {
    "/etc/default/grub.d/90-cluster.cfg",
    "/etc/firewalld/{{ item }}",
    "/etc/logrotate.d/slurm-cluster",
    "/etc/apt/preferences.d/slurm",
    "/etc/apt/preferences.d/nvidia-driver",
    "/etc/udev/rules.d/70-amdgpu.rules",
    "/etc/default/{{ item.name }}",
    "{{ item.dest }}",
    "{{ item.item.at }}/{{ item.item.name }}/requirements.lock",
    "{{ homes.at }}/{{ item.name }}/.ssh/authorized_keys",
}
"""Texts of a user or of a node, those that follow from its facts, and what it has only if no package has it there.

`diff` alone names their drift.
"""


def tasks() -> list[dict[str, str]]:
    """Arguments of every task that copies a file, or fills in a template."""
    found: list[dict[str, str]] = []

    def walk(node: object) -> None:
        if isinstance(node, list):
            for each in node:
                walk(each)
        elif isinstance(node, dict):
            found.extend(node[name] for name in ("ansible.builtin.copy", "ansible.builtin.template") if name in node)
            walk([value for value in node.values() if isinstance(value, list)])

    for path in Path("src/trainworks/deploy/ansible/roles").glob("*/tasks/*.yaml"):
        walk(yaml.safe_load(path.read_text()))
    return [task for task in found if task["dest"] not in WRITTEN_ON_THE_NODE]


def fits(task: dict[str, str], file: DeliveredFile) -> bool:
    """Whether a task delivers a file, with this mode and owner."""
    names = {"{{ exports_file }}": "/etc/exports.d/.+", "{{ item.path }}": "/etc/(ceph|beegfs)/.+(secret|auth)"}
    names |= {"{{ item }}": "/etc/profile.d/site.(sh|csh)", "{{ paths.opensm }}/{{ item }}": "/etc/opensm/.+"}
    pattern = names.get(task["dest"]) or re.sub(r"\\\{\\\{.*?\\\}\\\}", ".+", re.escape(task["dest"]))
    if not re.fullmatch(pattern, file.path):
        return False
    mode = task["mode"].lstrip("0")
    if "ternary" in mode:
        mode = "755" if file.path.endswith(".sh") else "600" if file.path.startswith("/etc/sssd") else "644"
    owner = f"{task.get('owner', 'root')}:{task.get('group', 'root').replace('{{ sssd_group }}', 'root')}"
    return (mode, owner) == (file.mode, file.owner)


def delivered(path: str) -> dict[str, dict[str, DeliveredFile]]:
    return delivered_files(load_stack(Path(path))[0], render_stack(path), SECRETS)


@pytest.fixture
def rare(tmp_path: Path) -> list[str]:
    """Stacks with what the examples have not.

    These are GPUs that need peermem, OpenSM, CephFS, BeeGFS, Grafana, racks that are one NVLink domain, rails of
    NetworkManager, SELinux, drop-ins, and the authority of a directory.
    """
    text = Path("examples/cluster/stack.yaml").read_text()
    text = text.replace(
        "mounts:",
        "mounts:\n  - {kind: beegfs, at: /work, server: store1}\n"
        "  - {kind: cephfs, at: /c, monitors: [store1], file_system: f, client: c}",
    )
    text = text.replace('hook"}', 'hook", grafana: true}')
    authority = "-----BEGIN CERTIFICATE-----\\nMIIB\\n-----END CERTIFICATE-----"
    text += f'directory: {{servers: [ldap1], base: "dc=a", ca: "{authority}"}}\n'
    (tmp_path / "a.yaml").write_text(
        text + "fabric: {link: infiniband, subnet_managers: [login1], devices: [mlx5_0]}\n"
    )
    racks = text.replace("gpu[01-04]", "gpu[01-18]").replace("DGX H100", "GB200 NVL72 tray")
    (tmp_path / "b.yaml").write_text(
        racks.replace(
            "tray}", "tray, hardware: {sockets: 2, cores_per_socket: 72, threads_per_core: 1, memory: 960 GiB}}"
        )
    )
    roce = Path("examples/cluster/stack-roce.yaml").read_text().partition("machine_image:")[0]
    roce = roce.replace("os: Ubuntu 24.04", "os: Rocky 9").replace('kernel: "6.8"', 'kernel: "5.14"')
    (tmp_path / "c.yaml").write_text(
        roce.replace("slurm:", 'slurm:\n  adopt: true\n  pyxis: "26.05"').replace("h200", "V100-SXM-32GB")
    )
    for name in ("site.sh", "site.csh"):
        (tmp_path / "c.d/files/etc/profile.d").mkdir(parents=True, exist_ok=True)
        (tmp_path / "c.d/files/etc/profile.d" / name).write_text("# of the hall\n")
    return [str(tmp_path / f"{name}.yaml") for name in "abc"]


def test_every_file_has_a_task_with_its_mode_and_owner_and_every_task_a_file(rare: list[str]) -> None:
    files = {each for path in [*STACKS, *rare] for host in delivered(path).values() for each in host.values()}
    every = tasks()
    assert [each.path for each in files if not any(fits(task, each) for task in every)] == []
    assert [task["dest"] for task in every if not any(fits(task, each) for each in files)] == []


@pytest.mark.lane("test-all")
@pytest.mark.skipif(not ANSIBLE.exists(), reason="NOT TESTED: texts of tasks, without Ansible: trainworks[cluster]")
def test_ansible_writes_the_texts_of_tasks_as_they_are_here(tmp_path: Path) -> None:
    shutil.copy("examples/cluster-demo/shapes/two-racks.yaml", tmp_path / "stack.yaml")
    (tmp_path / "stack.d").mkdir()
    (tmp_path / "stack.d/sysctl.yaml").write_text("compute: {vm.swappiness: 1}\nall: {net.core.somaxconn: 4096}\n")
    project, out = tmp_path / "project", tmp_path / "out"
    files = write_stack(tmp_path / "stack.yaml", project)
    wanted = {host: {each.path: each for each in TaskTexts(files).of(host)} for host in ("gpu1", "store2")}
    steps = []
    for task in tasks():
        path, is_template = task["dest"], "src" in task
        if any(path in texts for texts in wanted.values()):
            source = {"src": f"roles/firewall/templates/{task['src']}"} if is_template else {"content": task["content"]}
            place = f"{out}/{{{{ inventory_hostname }}}}{path.replace('/', ':')}"
            steps.append({f"ansible.builtin.{'template' if is_template else 'copy'}": {"dest": place, **source}})
    play = {"hosts": ":".join(wanted), "connection": "local", "gather_facts": False, "tasks": steps}
    play["vars"] = {"ansible_python_interpreter": sys.executable}
    (project / "texts.yaml").write_text(yaml.safe_dump([play]))
    out.mkdir()
    done = subprocess.run([ANSIBLE, "texts.yaml"], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path for texts in wanted.values() for path in texts} >= {
        "/etc/nftables.conf",
        "/etc/sysctl.d/90-cluster.conf",
    }
    for host, texts in wanted.items():
        for path, each in texts.items():
            assert (out / f"{host}{path.replace('/', ':')}").read_text() == each.text, (host, path)


def test_files_go_to_the_hosts_of_their_roles() -> None:
    found = delivered("examples/cluster/stack.yaml")
    hosts = {path: [host for host in found if path in found[host]] for each in found.values() for path in each}
    nodes = [f"gpu0{number}" for number in range(1, 5)]
    assert hosts["/etc/slurm/slurm.conf"] == ["login1", *nodes] == hosts["/etc/munge/munge.key"]
    assert hosts["/etc/slurm/slurmdbd.conf"] == ["login1"] == hosts["/etc/prometheus/prometheus.yml"]
    assert hosts["/etc/exports.d/hall-a.exports"] == ["store1"]
    assert hosts["/etc/systemd/system/shared.mount"] == ["login1", *nodes]
    assert "/etc/slurm/accounts.sh" not in hosts


def test_secrets_are_compared_as_the_roles_write_them_and_their_mode_without_them() -> None:
    stack, files = load_stack(Path(STACKS[0]))[0], render_stack(STACKS[0])
    host = delivered_files(stack, files, SECRETS)["login1"]
    assert host["/etc/munge/munge.key"].text == b"drawn"
    assert host["/etc/trainworks/exporter.token"].text == b"drawn\n"
    assert "StoragePass=drawn\n" in str(host["/etc/slurm/slurmdbd.conf"].text)
    unknown = delivered_files(stack, files, {})["login1"]["/etc/slurm/slurmdbd.conf"]
    assert unknown.difference("ab 600 slurm:slurm") == ("", "")
    assert unknown.difference("ab 644 slurm:slurm") == ("mode 644", "mode 600")


def changed(hosts: str, more: str = "") -> Stack:
    text = Path("examples/cluster/stack.yaml").read_text().replace("gpu[01-04]", hosts)
    return Stack.model_validate(yaml.safe_load(text + more))


@pytest.fixture
def applied(tmp_path: Path) -> AppliedHosts:
    """The record of an apply of the example."""
    stack = changed("gpu[01-04]")
    AppliedHosts({}).write(tmp_path, stack, new=[name for group in stack.nodes for name in group.names])
    return AppliedHosts.read(tmp_path)


def test_a_change_of_nodes_that_the_stack_says_is_accepted(applied: AppliedHosts) -> None:
    applied.check_change(changed("gpu[01-05]"), "add", ["gpu05"])
    applied.check_change(changed("gpu[01-03]"), "remove", ["gpu04"])
    applied.check_change(changed("gpu[01-04]"), "replace", ["gpu02"])


@pytest.mark.parametrize(
    ("stack", "step", "names", "message"),
    [
        (changed("gpu[01-04]"), "add", ["gpu05"], "it has the nodes of the last apply"),
        (changed("gpu[01-06]"), "add", ["gpu05"], "it adds gpu05, gpu06"),
        (changed("gpu[01-05]"), "remove", ["gpu04"], "it adds gpu05"),
        (changed("gpu[02-05]"), "remove", ["gpu01"], "it adds gpu05 and removes gpu01"),
        (changed("gpu[01-04]"), "replace", ["gpu09"], "it has the nodes of the last apply"),
        (changed("gpu[01-04]"), "replace", [], "it has the nodes"),
        (changed("gpu[01-04]"), "replace", ["login1"], "login1 has other roles than `compute`"),
        (changed("gpu[01-05]", "admin: operator\n"), "add", ["gpu05"], "beside its nodes"),
    ],
)
def test_another_change_is_refused(
    applied: AppliedHosts, stack: Stack, step: str, names: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        applied.check_change(stack, step, names)


def test_before_the_first_apply_nothing_can_be_changed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not applied yet"):
        AppliedHosts.read(tmp_path).check_change(changed("gpu[01-05]"), "add", ["gpu05"])
