"""What is rendered for each distribution, held against the programs that read it there, as Debian 12 has them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainworks.api.deploying import render_stack, write_stack
from trainworks.config.stack import load_stack
from trainworks.deploy.delivered import DeliveredFile, delivered_files

ANSIBLE = Path(sys.executable).with_name("ansible-playbook")
SYSTEMS = [
    yaml.safe_load(file.read_text())["name"] for file in sorted(Path("src/trainworks/deploy/systems").glob("*.yaml"))
]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqfRZ1sG9bU0b1yk0yUu6cK0Ypt2k9fPxJmI3xW5c1e alice@hall-b"


def needs(program: str, package: str) -> Any:
    """Skip a test where a program is missing, and say so."""
    reason = f"NOT TESTED: what {program} says; needs it: apt-get install {package}"
    return pytest.mark.skipif(shutil.which(program) is None, reason=reason)


def stack_of(system: str, folder: Path) -> Path:
    """Four hosts over RoCE, with all that a distribution has a say in."""
    text = Path("examples/cluster/stack-roce.yaml").read_text().partition("machine_image:")[0]
    changes = {
        "os: Ubuntu 24.04": f"os: {system}",
        "gpu[01-16]": "gpu[01-02]",
        "driver: doca-ofed\n  doca: ": "driver: inbox  # ",
        "  kernel: ": "  # ",
        "slurm:": "slurm:\n  adopt: true",
        "account: vision,": f"account: vision, keys: [{KEY}],",
        ", monitoring]": "]",
    }
    if system.startswith("openEuler"):
        changes['gpu: {driver: "580"}\n'] = ""
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    (folder / "stack.yaml").write_text(f"{text}firewall: true\nkernel_arguments: [iommu=pt]\n")
    return folder / "stack.yaml"


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, str], list[DeliveredFile]]]:
    """Project, and files of all hosts, by distribution."""
    found = {}
    for system in SYSTEMS:
        path = stack_of(system, tmp_path_factory.mktemp("family"))
        files = render_stack(path)
        by_host = delivered_files(load_stack(path)[0], files, {})
        found[system] = (files, [each for host in by_host.values() for each in host.values()])
    return found


def texts(families: dict[str, tuple[dict[str, str], list[DeliveredFile]]], start: str) -> dict[str, set[str]]:
    """Texts of the paths with this start, each once, over all hosts of all distributions."""
    found: dict[str, set[str]] = {}
    for _, files in families.values():
        for each in files:
            if each.path.startswith(start) and isinstance(each.text, str):
                found.setdefault(each.path, set()).add(each.text)
    return found


def run(*command: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def test_each_distribution_has_the_files_of_its_firewall_network_and_boot_menu(families) -> None:
    for system, (files, delivered) in families.items():
        paths, variables = {each.path for each in delivered}, yaml.safe_load(files["group_vars/all.yaml"])
        is_family = variables["selinux"]
        assert is_family is not system.startswith(("Debian", "Ubuntu")), system
        for path, wanted in (
            ("/etc/firewalld/zones/cluster.xml", is_family),
            ("/etc/nftables.conf", not is_family),
            ("/etc/NetworkManager/system-connections/50-rail0.nmconnection", is_family),
            ("/etc/systemd/network/50-rail0.network", not is_family),
            ("/etc/selinux/cluster_slurm_adopt.cil", is_family),
            ("/etc/default/grub.d/90-cluster.cfg", not is_family),
            ("/etc/dnf/plugins/versionlock.list", is_family),
            ("/etc/apt/preferences.d/slurm", not is_family),
            ("/export/home/alice/.ssh/authorized_keys", True),
        ):
            assert (path in paths) is wanted, (system, path)


def test_the_playbooks_and_units_of_every_distribution_are_the_same(families) -> None:
    """What Ansible and systemd say to those of one, in other tests, holds for all."""

    def is_played(name: str) -> bool:
        return "/tasks/" in name or ("/" not in name and name != "inventory.yaml")

    plays = {tuple((name, files[name]) for name in files if is_played(name)) for files, _ in families.values()}
    assert len(plays) == 1
    assert {path for path, each in texts(families, "/etc/systemd/system/").items() if len(each) > 1} == set()


@pytest.fixture
def zones(families, tmp_path: Path) -> Iterator[Path]:
    """Folders of firewalld, one for each zone that some host gets."""
    zone, peers = texts(families, "/etc/firewalld/").values()
    zone, peers = sorted((zone, peers), key=lambda each: "<zone>" not in min(each))
    assert len(peers) == 1 and len(zone) == 3
    for number, text in enumerate(sorted(zone)):
        root = tmp_path / str(number)
        for path, each in (("zones/cluster.xml", text), ("ipsets/peers.xml", min(peers))):
            (root / path).parent.mkdir(parents=True)
            (root / path).write_text(each)
        shutil.copy("/etc/firewalld/firewalld.conf", root)
    yield tmp_path


def firewall(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    folders = ("--system-config", str(root), "--default-config", "/usr/lib/firewalld")
    return run("firewall-offline-cmd", *folders, *options)


@needs("firewall-offline-cmd", "firewalld")
def test_firewalld_reads_the_zone_of_every_kind_of_host(zones: Path) -> None:
    listed = []
    for root in sorted(zones.iterdir()):
        done = firewall(root, "--check-config")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        listed.append(firewall(root, "--zone", "cluster", "--list-all").stdout)
    (compute,) = [each for each in listed if 'rule family="ipv4" source ipset="peers" accept' in each]
    assert "sources: 10.20.0.0/16 172.20.0.0/22" in compute and "6818/tcp" in compute and "services: ssh" in compute
    assert any("60001-63000/tcp" in each and "123/udp" in each for each in listed)
    wrong = root / "zones/cluster.xml"
    wrong.write_text(wrong.read_text().replace('protocol="tcp"', 'protocol="tpc"'))
    assert firewall(root, "--check-config").returncode != 0


@needs("nmcli", "network-manager")
def test_network_manager_keeps_every_line_of_a_rail(families) -> None:
    connections = texts(families, "/etc/NetworkManager/")
    assert len(connections) == 8
    for text in connections["/etc/NetworkManager/system-connections/50-rail7.nmconnection"]:
        done = run("nmcli", "--offline", "connection", "modify", "connection.autoconnect", "yes", text=text)
        assert done.returncode == 0, done.stderr
        given = {line for line in text.splitlines() if line and not line.startswith("#")}
        assert given <= {*done.stdout.splitlines()}, "it drops what it does not know"


POLICY = """(handleunknown deny) (mls true) (policycap open_perms)
(class process (transition)) (class dir (search read)) (class sock_file (write)) (class unix_stream_socket (connectto))
(classorder (process dir sock_file unix_stream_socket))
(sensitivity s0) (sensitivityorder (s0)) (category c0) (categoryorder (c0)) (sensitivitycategory s0 (c0))
(user u) (role r) (userrole u r) (level low (s0)) (userlevel u low) (userrange u (low low))
(sid kernel) (sidorder (kernel)) (sidcontext kernel (u r sshd_t (low low)))
"""
TYPES = ("sshd_t", "initrc_var_run_t", "unconfined_service_t", "unconfined_t", "var_spool_t")


@needs("secilc", "secilc")
def test_the_compiler_of_selinux_takes_the_rules_of_logins(families, tmp_path: Path) -> None:
    """The types are named here, since the policy of these distributions is not on this one."""
    (text,) = texts(families, "/etc/selinux/")["/etc/selinux/cluster_slurm_adopt.cil"]
    (tmp_path / "rules.cil").write_text(text)
    for names, code in ((TYPES, 0), (TYPES[:-1], 1)):
        (tmp_path / "base.cil").write_text(POLICY + "".join(f"(type {name}) (roletype r {name})\n" for name in names))
        command = ["secilc", "--output", tmp_path / "policy", "--filecontext", tmp_path / "contexts"]
        done = run(*command, tmp_path / "base.cil", tmp_path / "rules.cil")
        assert (done.returncode != 0) is bool(code), done.stdout + done.stderr


SPEC = """
Name: {name}
Epoch: {epoch}
Version: {version}
Release: 1
Summary: s
License: GPL
BuildArch: noarch
%description
%files
"""
PART = """
%package -n {part}
Summary: s
Requires: {name} = {epoch}:{version}-1
%description -n {part}
%files -n {part}
"""
OF_SLURM = [f"slurm-{part}" for part in ("slurmctld", "slurmd", "slurmdbd", "pam_slurm")]
OF_DRIVER = ["nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-fabric-manager"]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A root folder of dnf, with a repository of four releases of Slurm and two of the driver."""
    for name, epoch, parts, versions in (
        ("slurm", 0, OF_SLURM, ("25.05.3", "26.05.1", "26.05.2", "26.11.0")),
        ("nvidia-driver", 3, OF_DRIVER, ("580.95.05", "580.126.18")),
    ):
        for version in versions:
            texts = [SPEC, *(PART.replace("{part}", part) for part in parts)]
            spec = "".join(texts).format(name=name, epoch=epoch, version=version)
            (tmp_path / "a.spec").write_text(spec)
            defined = ("--define", f"_topdir {tmp_path}/build", "--define", f"_rpmdir {tmp_path}/repository")
            done = run("rpmbuild", "-bb", "--quiet", *defined, tmp_path / "a.spec")
            assert done.returncode == 0, done.stderr
    assert run("createrepo_c", "--quiet", tmp_path / "repository").returncode == 0
    plugins = tmp_path / "root/etc/dnf/plugins"
    plugins.mkdir(parents=True)
    (plugins / "versionlock.conf").write_text(f"[main]\nenabled = 1\nlocklist = {plugins}/versionlock.list\n")
    (plugins / "versionlock.list").write_text("# of the administrator\n")
    (tmp_path / "dnf.conf").write_text(
        f"[main]\nbest=True\npluginconfpath={plugins}\nreposdir={tmp_path}/none\ncachedir={tmp_path}/cache\nlogdir={tmp_path}\n"
        f"[local]\nname=local\nbaseurl=file://{tmp_path}/repository\ngpgcheck=0\n"
    )
    return tmp_path


