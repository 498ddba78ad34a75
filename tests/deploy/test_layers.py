"""An administrator's own layers survive a render, need no change of the package, and are refused where they clash."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from typer.testing import CliRunner

from trainworks.api.deploying import check_stack, render_stack, write_stack
from trainworks.cli.app import app
from trainworks.config.stack import load_stack
from trainworks.deploy.delivered import DeliveredFile
from trainworks.deploy.layers import MANIFEST, operating_system
from trainworks.deploy.playbook import Answer
from trainworks.deploy.verification import probe, services_of, verify
from trainworks.errors import RunFileError, UsageError

EXAMPLE = Path("examples/cluster/stack.yaml")
ROCE = Path("examples/cluster/stack-roce.yaml")
SYSTEMS = Path("src/trainworks/deploy/systems")
PROGRAMS = Path(sys.executable).parent
FIREWALL = Path("roles/firewall/templates")
NFTABLES = FIREWALL / "nftables.conf.j2"
NO_FILES: dict[str, dict[str, DeliveredFile]] = {"gpu01": {}}
LAYERS = {
    "vars.yaml": "admin_home: /srv/deploy\nservices: {time: ntpd}\n",
    "packages.yaml": '"gpu[01-04]": [nvtop]\nall: [htop]\n',
    "sysctl.yaml": "all: {net.core.somaxconn: 4096}\ngpu02: {vm.swappiness: 1}\n",
    "roles.yaml": "motd: {hosts: login, before: storage}\nburnin: {hosts: 'gpu[01-04]', after: gpu}\n",
    "roles/motd/tasks/main.yaml": "- name: Greet\n  ansible.builtin.debug:\n    msg: hall A\n",
    "roles/burnin/tasks/main.yaml": "- name: Burn in\n  ansible.builtin.debug:\n    msg: hot\n",
    "slurm.d/long.conf": "# for the large model\nPartitionName=long Nodes=gpu[01-02] MaxTime=30-0 State=UP\n",
    "files/etc/profile.d/site.sh": "export SITE=hall-a\n",
}


def stack_in(folder: Path, layers: dict[str, str], example: Path = EXAMPLE, **changes: str) -> Path:
    """An example with other texts, and layers beside it."""
    text = f"{example.read_text()}firewall: true\n"
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "stack.yaml").write_text(text)
    for name, layer in layers.items():
        (folder / "stack.d" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "stack.d" / name).write_text(layer)
    return folder / "stack.yaml"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of the example with all layers."""
    folder = tmp_path_factory.mktemp("layers")
    write_stack(stack_in(folder, LAYERS), folder / "project")
    return folder / "project"


def variables(project: Path) -> dict[str, object]:
    read: dict[str, object] = yaml.safe_load((project / "group_vars/all.yaml").read_text())
    return read


def test_values_packages_and_parameters_of_the_kernel_come_over_ours(project: Path) -> None:
    found = variables(project)
    assert (found["admin_home"], found["services"]) == ("/srv/deploy", {**found["services"], "time": "ntpd"})  # type: ignore[dict-item]
    assert found["further_packages"] == {**{f"gpu0{number}": ["nvtop"] for number in range(1, 5)}, "all": ["htop"]}
    assert found["sysctl"] == {
        "all": {"net.core.somaxconn": "4096"},
        "compute": {"-kernel.numa_balancing": "0"},
        "gpu02": {"vm.swappiness": "1"},
    }


def test_a_partition_follows_our_lines_under_the_name_of_its_file(project: Path) -> None:
    conf = (project / "roles/scheduler/files/slurm.conf").read_text()
    ours, own = conf.split("# from stack.d/")
    assert own.splitlines()[0] == "slurm.d/long.conf"
    assert "PartitionName=long" in own and "PartitionName=train" in ours


