"""Files that the roles deliver, against the list that `verify` compares; and nodes that come and go."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainworks.api.deploying import render_stack, write_stack
from trainworks.config.stack import Stack, load_stack
from trainworks.deploy.delivered import AppliedHosts, DeliveredFile, TaskTexts, delivered_files
from trainworks.errors import UsageError

ANSIBLE = Path(sys.executable).with_name("ansible-playbook")
STACKS = ["examples/cluster-demo/stack.yaml", *sorted(map(str, Path("examples/cluster").glob("stack*.yaml")))]
SECRETS = dict.fromkeys(("munge.key", "slurm_database", "exporter_token"), b"drawn\n")
WRITTEN_ON_THE_NODE = {"/etc/logrotate.d/slurm-cluster", "{{ item.item.at }}/{{ item.item.name }}/requirements.lock"}
"""Texts of a node, and what it has only if no package has it there: `diff` alone names their drift."""
OF_A_NODE = {"Rotate the logs of Slurm", "Record it beside the environment", "Keep the account that logs in"}
OF_SECRETS = {
    "Give all nodes the same key",
    "Configure slurmdbd",
    "Give it its token",
    "Let Prometheus read the exporters",
    "Let this machine alone reach it, with a password",
}
WRITERS = [f"ansible.builtin.{name}" for name in ("copy", "template", "blockinfile", "lineinfile", "replace")]
INCLUDES = ("ansible.builtin.include_tasks", "ansible.builtin.import_tasks")
BEFORE = {
    "/etc/hosts": "127.0.0.1 localhost\n127.0.1.1\tgpu1\n",
    "/etc/chrony.conf": "pool 2.rocky.pool.ntp.org iburst\n",
    "/etc/pam.d/sshd": "@include common-account\naccount    include      password-auth\n",
    "/etc/pam.d/common-session": "session required pam_unix.so\nsession\toptional\tpam_systemd.so\n",
    "/etc/pam.d/password-auth": "-session     optional     pam_systemd.so\nsession required pam_unix.so\n",
}
"""Files of a distribution that tasks put lines into."""


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
    names["{{ item.dest }}"] = "/etc/systemd/system/grafana.+"
    pattern = names.get(task["dest"]) or re.sub(r"\\\{\\\{.*?\\\}\\\}", ".+", re.escape(task["dest"]))
    if not re.fullmatch(pattern, file.path):
        return False
    mode = task["mode"].lstrip("0")
    if "ternary" in mode:
        mode = "755" if file.path.endswith(".sh") else "600" if file.path.startswith("/etc/sssd") else "644"
    owner, group = task.get("owner", "root"), task.get("group", "root")
    owner = f"{owner.replace('{{ item.uid }}', 'alice')}:{group.replace('{{ sssd_group }}', 'root')}"
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
        f"{text}kernel_arguments: [iommu=pt]\n"
        "fabric: {link: infiniband, subnet_managers: [login1], devices: [mlx5_0]}\n"
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
        + "firewall: true\n"
    )
    for name in ("site.sh", "site.csh"):
        (tmp_path / "c.d/files/etc/profile.d").mkdir(parents=True, exist_ok=True)
        (tmp_path / "c.d/files/etc/profile.d" / name).write_text("# of the hall\n")
    return [str(tmp_path / f"{name}.yaml") for name in "abc"]


def test_every_file_has_a_task_with_its_mode_and_owner_and_every_task_a_file(rare: list[str]) -> None:
    every = [each for path in [*STACKS, *rare] for host in delivered(path).values() for each in host.values()]
    files, parts = {each for each in every if not each.part}, {each.part for each in every}
    copies = tasks()
    assert [each.path for each in files if not any(fits(task, each) for task in copies)] == []
    assert [task["dest"] for task in copies if not any(fits(task, each) for each in files)] == []
    assert len(parts - {""}) == 6


def redirected(given: list[dict[str, Any]], out: Path, named: Collection[str]) -> list[dict[str, Any]]:
    """Those of some tasks that write a text, below another folder and as this user, and the files of tasks in `named`.

    Files that are copied as they are take half a second each, and have nothing to compare.
    """
    kept = []
    for task in given:
        if task.get("name") in OF_A_NODE | OF_SECRETS or "no_log" in task:
            continue
        own = {key: task[key] for key in ("name", "when", "loop", "loop_control", "vars") if key in task}
        if inner := redirected(task.get("block", []), out, named):
            kept.append(own | {"block": inner})
        for module in {*WRITERS, *INCLUDES}.intersection(task):
            arguments = task[module]
            if module == "ansible.builtin.copy" and "content" not in arguments:
                continue
            if module in WRITERS:
                key = "dest" if "dest" in arguments else "path"
                arguments = {name: arguments[name] for name in arguments if name not in ("owner", "group", "validate")}
                kept.append(own | {module: arguments | {key: f"{out}/{{{{ inventory_hostname }}}}{arguments[key]}"}})
            elif module in INCLUDES and ("{{" in arguments or arguments in named):
                kept.append(own | {module: arguments})
    return kept


def racks_of(folder: Path, system: str) -> Path:
    text = Path("examples/cluster-demo/shapes/two-racks.yaml").read_text().replace("Debian 12", system)
    if system == "Rocky 9":
        text = text.replace('release: "22.05"\n  packages: distribution', 'release: "26.05"')
        text = re.sub("monitoring: .*", "", text).replace(", monitoring]", "]")
    (folder / "stack.yaml").write_text(f"{text}kernel_arguments: [iommu=pt]\n")
    (folder / "stack.d").mkdir()
    (folder / "stack.d/sysctl.yaml").write_text("compute: {vm.swappiness: 1}\nall: {net.core.somaxconn: 4096}\n")
    return folder / "stack.yaml"


@pytest.mark.lane("test-all")
@pytest.mark.skipif(not ANSIBLE.exists(), reason="NOT TESTED: texts of tasks, without Ansible: trainworks[cluster]")
@pytest.mark.parametrize("system", ["Debian 12", "Rocky 9"])
def test_ansible_writes_what_verify_compares(tmp_path: Path, system: str) -> None:
    project, out, manager = tmp_path / "project", tmp_path / "out", "apt" if system == "Debian 12" else "dnf"
    files = write_stack(racks_of(tmp_path, system), project)
    every = TaskTexts(files, manager=manager).of("gpu1")
    wanted = [each for each in every if each.text not in files.values()]
    for folder in project.glob("roles/*/tasks"):
        read = {path: yaml.safe_load(path.read_text()) or [] for path in folder.iterdir()}
        named = {path.name for path, each in read.items() if redirected(each, out, ())}
        for path, each in read.items():
            path.write_text(yaml.safe_dump(redirected(each, out, named)))
    plays = yaml.safe_load(files["site.yaml"])
    facts = {"ansible.builtin.set_fact": {"pkg_mgr": manager, "cacheable": True}}
    for play in plays:
        play |= {"become": False, "connection": "local", "gather_facts": False, "pre_tasks": [facts]}
        play["vars"] = {"ansible_python_interpreter": sys.executable}
    (project / "site.yaml").write_text(yaml.safe_dump(plays))
    for each in wanted:
        path = out / f"gpu1{each.path}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if each.path in BEFORE:
            path.write_text(BEFORE[each.path])
    command = [ANSIBLE, "site.yaml", "--limit", "gpu1"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    written = {f"/{path.relative_to(out / 'gpu1')}": path for path in (out / "gpu1").rglob("*") if path.is_file()}
    assert {*written} == {each.path for each in wanted}
    assert (
        len([each for each in wanted if each.part]) == (5 if manager == "apt" else 6)
        and "/home/alice/.ssh/authorized_keys" in written
    )
    for each in wanted:
        path = written[each.path]
        shown = subprocess.run(each.selects, input=path.read_text(), capture_output=True, text=True, check=False)
        assert shown.stdout == each.text, each.name
        assert each.mode in (None, f"{path.stat().st_mode & 0o7777:o}"), each.name


@pytest.mark.lane("test-all")
@pytest.mark.skipif(not ANSIBLE.exists(), reason="NOT TESTED: loops of tasks, without Ansible: trainworks[cluster]")
def test_ansible_takes_what_tasks_and_handlers_go_through(tmp_path: Path) -> None:
    write_stack("examples/cluster-demo/shapes/roce.yaml", tmp_path)
    files = [*tmp_path.glob("roles/*/tasks/*.yaml"), *tmp_path.glob("roles/*/handlers/*.yaml")]
    tasks = [task for path in files for task in yaml.safe_load(path.read_text()) or []]
    tasks += [inner for task in tasks for inner in task.get("block", ())]
    loops = {task["loop"] for task in tasks if isinstance(task.get("loop"), str)}
    rails = "{{ range(fabric_rails) | list }}"
    steps = [
        {"name": loop.strip("{} "), "ansible.builtin.debug": {"msg": "{{ item }}"}, "loop": loop, "ignore_errors": True}
        for loop in sorted(loops)
    ]
    play = {"hosts": "gpu1", "gather_facts": False, "connection": "local", "tasks": steps}
    (tmp_path / "loops.yaml").write_text(yaml.safe_dump([play]))
    done = subprocess.run([ANSIBLE, "loops.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert rails in loops and "item=1" in said, said
    wrong = [line for line in said.splitlines() if ("loop" in line and "must" in line) or "unsupported" in line]
    assert not wrong


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


@pytest.mark.lane("test-all")
@pytest.mark.skipif(
    not ANSIBLE.exists(), reason="NOT TESTED: a check of the system, without Ansible: trainworks[cluster]"
)
def test_a_host_with_another_operating_system_is_refused_before_a_change(tmp_path: Path) -> None:
    files = write_stack("examples/cluster-demo/shapes/roce.yaml", tmp_path)
    first = yaml.safe_load(files["site.yaml"])[0]
    first |= {"become": False, "connection": "local", "gather_facts": False, "roles": []}
    first["pre_tasks"] = [task for task in first["pre_tasks"] if "operating system" in task["name"]]
    first["vars"] = {"ansible_python_interpreter": sys.executable}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump([first]))
    shell = '. /etc/os-release; echo "$ID" "${VERSION_ID%%.*}"'
    here = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout.strip()
    for system, code in ((here.upper(), 0), ("Plan9 4", 2)):
        command = [ANSIBLE, "site.yaml", "--limit", "gpu1", "--check", "-e", json.dumps({"operating_system": system})]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
    assert "`os` of the stack file says Plan9 4" in done.stdout