def tasks_of(text: str, machine: Path, names: Collection[str]) -> list[dict[str, Any]]:
    """Tasks of a playbook or a role by name, in the root folder."""
    read = yaml.safe_load(
        text.replace("/etc/dnf", f"{machine}/root/etc/dnf").replace("rpm --query", f"rpm --root {machine}/root --query")
    )
    return [task for task in read[0].get("tasks", read) if task["name"] in names]


@pytest.mark.root
@pytest.mark.lane("test-all")
@needs("dnf", "dnf dnf-plugins-core")
@needs("createrepo_c", "createrepo-c")
@needs("rpmbuild", "rpm")
@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: what dnf installs; needs root for its root folder")
def test_dnf_installs_the_release_of_slurm_and_of_the_driver_and_goes_back(machine: Path) -> None:
    files = write_stack(stack_of("Rocky 9", machine), machine / "project")
    lock = "Lock the release of Slurm"
    apply = tasks_of(files["roles/scheduler/tasks/main.yaml"], machine, [lock, "Install Slurm"])
    driver = tasks_of(files["roles/gpu/tasks/main.yaml"], machine, ["Look for the driver", "Install the driver"])
    names = (lock, "Install the release of Slurm", "Install the packages of before")
    upgrade = tasks_of(files["upgrade.yaml"], machine, names)
    variables = yaml.safe_load(files["group_vars/nodes_gpu.yaml"])["gpu_driver_packages"][:2]
    of_version = {
        version: {"gpu_driver_packages": [name.replace("580.*", f"{version}-*") for name in variables]}
        for version in ("580.95.05", "580.126.18")
    }
    before = ["slurm-25.05.3-1", "slurm-slurmd-25.05.3-1"]
    step = {"parts": ["Slurm"], "back": False, "name": "u", "wait_s": 0, "packages": {}, "pins": {}}
    back = step | {"back": True, "packages": {"gpu01": before}, "pins": {"gpu01": "25.05.3-1"}}
    # a new node; another release in the stack, and a newer driver of the branch in the repository; upgrade; way back
    plays = [
        (apply + driver, {"slurm_release": "25.05", **of_version["580.95.05"]}),
        (apply + driver, {"gpu_driver_packages": variables}),
        (upgrade + driver, {"upgrade": step, **of_version["580.126.18"]}),
        (upgrade + driver, {"upgrade": back, **of_version["580.95.05"]}),
    ]
    defaults = {"installroot": f"{machine}/root", "conf_file": f"{machine}/dnf.conf", "releasever": "9"}
    written = [
        {
            "hosts": "gpu01",
            "connection": "local",
            "gather_facts": False,
            "module_defaults": {"ansible.builtin.dnf": defaults},
            "vars": {"ansible_python_interpreter": "/usr/bin/python3", **values},
            "pre_tasks": [{"ansible.builtin.set_fact": {"pkg_mgr": "dnf", "cacheable": True}}],
            "tasks": [{k: v for k, v in task.items() if k != "notify"} for task in tasks],
            "post_tasks": [
                {"ansible.builtin.shell": f"rpm --root {machine}/root --query --all | sort > {machine}/{number}"}
            ],
        }
        for number, (tasks, values) in enumerate(plays)
    ]
    (machine / "project/families.yaml").write_text(yaml.safe_dump(written))
    done = subprocess.run(
        [ANSIBLE, "families.yaml"], cwd=machine / "project", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    release = [(machine / str(number)).read_text().replace(".noarch", "").splitlines() for number in range(4)]
    older = sorted([*before, *(f"{name}-580.95.05-1" for name in ("nvidia-driver", OF_DRIVER[0]))])
    newer = [name.replace("25.05.3", "26.05.2").replace("580.95.05", "580.126.18") for name in older]
    assert release == [older, older, newer, older]