def test_groups_keep_their_files_and_partitions_beside_layers(tmp_path: Path) -> None:
    layers = {
        "vars.yaml": "gpu_driver_version: 580.126.20-*\n",
        "slurm.d/long.conf": "PartitionName=long Nodes=gpu1 MaxTime=30-0\n",
    }
    files = render_stack(stack_in(tmp_path, layers, Path("examples/cluster/stack-groups.yaml")))
    groups = {name: yaml.safe_load(files[f"group_vars/nodes_{name}.yaml"]) for name in ("h100", "a100", "cpu")}
    versions = {name: found.get("gpu_driver_version") for name, found in groups.items()}
    assert versions == {"h100": "580.126.20-*", "a100": "580.126.20-*", "cpu": None}
    assert yaml.safe_load(files["group_vars/all.yaml"])["gpu_driver_version"] == ""
    assert (
        files["roles/scheduler/files/nodes_h100/health_check.sh"]
        != files["roles/scheduler/files/nodes_cpu/health_check.sh"]
    )
    partitions = re.findall(r"^PartitionName=(\w+)", files["roles/scheduler/files/slurm.conf"], re.MULTILINE)
    assert {"train", "spare", "amd"} <= {*partitions} and partitions[-1] == "long"


def test_roles_of_ones_own_have_a_play_at_their_place(project: Path, tmp_path: Path) -> None:
    plays = yaml.safe_load((project / "site.yaml").read_text())
    order = [role["role"] for play in plays for role in play["roles"]]
    assert order.index("motd") + 1 == order.index("storage")
    assert order.index("gpu") + 1 == order.index("burnin")
    assert next(play["hosts"] for play in plays if play["roles"][0]["role"] == "burnin") == "gpu01,gpu02,gpu03,gpu04"
    environment = os.environ | {"ANSIBLE_HOME": str(tmp_path), "ANSIBLE_NOCOLOR": "1"}
    command = [PROGRAMS / "ansible-playbook", "--syntax-check", "site.yaml"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_drop_in_is_copied_to_its_path(project: Path) -> None:
    assert variables(project)["own_files"] == ["/etc/profile.d/site.sh"]
    assert (project / "roles/base/files/own/etc/profile.d/site.sh").read_text() == "export SITE=hall-a\n"


@pytest.mark.parametrize(
    ("name", "text", "words", "hint"),
    [
        ("package.yaml", "all: [htop]\n", "`package.yaml` is not a layer", "`packages.yaml`"),
        ("vars.yaml", "admin_hom: /srv\n", "no role knows the variable `admin_hom`", "`admin_home`"),
        ("vars.yaml", "mount_folders: /srv\n", "`mount_folders` is a list, and not `/srv`", "a list"),
        ("vars.yaml", "services: {tim: ntpd}\n", "no role knows the variable `tim`", "`time`"),
        ("packages.yaml", "comput: [htop]\n", "`comput` names no hosts", "`compute`"),
        ("packages.yaml", "all: ['htop; reboot']\n", "must be text that matches", ""),
        ("sysctl.yaml", "all: {vm swappiness: 1}\n", "vm swappiness", ""),
        ("roles.yaml", "motd: {hosts: login}\n", "`before` or `after` another one", "after: base"),
        ("roles.yaml", "motd: {after: base}\n", "`motd` has no `tasks/main.yaml`", "in `roles`"),
        ("roles/motd/tasks/main.yaml", "[]\n", "no play has this role", "`roles.yaml`"),
        ("files/etc/slurm/slurm.conf", "x\n", "a role writes /etc/slurm/slurm.conf", "`slurm.d`"),
        ("files/etc/sysctl.d/90-cluster.conf", "x\n", "a role writes /etc/sysctl.d/90-cluster.conf", "`vars.yaml`"),
        (
            "slurm.d/a.conf",
            "\nKillWait=30\n",
            "`KillWait=30` is in slurm.conf already: `KillWait=60`",
            "key of the stack",
        ),
        ("slurm.d/a.conf", "partitionname=TRAIN Nodes=ALL\n", "is in slurm.conf already: `PartitionName=train", ""),
    ],
)
def test_a_layer_that_clashes_is_refused_with_its_place(
    tmp_path: Path, name: str, text: str, words: str, hint: str
) -> None:
    with pytest.raises((UsageError, RunFileError), match=re.escape(words)) as raised:
        render_stack(stack_in(tmp_path, {name: text}))
    errors = raised.value.problems if isinstance(raised.value, RunFileError) else [raised.value]
    assert "stack.d" in str(errors[0].place)
    assert hint in str(errors[0].hint)


def test_a_named_folder_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="folder of layers"):
        render_stack(stack_in(tmp_path, {}, **{"network: 10": "layers: site\nnetwork: 10"}))


# --- distributions


@pytest.mark.parametrize("file", sorted(SYSTEMS.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_stack_is_rendered_for_every_distribution(tmp_path: Path, file: Path) -> None:
    name = yaml.safe_load(file.read_text())["name"]
    assert file.stem == name.lower().replace(" ", "-")
    changes = {"Ubuntu 24.04": name, '"2.14", cuda: "13.0"': '"2.8", cuda: "12.8"'}
    system = operating_system(load_stack(stack_in(tmp_path, {}, **changes))[0])
    if system.manager == "dnf":
        changes |= {'monitoring: {page: "https://pager.example/hook"}': "", ", monitoring]": "]"}
    if name == "Ubuntu 26.04":
        del changes['"2.14", cuda: "13.0"']
    if name.startswith("openEuler"):
        changes['gpu: {driver: "580"} '] = ""
    found = yaml.safe_load(render_stack(stack_in(tmp_path, {}, **changes))["group_vars/all.yaml"])
    assert found["firewall_backend"] == system.firewall
    assert found["services"]["time"] == ("chrony" if system.manager == "apt" else "chronyd")


def test_a_new_distribution_is_a_file_and_nothing_else(tmp_path: Path) -> None:
    text = "name: Hall Linux 3\nlike: Rocky 9\nservices: {time: ntpd}\n"
    text += "packages: {time: [ntp], node_exporter: [ne], prometheus: [p]}\n"
    file = stack_in(tmp_path, {"systems/hall-linux-3.yaml": text}, **{"os: Ubuntu 24.04": "os: Hall Linux 3"})
    unjudged = ("TW751", "Hall Linux 3 is not judged: the catalogue has no row for it")  # its support and its Python
    assert [(finding.rule, finding.message) for finding in check_stack(file).findings] == [unjudged]
    found = yaml.safe_load(render_stack(file)["group_vars/all.yaml"])
    assert (found["time_packages"], found["services"]["time"], found["nfs_server_packages"]) == (
        ["ntp"],
        "ntpd",
        ["nfs-utils"],
    )
    stack, _ = load_stack(file)
    assert {"ntpd", "firewalld"} <= set(services_of(stack, "gpu01"))
    verdicts = verify(
        stack, NO_FILES, {"gpu01": Answer(0, probe_answer("hall linux 3.1", services_of(stack, "gpu01")))}
    )
    assert {each.check: each.outcome for each in verdicts.verdicts}["operating system"] == "pass"


def probe_answer(system: str, services: list[str], **facts: str) -> str:
    """What a compute node prints."""
    keys = {"os": system, "clock": "0.0,Normal", "slurm": "", "munge": "", "kernel": ""}
    keys |= {"iommu": "", "acs": "", "selinux": "Enforcing"} | facts
    lines = [f"{key}\t\t{value}" for key, value in keys.items()] + [f"service\t{name}\tactive" for name in services]
    return "\n".join([*lines, "driver\tnvidia\t580.1", "user\talice\t2001", "user\tbob\t2002"]) + "\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: Hall Linux 3\nlike: Rocy 9\n", "cannot be like `Rocy 9`"),
        ("name: Hall Linux 3\nlike: Hall Linux 3\n", "cannot be like"),
        ("name: Hall Linux 3\nlike: Rocky 9\nservice: {time: ntpd}\n", "unknown key `service`"),
        ("name: Hall Linux 3\nlike: Rocky 9\nfirewall: ipfw\n", "must be one of nftables, firewalld"),
    ],
)
def test_a_wrong_distribution_is_refused_at_its_line(tmp_path: Path, text: str, words: str) -> None:
    file = stack_in(tmp_path, {"systems/hall-linux-3.yaml": text}, **{"os: Ubuntu 24.04": "os: Hall Linux 3"})
    with pytest.raises(RunFileError, match=re.escape(words)) as raised:
        check_stack(file)
    assert "hall-linux-3.yaml:" in str(raised.value.problems[0].place)


def test_packages_that_a_distribution_does_not_have_are_refused_with_the_reason(tmp_path: Path) -> None:
    openeuler = {"Ubuntu 24.04": "openEuler 24.03", 'monitoring: {page: "https://pager.example/hook"}': ""}
    file = stack_in(tmp_path, {}, **openeuler, **{", monitoring]": "]"})
    for command in (check_stack, render_stack):
        with pytest.raises(RunFileError, match=r"openEuler 24\.03: NVIDIA has no repository") as raised:
            command(file)
        assert str(raised.value.problems[0].place).endswith("gpu")


def test_a_distribution_without_a_file_is_refused_with_what_to_write(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    environments = text[text.index("environments:") : text.index("monitoring:")]
    with pytest.raises(RunFileError, match="names of packages of Rocky 8 are not known") as raised:
        check_stack(stack_in(tmp_path, {}, **{"Ubuntu 24.04": "Rocky 8", environments: ""}))
    assert "`systems/rocky-8.yaml`" in str(raised.value.problems[0].hint)


# --- a folder with an earlier render


def test_a_file_that_was_changed_by_hand_is_refused_until_forced(tmp_path: Path) -> None:
    file, into = stack_in(tmp_path, {}), tmp_path / "project"
    write_stack(file, into)
    conf = into / "roles/scheduler/files/slurm.conf"
    conf.write_text(conf.read_text() + "DebugFlags=Gres\n")
    command = ["deploy", "render", str(file), "--into", str(into)]
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, UsageError)
    assert "slurm.conf was changed by hand" in refused.exception.message
    assert "`slurm.d` of stack.d" in str(refused.exception.hint)
    assert "DebugFlags" in conf.read_text()
    assert CliRunner().invoke(app, [*command, "--force"]).exit_code == 0
    assert "DebugFlags" not in conf.read_text()


def test_what_the_stack_does_not_say_any_more_is_removed_and_nothing_else(tmp_path: Path) -> None:
    file, into = stack_in(tmp_path, {}), tmp_path / "project"
    write_stack(file, into)
    (into / "secrets").mkdir()
    (into / "secrets/munge.key").write_text("drawn")
    (into / "notes.txt").write_text("mine")
    assert (into / "roles/storage/files/datasets.mount").exists() and (into / "roles/monitoring/files").exists()
    stack_in(tmp_path, {}, **{'monitoring: {page: "https://pager.example/hook"}': "", ", monitoring]": "]"})
    text = "".join(line for line in file.read_text().splitlines(keepends=True) if "/datasets" not in line)
    file.write_text(text)
    files = write_stack(file, into)
    there = {str(path.relative_to(into)) for path in into.rglob("*") if path.is_file()}
    assert there == {*files, MANIFEST, "secrets/munge.key", "notes.txt"}
    assert not (into / "roles/monitoring/files").exists()


def test_a_render_that_was_stopped_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, into = stack_in(tmp_path, {}), tmp_path / "project"
    write_stack(file, into)
    from trainworks.deploy import layers

    written = []

    def stop(path: Path, text: str, **options: int) -> None:
        if len(written) == 5:
            raise KeyboardInterrupt
        written.append(path)
        path.write_text(text)

    changed = stack_in(tmp_path, {"slurm.d/a.conf": "DebugFlags=Gres\n"}, **{"hall-a": "hall-z"})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(layers, "write_atomic", stop)
        write_stack(changed, into)
    files = write_stack(changed, into)
    assert all((into / path).read_text() == text for path, text in files.items())


# --- what runs on the hosts


def template(project: Path, host: str, source: Path, into: Path) -> str:
    """A template as Ansible fills it in for a host."""
    environment = os.environ | {"ANSIBLE_HOME": str(into), "ANSIBLE_NOCOLOR": "1"}
    options = ["-c", "local", "-m", "template", "-e", f"ansible_python_interpreter={sys.executable}"]
    command = [PROGRAMS / "ansible", host, *options, "-a", f"src={source} dest={into / 'filled'}"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return (into / "filled").read_text()


def test_the_parameters_and_packages_of_a_host_are_those_of_all_its_names(project: Path, tmp_path: Path) -> None:
    tasks = {task["name"]: task for task in yaml.safe_load((project / "roles/base/tasks/main.yaml").read_text())}
    parts = [tasks["Set parameters of the kernel"]["ansible.builtin.copy"]["content"]]
    parts.append(tasks["Install packages"]["ansible.builtin.package"]["name"])
    (tmp_path / "base.j2").write_text("".join(parts))
    lines = template(project, "gpu02", tmp_path / "base.j2", tmp_path).splitlines()
    given = ["# all", "net.core.somaxconn=4096", "# compute", "-kernel.numa_balancing=0", "# gpu02", "vm.swappiness=1"]
    assert lines[:-1] == given
    assert {"chrony", "python3-dev", "nvtop", "htop"} <= set(yaml.safe_load(lines[-1]))


def test_a_host_accepts_what_its_roles_need(project: Path, tmp_path: Path) -> None:
    compute = template(project, "gpu01", project / NFTABLES, tmp_path)
    assert "ip saddr { 10.10.1.1, 10.10.1.2, 10.10.1.3, 10.10.1.4 } accept" in compute
    assert "ip saddr { 10.10.0.0/16 } tcp dport { 6818, 9100, 9855 } accept" in compute
    login = template(project, "login1", project / NFTABLES, tmp_path)
    assert "tcp dport { 60001-63000, 6817, 6819, 9100, 9855 } accept" in login
    assert "udp dport { 123 } accept" in login and "10.10.1.1" not in login
    zone = ElementTree.fromstring(template(project, "store1", project / FIREWALL / "zones/cluster.xml.j2", tmp_path))
    assert [port.get("port") for port in zone.findall("port")] == ["2049", "9100", "9855"]
    peers = ElementTree.fromstring(template(project, "gpu01", project / FIREWALL / "ipsets/peers.xml.j2", tmp_path))
    assert [entry.text for entry in peers.findall("entry")][-1] == "10.10.1.4"


@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft of the package nftables")
def test_nft_accepts_the_rules(project: Path, tmp_path: Path) -> None:
    (tmp_path / "rules").write_text(template(project, "gpu01", project / NFTABLES, tmp_path))
    subprocess.run(["nft", "--check", "--file", tmp_path / "rules"], check=True)


LISTEN = """
import selectors, socket
found = selectors.DefaultSelector()
for port in (22, 5555, 6817):
    found.register(socket.create_server(("", port)), selectors.EVENT_READ)
print("listening", flush=True)
while True:
    for key, _ in found.select():
        key.fileobj.accept()[0].close()
"""
CONNECT = """
import socket, sys
for port in (22, 6817, 5555):
    try:
        socket.create_connection((sys.argv[1], port), timeout=2).close()
        print(port, "open")
    except OSError as error:
        print(port, "silent" if isinstance(error, TimeoutError) else "refused")
"""


@pytest.mark.root
@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft of the package nftables")
@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: what the rules let through; needs root for namespaces")
def test_the_kernel_lets_the_network_of_the_cluster_in_and_others_to_ssh_alone(project: Path, tmp_path: Path) -> None:
    (tmp_path / "rules").write_text(template(project, "login1", project / NFTABLES, tmp_path))
    server, client = (f"tw-{os.getpid()}-{end}" for end in "sc")
    inside = [["ip", "netns", "exec", name] for name in (server, client)]
    probe_rules = f"ip netns add {server} && ip netns exec {server} nft add table inet probe; found=$?"
    if subprocess.run(["bash", "-c", f"{probe_rules}; ip netns delete {server}; exit $found"], check=False).returncode:
        pytest.skip("NOT TESTED: what the rules let through; this kernel has no namespaces, or no nftables")
    listening = None
    try:
        for command in (
            f"ip netns add {server}",
            f"ip netns add {client}",
            f"ip link add eth0 netns {server} type veth peer name eth0 netns {client}",
            *(f"ip -n {name} link set eth0 up" for name in (server, client)),
            f"ip -n {server} address add 10.10.0.10/16 dev eth0",
            f"ip -n {client} address add 10.10.9.9/16 dev eth0",
            f"ip -n {server} address add 10.99.0.1/24 dev eth0",
            f"ip -n {client} address add 10.99.0.2/24 dev eth0",
            f"ip netns exec {server} nft --file {tmp_path / 'rules'}",
        ):
            subprocess.run(command.split(), check=True)
        listening = subprocess.Popen([*inside[0], sys.executable, "-c", LISTEN], stdout=subprocess.PIPE)
        assert listening.stdout is not None and listening.stdout.readline() == b"listening\n"
        answers = [
            subprocess.check_output([*inside[1], sys.executable, "-c", CONNECT, address], text=True).splitlines()
            for address in ("10.10.0.10", "10.99.0.1")
        ]
        assert answers[0] == ["22 open", "6817 open", "5555 refused"]
        assert answers[1] == ["22 open", "6817 silent", "5555 silent"]
    finally:
        if listening is not None:
            listening.kill()
            listening.communicate()
        for name in (server, client):
            subprocess.run(["ip", "netns", "delete", name], check=False)


@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="needs systemd-tmpfiles")
def test_systemd_sets_the_governor_and_huge_pages(project: Path, tmp_path: Path) -> None:
    task = yaml.safe_load((project / "roles/tuning/tasks/main.yaml").read_text())[0]["ansible.builtin.copy"]
    files = [f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor" for number in (0, 17)]
    files.append("sys/kernel/mm/transparent_hugepage/enabled")
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("before")
    (tmp_path / "etc/tmpfiles.d").mkdir(parents=True)
    (tmp_path / "etc/tmpfiles.d/a.conf").write_text(task["content"])
    subprocess.run(["systemd-tmpfiles", f"--root={tmp_path}", "--create", "a.conf"], check=True)
    assert [(tmp_path / file).read_text() for file in files] == ["performance", "performance", "madvise"]


@pytest.mark.parametrize(
    "line",
    ["@include common-account", "account    include      password-auth", "account    substack     password-auth"],
)
def test_logins_are_judged_behind_the_accounts_of_each_distribution(project: Path, line: str) -> None:
    tasks = yaml.safe_load((project / "roles/access/tasks/main.yaml").read_text())
    block = next(task["ansible.builtin.blockinfile"] for task in tasks if "ansible.builtin.blockinfile" in task)
    assert re.search(block["insertafter"], line)
    adopt, access = block["block"].splitlines()
    assert "pam_slurm_adopt.so" in adopt and "pam_access.so" in access


def test_logins_are_left_alone_until_the_stack_says_so(tmp_path: Path) -> None:
    for change, adopt in (({}, False), ({'release: "26.05"': 'release: "26.05"\n  adopt: true'}, True)):
        files = render_stack(stack_in(tmp_path, {}, **change))
        assert "PrologFlags=Alloc,Contain\n" in files["roles/scheduler/files/slurm.conf"]
        found = yaml.safe_load(files["group_vars/all.yaml"])
        assert (found["slurm_adopt"], "adopt" in found["slurm_packages"]) == (adopt, adopt)


def test_rails_of_a_network_manager_have_their_addresses_and_a_table_each(tmp_path: Path) -> None:
    changes = {"Ubuntu 24.04": "Rocky 9", 'kernel: "6.8"': 'kernel: "5.14"', "machine_image:": "#machine_image:"}
    text = ROCE.read_text()
    text = text[: text.index("machine_image:")]
    for old, new in list(changes.items())[:2]:
        text = text.replace(f"os: {old}" if "Ubuntu" in old else old, f"os: {new}" if "Ubuntu" in old else new)
    (tmp_path / "stack.yaml").write_text(text)
    files = render_stack(tmp_path / "stack.yaml")
    rail = files["roles/fabric/files/gpu01/50-rail1.nmconnection"]
    assert "routing-rule1=priority 101 from 172.20." in rail and "route1_options=table=101" in rail
    assert not [name for name in files if name.endswith(".network")]
    found = yaml.safe_load(files["group_vars/all.yaml"])
    assert found["fabric_packages"] == ["doca-ofed-3.2*"] and found["selinux"]
    assert "chcon" in files["cloud-init/user-data.yaml"]


def test_nvidia_peermem_is_loaded_where_nothing_else_reaches_the_memory_of_gpus(tmp_path: Path) -> None:
    for gpus, needed in (("P100:8", True), ("h200:8", False)):
        file = stack_in(tmp_path, {}, ROCE, **{"h200:8": gpus})
        assert yaml.safe_load(render_stack(file)["group_vars/nodes_gpu.yaml"])["gpu_peermem"] is needed


@pytest.mark.parametrize(
    ("fact", "value", "check"), [("iommu", "DMA-FQ", "IOMMU"), ("acs", "ACSCtl: SrcValid+", "ACS of PCIe")]
)
def test_what_slows_peers_down_is_a_warning(fact: str, value: str, check: str) -> None:
    stack, _ = load_stack(EXAMPLE)
    services = services_of(stack, "gpu01")
    found = verify(stack, NO_FILES, {"gpu01": Answer(0, probe_answer("ubuntu 24.04", services, **{fact: value}))})
    assert [each.check for each in found.verdicts if each.outcome == "warn"] == [check]


def test_the_probe_reads_acs_as_lspci_prints_it(tmp_path: Path) -> None:
    line = next(line for line in probe(load_stack(EXAMPLE)[0], []).splitlines() if line.startswith("say acs"))
    printed = r"\tACSCap:\tSrcValid+\n\t\tACSCtl:\tSrcValid%s x\n"
    script = f"say() {{ printf '%s|%s|%s' \"$@\"; }}\nlspci() {{ printf '{printed}' "
    for sign, found in (("+", "acs||ACSCtl: SrcValid+"), ("-", "acs||")):
        done = subprocess.run(["bash", "-c", f"{script}{sign}; }}\n{line}"], capture_output=True, text=True, check=True)
        assert done.stdout == found


def test_a_system_that_enforces_selinux_has_to() -> None:
    stack = load_stack(EXAMPLE)[0].model_copy(update={"os": "Rocky 9"})
    answer = probe_answer("rocky 9.6", services_of(stack, "gpu01"), selinux="Permissive")
    verdicts = verify(stack, NO_FILES, {"gpu01": Answer(0, answer)}).verdicts
    assert [each.found for each in verdicts if each.check == "SELinux" and each.outcome == "fail"] == ["Permissive"]
    assert "getenforce" in probe(stack, [])
